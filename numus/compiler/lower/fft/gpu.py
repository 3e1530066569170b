"""Fourier transforms on GPUs: through shared memory, in steps where they are longer than that."""

from __future__ import annotations

from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.fft.kernel import Blocking, lower_steps
from numus.compiler.lower.fft.problem import FftProblem
from numus.compiler.lower.fft.steps import Step
from numus.compiler.lower.schedule import Candidate, family
from numus.kernels.fft import thread_steps


def _blocking(p: FftProblem, step: Step) -> Blocking:
    dtype, target = p.complex_dtype, p.target
    odd = thread_steps.largest_odd(dtype, target)
    length = p.layout.convolution or step.length
    radices = thread_steps.step_radices(length, step.length == p.length, odd)
    rows = step.inner if step.inner > 1 else step.outer
    are_columns = step.inner > 1 or p.are_columns
    width = thread_steps.block_width(length, rows, are_columns, dtype, target)
    threads = thread_steps.block_threads(length * width, target)
    return Blocking(width, threads, 1, radices, odd)


def _steps(p: FftProblem) -> Kernels:
    if p.layout.convolution or p.is_real:
        return lower_steps(p, (p.length,), _blocking)
    lengths = thread_steps.step_lengths(p.length, p.complex_dtype, p.target, p.are_columns)
    return lower_steps(p, lengths, _blocking)


lower_fft_gpu = family(FftProblem, Candidate("shared memory", _steps))
