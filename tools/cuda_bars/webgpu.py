"""WebGPU: transforms and products of packed weights, as a share of the memory's speed.

Products are those of a decoder's step: in a jitted program, with weights that exceed L2. Calls
follow each other without a wait: a figure is the time of the device, unless the host takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tools.cuda_bars.bars import BANDWIDTH, Bar, Figure
from tools.cuda_bars.quant import BITS
from tools.cuda_timing import Bench, by_clock, measure

FFT_BYTES_PER_SECOND = 1e12
MEMORY_SHARE = 0.6


def _milliseconds(bench: Bench, call: Callable[[], Any]) -> float:
    """After a warm-up: clocks fall while kernels are compiled."""
    wait = bench.nm.device("webgpu").runtime.synchronize
    end = time.perf_counter() + bench.seconds
    call()
    while time.perf_counter() < end:
        call()
        wait()
    return measure(call, by_clock(wait), bench.seconds)


def _transform(bench: Bench) -> Iterator[Figure]:
    nm = bench.nm
    n = 1 << (10 if bench.most else 24)
    parts = [nm.random.normal((n,)).to("webgpu") for _ in "ri"]
    x = parts[0] + 1j * parts[1]
    nm.eval(x)
    ms = _milliseconds(bench, lambda: nm.eval(nm.fft.fft(x)))
    rate = 16 * n / (ms * 1e-3)
    told = "webgpu: fft 2^24 complex64, of 1 TB/s"
    yield Figure(told, rate / FFT_BYTES_PER_SECOND, 1.0, "", ms={"numus": ms})


def _product(format: str, bench: Bench) -> Iterator[Figure]:
    nm = bench.nm
    n, k = (64, 256) if bench.most else (14336, 4096)
    w = nm.random.normal((n, k)).to("webgpu")
    x, copies = nm.random.normal((1, k)).to("webgpu"), list[Any]()
    for i in range(1 if bench.most else 32):  # with fewer, a submission takes the host longer
        copies.append(nm.quant.quantize(w * float(i + 1), format))
        nm.eval(copies[-1], x)
    products = nm.jit(lambda x: [x @ q.T for q in copies])
    ms = _milliseconds(bench, lambda: products(x)) / len(copies)
    share = n * k * BITS[format] / 8 / (ms * 1e-3) / BANDWIDTH
    told = f"webgpu: {format}, 1 row, 14336x4096, of memory's speed"
    yield Figure(told, share, MEMORY_SHARE, "", ms={"numus": ms})


def bars(bench: Bench) -> Iterator[Bar]:
    """None where there is no adapter."""
    if not any(d.name.startswith("webgpu") for d in bench.nm.devices()):
        return
    yield Bar("webgpu", "fft 2^24", _transform)
    for format in BITS:
        yield Bar("webgpu", format, partial(_product, format))
