"""Families of kernels: those of `tools/cuda_families.py`, attention, convolutions, products of odd
sizes, against PyTorch's best."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from tools import cuda_bench, cuda_families
from tools.cuda_bars.bars import Bar, Comparison
from tools.cuda_timing import Bench, Row, drawn

# Of the families, one row of each comes early: as it was asked.
TELLING = (
    "index_add 16777216 into 1048576 float32",
    "index_add 65536x768 into 50257 bfloat16",
    "histogram 67108864 in 256",
    "n-body forces 16384",
    "pool 3x3/2 gradient 32x512x56x56 bfloat16",
    "- x[:, :-1] 16384x8193",
    "argsort 8192x2000",
    "sin * exp + tanh 67108864 float32",
    "erf + lgamma 67108864 float32",
    "group_norm 32 32x256x56x56",
    "LSTM 64x128x512",
)
NATIVE_ATTENTION, NATIVE_CONVOLUTION, NATIVE_PRODUCT = 0.85, 0.8, 0.9
TOLERANCES = {"float64": 1e-8, "complex128": 1e-8, "bfloat16": 3e-2, "float16": 1e-2}
ODD_PRODUCTS = r"300x700|1001|4095|512x512 @|complex|16384x3072x768|8 of 4096|1x4096"


def _of_row(bench: Bench, row: Row, family: str, **asked: Any) -> Bar:
    shapes = [bench.fit(tuple(s)) for s in row.shapes]
    return Comparison(
        family=family,
        name=row.name,
        inputs=drawn(bench.torch, row.dtype, *shapes),
        ours=row.ours,
        theirs=row.theirs,
        compiled=row.compiled,
        tolerance=TOLERANCES.get(row.dtype, 2e-3),
        **asked,
    ).bar()


def _families(bench: Bench) -> Iterator[Bar]:
    told = zip(
        cuda_families.cases(bench.torch, bench.nm),
        cuda_families.cases(bench.torch, bench.nm, bench.most),
        strict=True,
    )
    for named, case in told:  # alike, but for the sizes
        telling = any(words in named.name for words in TELLING)
        yield Comparison(
            family=case.family,
            name=named.name,
            inputs=case.inputs,
            ours=case.ours,
            theirs=case.theirs,
            compiled=case.compiled,
            jitted=case.compiled,
            tolerance=0.1 if case.gradients else 1e-4,
            order=1 if telling else 3,
        ).bar()


def _attention(bench: Bench) -> Iterator[Bar]:
    torch, nm = bench.torch, bench.nm
    theirs = torch.nn.functional.scaled_dot_product_attention
    fit = bench.fit

    def compared(name: str, *shapes: Any, order: int = 2, native: float = 0.0, **how: Any) -> Bar:
        options = {"enable_gqa": True, **how}
        return Comparison(
            family="attention",
            name=f"{name} {'x'.join(map(str, shapes[0]))} bfloat16",
            inputs=drawn(torch, "bfloat16", *fit(shapes)),
            ours=partial(nm.scaled_dot_product_attention, **options),
            theirs=partial(theirs, **options),
            native=native,
            tolerance=3e-2,
            order=order,
        ).bar()

    for size in (64, 80, 96, 128, 256):
        shape = (4, 16, 4096, size)
        asked = {"native": NATIVE_ATTENTION, "is_causal": True}
        yield compared("causal", shape, shape, shape, order=0 if size == 128 else 2, **asked)
    few = (4, 4, 4096, 128)
    yield compared("grouped heads, causal", (4, 32, 4096, 128), few, few, order=1, is_causal=True)
    yield compared("one query over long keys", (8, 32, 1, 128), *[(8, 8, 32768, 128)] * 2, order=1)
    yield compared("all keys", *[(4, 16, 3001, 64)] * 3)
    n = fit(4096)
    at = torch.arange(n)
    behind = at[:, None] - at
    window = (behind >= 0) & (behind < max(n // 8, 1))
    mine = bench.from_torch(window)
    shape = (4, 16, 4096, 64)
    yield Comparison(
        family="attention",
        name="sliding window of 512, 4x16x4096x64 bfloat16",
        inputs=drawn(torch, "bfloat16", *fit((shape, shape, shape))),
        ours=lambda q, k, v: nm.scaled_dot_product_attention(q, k, v, mine),
        theirs=lambda q, k, v: theirs(q, k, v, window),
        tolerance=3e-2,
        order=2,
    ).bar()


# Data, weights, options: gradients, three axes, groups, transposed ones.
CONVOLUTIONS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("conv2d", (64, 256, 28, 28), (256, 256, 3, 3), {"padding": 1}),
    ("conv2d", (64, 512, 14, 14), (512, 512, 3, 3), {"padding": 1}),
    ("conv2d", (64, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ("conv2d", (64, 96, 56, 56), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    ("conv2d", (64, 128, 28, 28), (128, 4, 3, 3), {"padding": 1, "groups": 32}),
    ("conv3d", (4, 32, 32, 64, 64), (32, 32, 3, 3, 3), {"padding": 1}),
    ("conv_transpose2d", (64, 128, 32, 32), (128, 64, 4, 4), {"padding": 1, "stride": 2}),
)


def _convolutions(bench: Bench) -> Iterator[Bar]:
    torch, nm = bench.torch, bench.nm
    for name, data, weights, options in CONVOLUTIONS:
        more = {k: v for k, v in options.items() if k != "padding"}
        told = f"{name} {'x'.join(map(str, data))} {'x'.join(map(str, weights))}"
        told += "".join(f", {k} {v}" for k, v in more.items())
        channels = options.get("groups", 1) == 1
        most = 8 if bench.most and channels else 0
        small, kernel = (_small(most, s) for s in (data, weights))
        if bench.most and not channels:
            small = (1, data[1], 9, 9)
        ours = partial(getattr(nm, name), **options)
        theirs = partial(getattr(torch.nn.functional, name), **options)

        def gradients(x: Any, w: Any, f: Any = ours) -> Any:
            return nm.grad(lambda x, w: (f(x, w).astype(nm.float32) ** 2).sum(), (0, 1))(x, w)

        def their_gradients(x: Any, w: Any, f: Any = theirs) -> Any:
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            (f(x, w).float() ** 2).sum().backward()
            return x.grad, w.grad

        for kind in ("bfloat16", "float32"):
            shared: dict[str, Any] = {
                "family": "convolution",
                "inputs": drawn(torch, kind, small, kernel),
                "native": NATIVE_CONVOLUTION,
                "tolerance": TOLERANCES.get(kind, 2e-3),
            }
            first = name == "conv2d" and data[1] == 256 and kind == "bfloat16"
            yield Comparison(
                **shared, name=f"{told} {kind}", ours=ours, theirs=theirs, order=1 if first else 2
            ).bar()
            yield Comparison(
                **shared,
                name=f"{told} {kind}, and gradients",
                ours=gradients,
                theirs=their_gradients,
                order=0 if first else 3,
            ).bar()


def _small(most: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents for a trial; kernels keep theirs."""
    return tuple(min(n, most) if most else n for n in shape)


def bars(bench: Bench) -> Iterator[Bar]:
    yield from _attention(bench)
    yield from _convolutions(bench)
    for row in cuda_bench.attention(bench.torch, bench.nm):
        if row.name.startswith("attention"):
            telling = row.name.startswith("attention 4x16x4096x128 bfloat16")
            yield _of_row(
                bench, row, "attention", native=NATIVE_ATTENTION, order=0 if telling else 2
            )
    yield from _families(bench)
    for row in cuda_bench.gemms(bench.torch, bench.nm):
        if re.search(ODD_PRODUCTS, row.name):
            telling = "1001x1003x1005" in row.name
            yield _of_row(bench, row, "products", native=NATIVE_PRODUCT, order=1 if telling else 3)
