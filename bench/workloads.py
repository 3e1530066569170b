"""Workloads: inputs, and idiomatic code for each library."""

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


def add_workload(
    name: str,
    inputs: Callable[[np.random.Generator], Inputs],
    every: Function | None = None,
    **functions: Function,
) -> None:
    """Add a row. `every` is for libraries without a function of their own."""
    if every is not None:
        functions = dict.fromkeys(("numus", "numpy", "torch", "jax"), every) | functions
    TABLE.append(Workload(name, inputs, functions))


def _normal(*shapes: tuple[int, ...], dtype: type = np.float32) -> Callable[..., Inputs]:
    return lambda rng: [rng.standard_normal(shape, dtype=dtype) for shape in shapes]


# Pointwise operations and reductions: memory-bound when fused.

add_workload(
    "ew_relu_sum_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.relu(x * 2 + 1).sum(),
    numpy=lambda x: np.maximum(x * 2 + 1, 0).sum(),
    torch=lambda x: torch.relu(x * 2 + 1).sum(),
    jax=lambda x: jax.nn.relu(x * 2 + 1).sum(),
)

add_workload(
    "gelu_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.gelu(x),
    torch=lambda x: torch.nn.functional.gelu(x),
    jax=lambda x: jax.nn.gelu(x, approximate=False),
)
add_workload(
    "exp_sin_16M",
    _normal((16 * M,)),
    numus=lambda x: nm.exp(x) * nm.sin(x),
    numpy=lambda x: np.exp(x) * np.sin(x),
    torch=lambda x: torch.exp(x) * torch.sin(x),
    jax=lambda x: jnp.exp(x) * jnp.sin(x),
)
add_workload("sum_axis0_4096x4096", _normal((4096, 4096)), lambda x: x.sum(0))
add_workload("transpose_add_4096", _normal((4096, 4096)), lambda x: x + x.T)


# Row reductions followed by a pointwise pass over the same row.


def _jax_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


add_workload(
    "softmax_4096x4096",
    _normal((4096, 4096)),
    numus=lambda x: nm.softmax(x, axis=-1),
    torch=lambda x: torch.softmax(x, -1),
    jax=lambda x: jax.nn.softmax(x, -1),
)
add_workload(
    "layernorm_8192x1024",
    _normal((8192, 1024), (1024,), (1024,)),
    numus=lambda x, w, b: nm.layer_norm(x, w, b),
    torch=lambda x, w, b: torch.nn.functional.layer_norm(x, (1024,), w, b),
    jax=_jax_layer_norm,
)


# Matmuls: compute-bound.

# "off" in a name: sizes that are no multiple of a tile.

for n in (64, 256, 1024, 2048, 65, 257, 1000, 2047):
    off = "" if n % 64 == 0 else "off_"
    add_workload(f"gemm_f32_{off}{n}", _normal((n, n), (n, n)), lambda x, y: x @ y)
for n in (1024, 1000):
    off = "" if n % 64 == 0 else "off_"
    square = _normal((n, n), (n, n), dtype=np.float64)
    add_workload(f"gemm_f64_{off}{n}", square, lambda x, y: x @ y)
add_workload("bmm_64x128x64x128", _normal((64, 128, 64), (64, 64, 128)), lambda x, y: x @ y)
add_workload("bmm_off_63x127x65x129", _normal((63, 127, 65), (63, 65, 129)), lambda x, y: x @ y)
add_workload("matvec_4096", _normal((4096, 4096), (4096,)), lambda x, y: x @ y)
add_workload("matvec_off_4095x4097", _normal((4095, 4097), (4097,)), lambda x, y: x @ y)
for m, k, n in ((512, 1024, 4096), (500, 1000, 4097)):
    off = "" if n == 4096 else "off_"
    add_workload(
        f"linear_gelu_{off}{m}x{k}x{n}",
        _normal((m, k), (k, n), (n,)),
        numus=lambda x, w, b: nm.gelu(x @ w + b),
        torch=lambda x, w, b: torch.nn.functional.gelu(x @ w + b),
        jax=lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False),
    )


for batch, channels, height, width in ((8, 64, 56, 56), (7, 63, 55, 57)):
    off = "" if batch == 8 else "off_"
    add_workload(
        f"conv3x3_{off}{batch}x{channels}x{height}x{width}",
        _normal((batch, channels, height, width), (channels, channels, 3, 3)),
        numus=lambda x, w: nm.conv2d(x, w, padding=1),
        torch=lambda x, w: torch.nn.functional.conv2d(x, w, padding=1),
        jax=lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"),
    )


def _jax_attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores, -1e30), -1) @ v


for shape in ((4, 8, 512, 64), (4, 8, 512, 80), (4, 3, 500, 64)):
    off = "" if shape == (4, 8, 512, 64) else "off_"
    add_workload(
        f"attention_{off}{'x'.join(map(str, shape))}",
        _normal(shape, shape, shape),
        numus=lambda q, k, v: nm.scaled_dot_product_attention(q, k, v, is_causal=True),
        torch=lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        ),
        jax=_jax_attention,
    )


# Attention: two matmuls around a softmax, fused without storing the scores.


def _jax_attention(q: Any, k: Any, v: Any) -> Any:
    turned = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(*turned, is_causal=True)


for _shape in ((4, 8, 512, 64), (2, 3, 500, 80), (8, 4, 64, 32)):
    add_workload(
        "attention_causal_" + "x".join(map(str, _shape)),
        _normal(_shape, _shape, _shape),
        numus=lambda q, k, v: nm.scaled_dot_product_attention(q, k, v, is_causal=True),
        torch=lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        ),
        jax=_jax_attention,
    )


# Random numbers, scans and sorts. The seed is an input, or JAX would fold its numbers to constants.

_philox = np.random.Generator(np.random.Philox(0))
add_workload(
    "randn_16M",
    lambda rng: [np.array(0, np.uint32)],
    numus=lambda seed: nm.random.normal((16 * M,)),
    numpy=lambda seed: _philox.standard_normal(16 * M, dtype=np.float32),
    torch=lambda seed: torch.randn(16 * M),
    jax=lambda seed: jax.random.normal(jax.random.key(seed), (16 * M,), jnp.float32),
)
for name, size in (("16M", 16 * M), ("off_16000001", 16_000_001)):
    add_workload(
        f"cumsum_{name}",
        _normal((size,)),
        numus=lambda x: nm.cumulative_sum(x),
        numpy=lambda x: np.cumsum(x),
        torch=lambda x: torch.cumsum(x, 0),
        jax=lambda x: jnp.cumsum(x),
    )
for name, shape in (("1M", (M,)), ("off_1000003", (1_000_003,)), ("off_rows_1000", (999, 1000))):
    add_workload(
        f"sort_{name}",
        _normal(shape),
        numus=lambda x: nm.sort(x),
        numpy=lambda x: np.sort(x),
        torch=lambda x: torch.sort(x)[0],
        jax=lambda x: jnp.sort(x),
    )


# Call overhead.

add_workload("small_add", _normal((4,)), lambda x: x + x)
