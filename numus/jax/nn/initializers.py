"""`jax.nn.initializers`: functions of a key, a shape and a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus.jax import numpy as jnp
from numus.jax import random
from numus.jax._adapt import canonical_dtype
from numus.random._geometry import haar
from numus.tensor import Tensor

Initializer = Callable[..., Tensor]


def zeros(key: Any, shape: Any, dtype: Any = float) -> Tensor:
    """Zeros."""
    return jnp.zeros(shape, dtype)


def ones(key: Any, shape: Any, dtype: Any = float) -> Tensor:
    """Ones."""
    return jnp.ones(shape, dtype)


def constant(value: Any, dtype: Any = float) -> Initializer:
    """Of one value."""
    return lambda key, shape, dtype=dtype: jnp.full(shape, value, dtype)


def uniform(scale: float = 1e-2, dtype: Any = float) -> Initializer:
    """Uniform from 0 to `scale`."""
    return lambda key, shape, dtype=dtype: random.uniform(key, shape, dtype) * scale


def normal(stddev: float = 1e-2, dtype: Any = float) -> Initializer:
    """Normal of a standard deviation."""
    return lambda key, shape, dtype=dtype: random.normal(key, shape, dtype) * stddev


def truncated_normal(
    stddev: float = 1e-2, dtype: Any = float, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    """Normal, cut off."""
    return lambda key, shape, dtype=dtype: (
        random.truncated_normal(key, lower, upper, shape, dtype) * stddev
    )


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: Sequence[int] = (),
    dtype: Any = float,
) -> Initializer:
    """With a variance that keeps that of activations, or of gradients."""

    def axes(given: int | Sequence[int], shape: Sequence[int]) -> list[int]:
        return [a % len(shape) for a in ((given,) if isinstance(given, int) else given)]

    def init(key: Any, shape: Sequence[int], dtype: Any = dtype) -> Tensor:
        inputs, outputs = axes(in_axis, shape), axes(out_axis, shape)
        batch = axes(batch_axis, shape)
        fan_in, fan_out = (math.prod(shape[a] for a in group) for group in (inputs, outputs))
        others = set(range(len(shape))) - {*inputs, *outputs, *batch}
        window = math.prod(shape[a] for a in others)
        fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
        if mode not in fans:
            raise ValueError(f"variance_scaling: mode={mode!r} must be one of {', '.join(fans)}")
        deviation = math.sqrt(scale / max(1.0, fans[mode] * window))
        if distribution == "normal":
            return random.normal(key, shape, dtype) * deviation
        if distribution == "uniform":
            return random.uniform(key, shape, dtype, -1, 1) * (math.sqrt(3) * deviation)
        if distribution == "truncated_normal":
            # the deviation of a normal distribution that is cut off at 2
            drawn = random.truncated_normal(key, -2, 2, shape, dtype)
            return drawn * (deviation / 0.87962566103423978)
        raise ValueError(f"variance_scaling: unknown distribution={distribution!r}")

    return init


def _scaled(scale: float, mode: str, distribution: str) -> Any:
    def make(
        in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = (), dtype: Any = float
    ) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__doc__ = f"Variance {scale:g} over the {mode}, {distribution}."
    return make


glorot_uniform = xavier_uniform = _scaled(1.0, "fan_avg", "uniform")
glorot_normal = xavier_normal = _scaled(1.0, "fan_avg", "truncated_normal")
lecun_uniform = _scaled(1.0, "fan_in", "uniform")
lecun_normal = _scaled(1.0, "fan_in", "truncated_normal")
he_uniform = kaiming_uniform = _scaled(2.0, "fan_in", "uniform")
he_normal = kaiming_normal = _scaled(2.0, "fan_in", "truncated_normal")


def orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = float) -> Initializer:
    """Orthogonal columns."""

    def init(key: Any, shape: Sequence[int], dtype: Any = dtype) -> Tensor:
        columns = shape[column_axis]
        rows = math.prod(shape) // columns
        q = haar((rows, columns), dtype=canonical_dtype(dtype), key=key)
        others = [n for a, n in enumerate(shape) if a != column_axis % len(shape)]
        return scale * nm.moveaxis(nm.reshape(q, (*others, columns)), -1, column_axis)

    return init
