"""One run of every kernel family, for compute-sanitizer (`tools.cuda_state`).

python -m tools.cuda_sanitized [device]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import numus as nm
from numus import nn, optim

FLOATS = ("float32", "float64", "bfloat16", "float16")
_rng = np.random.default_rng(0)


def put(*shape: int, dtype: str = "float32") -> Any:
    return nm.asarray(_rng.standard_normal(shape).astype("float32")).astype(dtype)


def wide(x: Any) -> Any:
    return x.astype("float32")


def gradients(function: Any, *operands: Any) -> Any:
    """Gradients of a sum of squares, which are not constant."""

    def total(*xs: Any) -> Any:
        return (wide(function(*xs)) ** 2).sum()

    return nm.grad(total, argnums=tuple(range(len(operands))))(*operands)


def maps() -> Iterator[Any]:
    x, square = put(300, 333), put(130, 130)
    yield from (nm.gelu(x) + 1, x + x.T[:1].sum(), square + square.T, x[::-2, 1::3].T * 2)
    yield from (nm.pad(x, 3, "reflect"), nm.concat([x, x[:7]]), nm.random.dropout(x, 0.5))


def rows(dtype: str) -> Iterator[Any]:
    """Sub-warp rows, one CTA per row, and several CTAs per row."""
    for length in (7, 333, 1024, 8193, 40_000):
        x, w, b = put(5, length, dtype=dtype), put(length, dtype=dtype), put(length, dtype=dtype)
        yield from (nm.softmax(x, axis=-1), nm.layer_norm(x, w, b), nm.layer_norm(x))
        yield from gradients(nm.layer_norm, x, w, b)
        yield from gradients(lambda x: nm.softmax(x, axis=-1), x)


def sums(dtype: str) -> Iterator[Any]:
    for shape in ((300, 333), (7, 4099), (4099, 7), (3, 70, 33)):
        x = put(*shape, dtype=dtype)
        yield from (x.sum(), x.sum(0), x.sum(-1), nm.var(wide(x), axis=0), x.max(axis=0))
        yield nm.argmax(x, axis=0)


def orders() -> Iterator[Any]:
    x = put(300, 333)
    yield from (nm.cumsum(x, axis=1), nm.cumsum(x, axis=0), nm.cumprod(x.reshape(-1), axis=0))
    yield from (nm.sort(x, axis=1), nm.sort(x.reshape(-1)), nm.argsort(x, axis=0))
    yield nm.topk(x, 5)[0]


def gemms(dtype: str) -> Iterator[Any]:
    for m, n, k in ((131, 69, 77), (66, 72, 2048), (1, 300, 200), (256, 256, 128)):
        a, b = put(m, k, dtype=dtype), put(k, n, dtype=dtype)
        yield from (a @ b, nm.gelu(a @ b + put(n, dtype=dtype)))
    yield put(3, 33, 40, dtype=dtype) @ put(3, 40, 17, dtype=dtype)


def low_precision_gemms() -> Iterator[Any]:
    a, b = (put(*shape).clip(-3, 3).astype("int8") for shape in ((70, 96), (96, 80)))
    yield nm.matmul(a, b, dtype="int32")
    yield nm.matmul(put(70, 81), put(81, 73), precision="tf32")


def attention(dtype: str) -> Iterator[Any]:
    q, k, v = (put(1, 2, 100, 64, dtype=dtype) for _ in range(3))
    for causal in (True, False):
        attend = partial(nm.scaled_dot_product_attention, is_causal=causal)
        yield from (attend(q, k, v), *gradients(attend, q, k, v))


def convolutions(dtype: str) -> Iterator[Any]:
    image, weights = put(2, 16, 9, 9, dtype=dtype), put(8, 16, 3, 3, dtype=dtype)
    for options in ({"padding": 1}, {"stride": 2}):
        convolve = partial(nm.conv2d, **options)
        yield from (convolve(image, weights), *gradients(convolve, image, weights))


def indices() -> Iterator[Any]:
    x = put(300, 64)
    at = nm.asarray(_rng.integers(0, 300, 500))
    yield from (x[at], *gradients(lambda x: x[at], x), nm.take_along_axis(x, nm.argsort(x), -1))
    yield from (x[x > 0], nm.nonzero(x > 1)[0])


def training() -> Iterator[Any]:
    """A jitted step replayed as a CUDA graph, with its loss read each time."""
    layers = (nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10))
    model: Any = nn.Sequential(*layers)
    optimizer: Any = optim.AdamW(model.parameters(), 1e-3)
    x, y = put(32, 64), nm.asarray(np.arange(32) % 10)

    @nm.jit
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.cross_entropy_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        yield nm.asarray(step(x, y).item())
    yield from model.parameters()


def main() -> None:
    nm.set_default_device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    families: list[Callable[[], Any]] = [maps, orders, indices, low_precision_gemms, training]
    for family in (rows, sums):
        families += [partial(family, dtype) for dtype in ("float32", "bfloat16")]
    for family in (gemms, attention, convolutions):
        families += [partial(family, dtype) for dtype in FLOATS]
    count, fine = 0, 0
    with nm.kernels.prefer("native"):
        for family in families:
            found = list(family())
            nm.eval(found)
            count += len(found)
            fine += sum(bool(nm.isfinite(wide(y)).all()) for y in found)
    print(f"{fine} of {count} results are finite")


if __name__ == "__main__":
    main()
