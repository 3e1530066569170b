"""Fourier transforms on GPUs: through shared memory, in steps where they are longer than that."""

from __future__ import annotations

from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.fft.problem import Blocking, FftProblem, Step, lower_steps
from numus.compiler.lower.schedule import Candidate, family
from numus.kernels.fft import thread_steps


def _blocking(p: FftProblem, step: Step) -> Blocking:
    dtype, target = p.complex_dtype, p.target
    odd = thread_steps.largest_odd(dtype, target)
    radices = thread_steps.step_radices(step.length, step.length == p.length, odd)
    rows = step.inner if step.inner > 1 else step.outer
    are_columns = step.inner > 1 or p.are_columns
    width = thread_steps.block_width(step.length, rows, are_columns, dtype, target)
    threads = thread_steps.block_threads(step.length * width, target)
    return Blocking(width, threads, 1, radices, odd)


def _steps(p: FftProblem) -> Kernels:
    lengths = thread_steps.step_lengths(p.length, p.complex_dtype, p.target, p.are_columns)
    return lower_steps(p, lengths, _blocking)


lower_fft_gpu = family(FftProblem, Candidate("shared memory", _steps))
