"""The workloads: inputs, and the same computation as each library's users would write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import numus as nm

from .libraries import Function, jax, jnp, torch

M = 1 << 20
Inputs = list[NDArray[Any]]


@dataclass(frozen=True)
class Workload:
    name: str
    inputs: Callable[[np.random.Generator], Inputs]
    functions: dict[str, Function]  # by the library they are written for


TABLE: list[Workload] = []


def _workload(
    name: str,
    inputs: Callable[[np.random.Generator], Inputs],
    every: Function | None = None,
    **functions: Function,
) -> None:
    """Add a row. `every` serves the libraries that have no function of their own."""
    if every is not None:
        functions = dict.fromkeys(("numus", "numpy", "torch", "jax"), every) | functions
    TABLE.append(Workload(name, inputs, functions))


def _normal(*shapes: tuple[int, ...], dtype: type = np.float32) -> Callable[..., Inputs]:
    return lambda rng: [rng.standard_normal(shape, dtype=dtype) for shape in shapes]


# Maps and reductions: bound by memory when they are fused.

_workload(
    "ew_relu_sum_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.relu(x * 2 + 1).sum(),
    numpy=lambda x: np.maximum(x * 2 + 1, 0).sum(),
    torch=lambda x: torch.relu(x * 2 + 1).sum(),
    jax=lambda x: jax.nn.relu(x * 2 + 1).sum(),
)

_workload(
    "gelu_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.gelu(x),
    torch=lambda x: torch.nn.functional.gelu(x),
    jax=lambda x: jax.nn.gelu(x, approximate=False),
)
_workload(
    "exp_sin_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.exp(x) * nm.sin(x),
    numpy=lambda x: np.exp(x) * np.sin(x),
    torch=lambda x: torch.exp(x) * torch.sin(x),
    jax=lambda x: jnp.exp(x) * jnp.sin(x),
)
_workload("sum_axis0_4096x4096", _normal((4096, 4096)), lambda x: x.sum(0))
_workload("transpose_add_4096", _normal((4096, 4096)), lambda x: x + x.T)


# Row programs: a reduction whose result the same row then needs.


def _jax_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


_workload(
    "softmax_4096x4096",
    _normal((4096, 4096)),
    numus=lambda x: nm.softmax(x, axis=-1),
    torch=lambda x: torch.softmax(x, -1),
    jax=lambda x: jax.nn.softmax(x, -1),
)
_workload(
    "layernorm_8192x1024",
    _normal((8192, 1024), (1024,), (1024,)),
    numus=lambda x, w, b: nm.layer_norm(x, w, b),
    torch=lambda x, w, b: torch.nn.functional.layer_norm(x, (1024,), w, b),
    jax=_jax_layer_norm,
)


# Contractions: bound by the multiply-add units.

for n in (64, 256, 1024, 2048):
    _workload(f"gemm_f32_{n}", _normal((n, n), (n, n)), lambda x, y: x @ y)
_workload(
    "gemm_f64_1024", _normal((1024, 1024), (1024, 1024), dtype=np.float64), lambda x, y: x @ y
)
_workload("bmm_64x128x64x128", _normal((64, 128, 64), (64, 64, 128)), lambda x, y: x @ y)
_workload("matvec_4096", _normal((4096, 4096), (4096,)), lambda x, y: x @ y)
_workload(
    "linear_gelu_512x1024x4096",
    _normal((512, 1024), (1024, 4096), (4096,)),
    numus=lambda x, w, b: nm.gelu(x @ w + b),
    torch=lambda x, w, b: torch.nn.functional.gelu(x @ w + b),
    jax=lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False),
)


# Random numbers, scans and sorts. The seed is an input because JAX would otherwise compute its
# numbers once, while compiling.

_philox = np.random.Generator(np.random.Philox(0))
_workload(
    "randn_16M",
    lambda rng: [np.array(0, np.uint32)],
    numus=lambda seed: nm.random.normal((16 * M,)),
    numpy=lambda seed: _philox.standard_normal(16 * M, dtype=np.float32),
    torch=lambda seed: torch.randn(16 * M),
    jax=lambda seed: jax.random.normal(jax.random.key(seed), (16 * M,), jnp.float32),
)
_workload(
    "cumsum_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.cumulative_sum(x),
    numpy=lambda x: np.cumsum(x),
    torch=lambda x: torch.cumsum(x, 0),
    jax=lambda x: jnp.cumsum(x),
)
_workload(
    "sort_1M",
    _normal((M,)),
    numus=lambda x: nm.sort(x),
    numpy=lambda x: np.sort(x),
    torch=lambda x: torch.sort(x)[0],
    jax=lambda x: jnp.sort(x),
)
