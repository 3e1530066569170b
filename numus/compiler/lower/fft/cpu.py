"""Fourier transforms on CPUs: a row per task, or adjacent and short rows one per lane."""

from __future__ import annotations

from dataclasses import dataclass

from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.fft.problem import Blocking, FftProblem, Step, lower_steps
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.schedule import Candidate, family
from numus.kernels.fft.radices import LARGEST_RADIX


@dataclass(frozen=True)
class FftTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    max_lane_length: int = 512  # of lone rows that run one per lane
    min_parallel_length: int = 1 << 15  # of few rows that are worth several threads


TUNING = FftTuning()


def _vector(p: FftProblem) -> int:
    return max(1, p.target.vector_bytes // p.part.itemsize)


def _blocking(p: FftProblem, step: Step) -> Blocking:
    vector = _vector(p)
    short = step.length <= TUNING.max_lane_length and step.outer >= vector
    width = vector if step.inner > 1 or short else 1
    largest = LARGEST_RADIX if p.target.vector_registers >= 32 else 8
    # little data: few kernels beat fast ones
    odd = 5 if p.val.size <= LOOPS.small_elements else LARGEST_RADIX
    return Blocking(width, 0, vector, largest, odd)


def _limit(p: FftProblem) -> int:
    """The longest row whose two scratch buffers and operand stay in L2."""
    return max(2, p.target.l2_bytes // (4 * p.val.dtype.itemsize))


def _in_cache(p: FftProblem) -> bool:
    is_underfilled = p.rows < p.target.num_cores and p.length >= TUNING.min_parallel_length
    return p.length <= _limit(p) and not is_underfilled


def _rows(p: FftProblem) -> Kernels:
    return lower_steps(p, p.length, _blocking)


def _four_step(p: FftProblem) -> Kernels:
    """Steps whose lanes are rows: a vector of them stays in L2."""
    limit = max(2, _limit(p) // _vector(p))
    return lower_steps(p, min(limit, max(2, p.length // 2)), _blocking)


lower_fft = family(
    FftProblem,
    Candidate("row per task", _rows, _in_cache),
    Candidate("four-step", _four_step),
)
