"""Fourier transforms on GPUs: through shared memory, in steps where they are longer than that."""

from __future__ import annotations

from dataclasses import dataclass

from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.fft.problem import Blocking, FftProblem, Step, lower_steps
from numus.compiler.lower.schedule import Candidate, family
from numus.kernels.fft.radices import LARGEST_RADIX, radices_of
from numus.kernels.fft.stockham import padded


@dataclass(frozen=True)
class FftTuning:
    """From the sizes of shared memory and of a coalesced access."""

    max_length: int = 4096  # of a transform in shared memory
    coalesced_rows: int = 16  # adjacent rows of a block: accesses of 128 bytes
    min_rows: int = 8  # of a block whose rows are a part of longer ones: accesses of 64 bytes
    min_part: int = 256  # points of such a row, where a block has room for four
    max_thread_length: int = 16  # rows that take two passes, so that threads share accesses
    min_threads: int = 32


TUNING = FftTuning()


def _capacity(p: FftProblem) -> int:
    """Points in the shared memory of a block: two buffers, a power of two. Two blocks share a
    multiprocessor, unless a block's memory is all there is to know."""
    target = p.target
    most = target.shared_bytes if target.static_shared else target.shared_bytes // 2
    points = 2
    while 2 * p.val.dtype.itemsize * padded(2 * points) <= most:
        points *= 2
    return points


def _largest_radix(step: Step) -> int:
    """Of short rows a smaller one: with a pass more, adjacent threads access adjacent points."""
    return 4 if step.inner == 1 and step.length <= TUNING.max_thread_length else LARGEST_RADIX


def _blocking(p: FftProblem, step: Step) -> Blocking:
    largest = _largest_radix(step)
    radices = radices_of(step.length, largest, LARGEST_RADIX)
    max_threads = p.target.block_size
    butterflies = step.length // min(r for r in radices if r > 1 or len(radices) == 1)
    rows = step.inner if step.inner > 1 else step.outer
    wanted = TUNING.coalesced_rows if step.inner > 1 else max_threads // max(1, butterflies)
    width = 1
    while width * 2 <= min(wanted, rows) and 2 * width * step.length <= _capacity(p):
        width *= 2
    threads = TUNING.min_threads
    while threads < max_threads and threads < butterflies * width:
        threads *= 2
    return Blocking(width, min(threads, max_threads), 1, radices, LARGEST_RADIX)


def _steps(p: FftProblem) -> Kernels:
    capacity = _capacity(p)
    limit = min(TUNING.max_length, capacity)
    if p.length > limit:  # parts whose adjacent rows fill whole accesses
        limit = max(limit // TUNING.min_rows, min(TUNING.min_part, capacity // 4), 2)
    return lower_steps(p, limit, _blocking)


lower_fft_gpu = family(FftProblem, Candidate("shared memory", _steps))
