"""Fourier transforms on CPUs: lanes along a row, or a row or column of a matrix per lane."""

from __future__ import annotations

from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.fft.in_cache import lower_in_cache
from numus.compiler.lower.fft.kernel import Blocking, lower_steps
from numus.compiler.lower.fft.planes import lower_planes
from numus.compiler.lower.fft.problem import FftProblem
from numus.compiler.lower.fft.steps import Step
from numus.compiler.lower.schedule import Candidate, family
from numus.kernels.fft.radices import LARGEST_RADIX, radices_of, split
from numus.kernels.fft.tables import TUNING, column_limit

L2_SHARE = 2  # of a core's L2 cache, of which a row takes one at most
ROWS_PER_CORE = 4  # at least: they are shared out evenly


def _is_along(p: FftProblem) -> bool:
    """Lanes run along each row: it is contiguous and long enough for whole vectors."""
    return p.layout.first_radix > 0 and not p.rows_are_adjacent


def _is_per_lane(p: FftProblem) -> bool:
    """There is a row for every lane, and a vector of rows stays in L2."""
    return p.rows >= p.layout.vector and p.length <= 2 * column_limit(p.complex_dtype, p.target)


def _largest_radix(p: FftProblem) -> int:
    return LARGEST_RADIX if p.target.vector_registers >= 32 else 8


def _blocking(p: FftProblem, step: Step) -> Blocking:
    vector, largest = p.layout.vector, _largest_radix(p)
    odd = 5 if p.is_small else LARGEST_RADIX
    if step.inner == 1 and _is_along(p):
        first = p.layout.first_radix
        rest = radices_of(step.length // first, largest, odd)
        return Blocking(1, 0, vector, (first, *rest), odd)
    width = vector if step.inner > 1 or _is_per_lane(p) else 1
    if step.inner > 1:
        half_l2 = column_limit(p.complex_dtype, p.target) // 2  # points and results take the rest
        limit = min(TUNING.max_vectors, half_l2 // step.length)
        tasks = step.outer * step.inner // vector
        width *= max(1, min(limit, tasks // (4 * p.target.num_cores)))
    return Blocking(width, 0, vector, radices_of(step.length, largest, odd), odd)


def _in_cache(p: FftProblem) -> bool:
    is_long = p.length >= TUNING.min_split_length
    is_underfilled = p.rows < p.target.num_cores and is_long
    if p.is_real or p.is_inverse_real:
        return True
    fits = _is_along(p) or _is_per_lane(p) or not is_long
    return fits and not is_underfilled


def _rows(p: FftProblem) -> Kernels:
    return lower_steps(p, (p.length,), _blocking)


def _fits_l2(p: FftProblem) -> bool:
    """A row is two steps, both in the L2 cache of a core, and there are enough rows for all."""
    if p.is_real or p.is_inverse_real or p.rows_are_adjacent or len(p.layout.steps) != 2:
        return False
    fits = L2_SHARE * p.length * p.complex_dtype.itemsize <= p.target.l2_bytes
    return fits and p.rows >= ROWS_PER_CORE * p.target.num_cores


def _rows_in_cache(p: FftProblem) -> Kernels:
    return lower_in_cache(p, _largest_radix(p), LARGEST_RADIX)


def _four_step(p: FftProblem) -> Kernels:
    """Steps whose lanes are rows: a vector of them stays in L2."""
    limit = column_limit(p.complex_dtype, p.target)
    return lower_steps(p, split(p.length, min(limit, max(2, p.length // 2))), _blocking)


def _planes(p: FftProblem) -> Kernels:
    return lower_planes(p, _largest_radix(p), LARGEST_RADIX)


lower_fft = family(
    FftProblem,
    Candidate("plane per task", _planes, lambda p: p.is_plane),
    Candidate("row per task", _rows, _in_cache),
    Candidate("four-step row per task", _rows_in_cache, _fits_l2),
    Candidate("four-step", _four_step),
)
