"""Families of kernels at sizes that no schedule was tuned for: odd ones, and two dtypes of each.

`python -m bench family_` measures all of them, `python -m bench family_pool` one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import numus as nm
from numus import nn

from .libraries import Function, jax, jnp, torch
from .workloads import Inputs, add_workload

FLOATS = {"f32": np.float32, "f64": np.float64}


def _sized(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _normal(dtype: str, *shapes: tuple[int, ...]) -> Callable[..., Inputs]:
    return lambda rng: [rng.standard_normal(shape).astype(FLOATS[dtype]) for shape in shapes]


def _rows(
    family: str,
    sizes: list[tuple[str, tuple[int, ...]]],
    every: Function | None = None,
    inputs: Callable[[str, tuple[int, ...]], Callable[..., Inputs]] = _normal,
    **functions: Function,
) -> None:
    """A row for each dtype and shape of a family."""
    for dtype, shape in sizes:
        name = f"family_{family}_{dtype}_{_sized(shape)}"
        add_workload(name, inputs(dtype, shape), every, **functions)


# Slices along the last axis: rows that start off vectors and cache lines.

SLICED = [
    ("f32", (4096, 4096)),
    ("f32", (1000, 1000)),
    ("f32", (100_003, 67)),
    ("f64", (2047, 2050)),
    ("f64", (511, 333)),
]
_rows("slice_difference", SLICED, lambda x: x[:, 1:] - x[:, :-1])
_rows("slice_three", SLICED, lambda x: x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2])


# Softmax and its kin along the first axis: several passes over columns.

COLUMNS = [
    ("f32", (4096, 1024)),
    ("f32", (1001, 777)),
    ("f32", (64, 65_537)),
    ("f32", (100_003, 10)),
    ("f64", (333, 2049)),
    ("f64", (2048, 512)),
]


def _numpy_logsumexp(x: Any) -> Any:
    high = x.max(0)
    return np.log(np.exp(x - high).sum(0)) + high


_rows(
    "logsumexp_axis0",
    COLUMNS,
    numus=lambda x: nm.logsumexp(x, axis=0),
    numpy=_numpy_logsumexp,
    torch=lambda x: torch.logsumexp(x, 0),
    jax=lambda x: jax.scipy.special.logsumexp(x, 0),
)
_rows(
    "softmax_axis0",
    COLUMNS,
    numus=lambda x: nm.softmax(x, axis=0),
    torch=lambda x: torch.softmax(x, 0),
    jax=lambda x: jax.nn.softmax(x, 0),
)


# Histograms and counts.

for _count, _bins in ((4 << 20, 256), (1_000_003, 100), (100_001, 10), (1 << 24, 1000)):
    _rows(
        f"histogram_{_bins}_bins",
        [(dtype, (_count,)) for dtype in FLOATS if dtype == "f32" or _count < 1 << 24],
        numus=lambda x, bins=_bins: nm.histogram(x, bins, (-4.0, 4.0))[0],
        numpy=lambda x, bins=_bins: np.histogram(x, bins, (-4.0, 4.0))[0],
        torch=lambda x, bins=_bins: torch.histc(x, bins, -4.0, 4.0),
        jax=lambda x, bins=_bins: jnp.histogram(x, bins, (-4.0, 4.0))[0],
    )


def _codes(count: int, bins: int, dtype: type) -> Callable[..., Inputs]:
    return lambda rng: [rng.integers(0, bins, count).astype(dtype)]


for _count, _bins, _dtype in (
    (4 << 20, 256, np.int64),
    (1_000_003, 1000, np.int32),
    (4_000_001, 1 << 20, np.int64),
    (100_001, 7, np.int32),
):
    add_workload(
        f"family_bincount_{_count}_{_bins}_bins_{np.dtype(_dtype).name}",
        _codes(_count, _bins, _dtype),
        numus=lambda x, bins=_bins: nm.bincount(x, length=bins),
        numpy=lambda x, bins=_bins: np.bincount(x, minlength=bins),
        torch=lambda x, bins=_bins: torch.bincount(x, minlength=bins),
        jax=lambda x, bins=_bins: jnp.bincount(x, length=bins),
    )


# Pooling, and its gradient.

IMAGES = [
    ("f32", (8, 64, 112, 112)),
    ("f32", (32, 64, 56, 56)),
    ("f32", (3, 33, 57, 61)),
    ("f64", (2, 16, 113, 111)),
    ("f64", (4, 32, 56, 56)),
]


def _gradient(pool: Function) -> dict[str, Function]:
    """The gradient of a sum of squares, in all libraries."""

    def of_torch(x: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(pool(torch.nn.functional, x).square().sum(), x)[0]

    return {
        "numus": nm.grad(lambda x: nm.square(pool(nn, x)).sum()),
        "torch": of_torch,
    }


def _jax_max_pool(x: Any) -> Any:
    padding = ((0, 0), (0, 0), (1, 1), (1, 1))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)


_rows(
    "pool_max3x3s2",
    IMAGES,
    numus=lambda x: nm.max_pool2d(x, 3, 2, 1),
    torch=lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
    jax=_jax_max_pool,
)
_rows("pool_max3x3s2_gradient", IMAGES, **_gradient(lambda f, x: f.max_pool2d(x, 3, 2, 1)))
_rows(
    "pool_max2x2",
    IMAGES,
    numus=lambda x: nm.max_pool2d(x, 2),
    torch=lambda x: torch.nn.functional.max_pool2d(x, 2),
)
_rows(
    "pool_mean3x3s2",
    IMAGES,
    numus=lambda x: nm.avg_pool2d(x, 3, 2, 1),
    torch=lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1),
)


# Depthwise convolutions.

for _side in (3, 5, 7):

    def _depthwise(dtype: str, shape: tuple[int, ...], side: int = _side) -> Callable[..., Inputs]:
        return _normal(dtype, shape, (shape[1], 1, side, side))

    _rows(
        f"depthwise_{_side}x{_side}",
        [
            ("f32", (8, 96, 56, 56)),
            ("f32", (4, 33, 29, 31)),
            ("f32", (4, 384, 14, 14)),
            ("f64", (4, 64, 28, 28)),
            ("f64", (2, 17, 57, 61)),
        ],
        inputs=_depthwise,
        numus=lambda x, w, p=_side // 2: nm.conv2d(x, w, padding=p, groups=x.shape[1]),
        torch=lambda x, w, p=_side // 2: torch.nn.functional.conv2d(
            x, w, padding=p, groups=x.shape[1]
        ),
        jax=lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", feature_group_count=x.shape[1]
        ),
    )


# Broadcast and reduce: pairs of points, without an intermediate.

POINTS = [
    ("f32", (2000, 3)),
    ("f32", (1001, 17)),
    ("f32", (512, 128)),
    ("f64", (1000, 3)),
    ("f64", (513, 65)),
]


def _two_sets(dtype: str, shape: tuple[int, ...]) -> Callable[..., Inputs]:
    return _normal(dtype, shape, shape)


def _forces(sqrt: Function, x: Any) -> Any:
    """Accelerations by gravity, softened."""
    apart = x[None] - x[:, None]
    near = (apart * apart).sum(-1) + 0.01
    return (apart / (near * sqrt(near))[..., None]).sum(1)


_rows(
    "pairs_distances",
    POINTS,
    lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1),
    _two_sets,
)
_rows(
    "pairs_nearest",
    POINTS,
    inputs=_two_sets,
    numus=lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).min(1),
    numpy=lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).min(1),
    torch=lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).amin(1),
    jax=lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).min(1),
)
_rows(
    "pairs_kernel",
    POINTS,
    inputs=_two_sets,
    numus=lambda x, y: nm.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)),
    numpy=lambda x, y: np.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)),
    torch=lambda x, y: torch.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)),
    jax=lambda x, y: jnp.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)),
)
_rows(
    "pairs_forces",
    [size for size in POINTS if size[1][1] == 3],
    numus=partial(_forces, nm.sqrt),
    numpy=partial(_forces, np.sqrt),
    torch=partial(_forces, lambda x: x.sqrt()),
    jax=partial(_forces, lambda x: jnp.sqrt(x)),
)


# Products of odd and of small sizes.

PRODUCTS = [(777, 1333, 555), (1001, 999, 1003), (333, 257, 129), (2047, 65, 1023), (63, 2049, 131)]
SMALL_PRODUCTS = [(16, 16, 16), (33, 33, 33), (64, 64, 64), (65, 100, 47), (128, 128, 128)]
for _family, _sizes in (("product", PRODUCTS), ("small_product", SMALL_PRODUCTS)):
    for _m, _k, _n in _sizes:
        for _dtype_name in FLOATS:
            add_workload(
                f"family_{_family}_{_dtype_name}_{_m}x{_k}x{_n}",
                _normal(_dtype_name, (_m, _k), (_k, _n)),
                lambda x, y: x @ y,
            )


# Normalisation.


def _group_norm(groups: int) -> dict[str, Function]:
    def of_jax(x: Any) -> Any:
        parts = x.reshape(x.shape[0], groups, -1)
        centred = parts - parts.mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt(parts.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)

    return {
        "numus": lambda x: nm.group_norm(x, groups),
        "torch": lambda x: torch.nn.functional.group_norm(x, groups),
        "jax": of_jax,
    }


for _groups, _sizes in (
    (32, [("f32", (8, 64, 56, 56)), ("f32", (4, 320, 32, 32)), ("f64", (2, 64, 28, 28))]),
    (3, [("f32", (5, 33, 29, 31)), ("f64", (4, 48, 33, 35))]),
):
    _rows(f"group_norm_{_groups}", _sizes, **_group_norm(_groups))


def _channels_last_norm(sqrt: Function, x: Any) -> Any:
    mean = x.mean((0, 1, 2))
    return (x - mean) / sqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-5)


_rows(
    "batch_norm_channels_last",
    [
        ("f32", (8, 56, 56, 64)),
        ("f32", (32, 28, 28, 128)),
        ("f32", (5, 29, 31, 33)),
        ("f64", (4, 28, 28, 96)),
        ("f64", (3, 57, 61, 7)),
    ],
    numus=lambda x: nm.batch_norm(x.transpose(0, 3, 1, 2), training=True).transpose(0, 2, 3, 1),
    numpy=partial(_channels_last_norm, np.sqrt),
    torch=lambda x: torch.nn.functional.batch_norm(
        x.permute(0, 3, 1, 2), None, None, training=True
    ),
    jax=partial(_channels_last_norm, lambda x: jnp.sqrt(x)),
)


# Recurrent layers: batch, steps, inputs, hidden units.


def _lstm(dtype: str, shape: tuple[int, ...]) -> Callable[..., Inputs]:
    batch, steps, inputs, hidden = shape
    weights = [(4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    return lambda rng: [
        rng.standard_normal((batch, steps, inputs)).astype(FLOATS[dtype]),
        *((rng.standard_normal(s) * hidden**-0.5).astype(FLOATS[dtype]) for s in weights),
    ]


class _NumusLstm:
    """A layer, made by the first call of a row."""

    layer: nn.LSTM | None = None
    weight: Any = None

    def __call__(self, x: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
        if self.layer is None or self.weight is not w:
            layer = self.layer = nn.LSTM(w.shape[1], u.shape[1], batch_first=True, dtype=x.dtype)
            self.weight = w
            layer.weight_ih_l0, layer.weight_hh_l0 = nn.Parameter(w), nn.Parameter(u)
            layer.bias_ih_l0, layer.bias_hh_l0 = nn.Parameter(b), nn.Parameter(c)
            layer.requires_grad_(False)
        return self.layer(x)[0]


def _torch_lstm(x: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    zeros = x.new_zeros(1, x.shape[0], u.shape[1])
    options = (True, 1, 0.0, False, False, True)
    return torch.lstm(x, (zeros, zeros), [w, u, b, c], *options)[0]


RECURRENT = [
    ("f32", (32, 64, 64, 256)),
    ("f32", (7, 33, 65, 129)),
    ("f32", (1, 100, 128, 128)),
    ("f64", (16, 32, 64, 128)),
    ("f64", (5, 17, 31, 63)),
]
_rows("lstm", RECURRENT, inputs=_lstm, numus=_NumusLstm(), torch=_torch_lstm)


# Sorts of few elements.

SORTED = [
    ("f32", (10_000,)),
    ("f64", (10_000,)),
    ("f32", (9973,)),
    ("f32", (3000,)),
    ("f64", (30_011,)),
    ("f32", (99, 10_001)),
]
_rows(
    "sort",
    SORTED,
    numus=lambda x: nm.sort(x),
    numpy=lambda x: np.sort(x),
    torch=lambda x: torch.sort(x)[0],
    jax=lambda x: jnp.sort(x),
)
_rows(
    "argsort",
    SORTED,
    numus=lambda x: nm.argsort(x),
    numpy=lambda x: np.argsort(x, kind="stable"),
    torch=lambda x: torch.argsort(x, stable=True),
    jax=lambda x: jnp.argsort(x),
)


# Single operations, where the overhead counts.

for _dtype_name in FLOATS:
    for _size in ((10,), (1000,), (33, 33), (100_003,)):
        for _operation in ("sum", "max", "mean"):
            add_workload(
                f"family_single_{_operation}_{_dtype_name}_{_sized(_size)}",
                _normal(_dtype_name, _size),
                lambda x, operation=_operation: getattr(x, operation)(),
            )
