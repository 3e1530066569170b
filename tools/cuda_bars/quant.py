"""Products with weights of few bits, against PyTorch's bfloat16 products and its own INT4 kernel.

Weights come in sets that take turns and exceed L2, as the layers of a model do; products of a few
rows are timed in CUDA graphs, where the host is no part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tools.cuda_bars.bars import Bar, Comparison, distance
from tools.cuda_timing import Bench

SHAPES = ((4096, 4096), (14336, 4096))  # of weights: outputs, inputs
MEMORY_SHARE = 0.75
BITS = {"int4-g128": 4 + 16 / 128, "q8-b128": 8 + 32 / 128}
# Format, rows, ratio asked to a bfloat16 product, order.
WEIGHT_ONLY = (
    *(("int4-g128", 1, 3.0, 0), ("int4-g128", 16, 2.0, 0), ("int4-g128", 4096, 0.9, 0)),
    *(("q8-b128", 1, 1.8, 0), ("int4-g128", 5, 2.0, 2), ("int4-g128", 37, 1.0, 2)),
)


def _drawn(torch: Any, rows: int, outputs: int, inputs: int) -> list[Any]:
    x = torch.randn(rows, inputs).bfloat16()
    return [x, (torch.randn(outputs, inputs) / inputs**0.5).bfloat16()]


def _check(bench: Bench, format: str, got: list[Any], ts: Any) -> float:
    """The distance from the product with the rounded weights, in float32."""
    x, w = ts
    rounded = bench.nm.quant.quantize(bench.from_torch(w), format).dequantize(bench.nm.float32)
    return distance(got[0], (x.float() @ bench.torch.from_dlpack(rounded).T).to(got[0].dtype))


def _int4_of_torch(torch: Any, x: Any, w: Any) -> list[Any]:
    """Operands of the kernel that torchao's INT4 weight-only layers call."""
    n, k = w.shape
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = torch.randn(k // 128, n, 2).bfloat16()
    return [x, packed, scales]


def bars(bench: Bench) -> Iterator[Bar]:
    torch, nm = bench.torch, bench.nm
    linear = torch.nn.functional.linear

    def product(x: Any, q: Any) -> Any:
        return x @ q.T

    def compared(
        name: str, format: str, rows: int, shape: tuple[int, int], asked: float, **more: Any
    ) -> Bar:
        # groups are whole, and rows as many as asked: kernels depend on both
        n, k = (64, 256) if bench.most else shape
        values: dict[str, Any] = {
            "theirs": linear,
            "ours": product,
            "check": partial(_check, bench, format),
            "tolerance": 2e-2,
        }
        return Comparison(
            family="quant",
            name=f"{name}, {rows} rows, {shape[0]}x{shape[1]}",
            inputs=partial(_drawn, torch, min(rows, bench.most or rows), n, k),
            prepared=lambda x, w: [x, nm.quant.quantize(w, format)],
            asked=asked,
            **{**values, **more},
        ).bar()

    for format, rows, asked, order in WEIGHT_ONLY:
        for shape in SHAPES:
            few = rows <= 64
            nbytes = shape[0] * shape[1] * BITS[format] / 8
            yield compared(
                *(format, format, rows, shape, asked),
                copies=16 if few else 1,
                captured=few,
                jitted=not few,
                nbytes=nbytes,
                share=MEMORY_SHARE if rows == 1 else 0.0,
                order=order if shape is SHAPES[0] else order + 1,
            )

    def rounding(activations: str) -> Any:
        return lambda x, q: nm.quant.matmul(x, q.T, activations=activations)

    yield compared(
        *("int8, dynamic", "int8-row", 4096, (4096, 4096), 1.4),
        ours=rounding("int8"),
        order=0,
    )
    yield compared(
        *("fp8 in blocks", "fp8-e4m3-b128", 8192, (8192, 8192), 1.5),
        ours=rounding("fp8"),
        tolerance=6e-2,
        order=0,
    )
    yield compared(
        *("int8, dynamic", "int8-row", 333, (4096, 4096), 1.0),
        ours=rounding("int8"),
        order=2,
    )
    if bench.device == "cuda":  # PyTorch has this kernel for GPUs alone
        for rows in (1, 16):
            yield compared(
                *("int4 against torchao's kernel", "int4-g128", rows, (4096, 4096), 1.0),
                prepared_theirs=partial(_int4_of_torch, torch),
                theirs=lambda x, w, s: torch.ops.aten._weight_int4pack_mm(x, w, 128, s),
                copies=16,
                captured=True,
                jitted=False,
            )
