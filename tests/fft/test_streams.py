"""Results of transforms that do not stay in the caches of a CPU are stored around them."""

import numpy as np
import pytest

import numus as nm
from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget, host
from numus.compiler import hooks
from numus.ir import statements
from numus.runtime.cpu.runtime import CpuRuntime

pytestmark = pytest.mark.on_cpu("kernels of its transforms")
TARGET = CpuRuntime().target
POINTS = 2 * TARGET.num_cores * TARGET.l2_bytes // 8  # twice what all L2 caches hold
RNG = np.random.default_rng(0)


def kernels(function, x):
    """The kernels of a function of an array, whose results are those of NumPy."""
    given, found = nm.asarray(x), []
    nm.eval(given)
    hooks.before_run.append(lambda _, plan, *__: found.extend(plan.steps))
    try:
        y = function(nm, given).numpy()
    finally:
        hooks.before_run.pop()
    want = function(np, x)
    assert np.linalg.norm(y - want) <= 1e-6 * np.linalg.norm(want)
    return [step.kernel for step in found]


def streams(kernel):
    return {s.streams for s in statements(kernel.body) if isinstance(s, ir.Store)}


def noise(*shape):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype("complex64")


@pytest.mark.parametrize("n", [16, 32, 64, 100, 1024])
def test_large_results_stream(n):
    x = noise(POINTS // n, n)
    (kernel,) = kernels(lambda library, z: library.fft.fft(z), x)
    whole_lines = n % 8 == 0 and n > 16
    assert (True in streams(kernel)) == (whole_lines and TARGET.streams_lines)
    around = "!nontemporal !" in render(kernel, host())
    if TARGET.vector_bytes < 64:  # by parts of lines, of some rows
        assert not around or True in streams(kernel)
    else:
        assert around == (True in streams(kernel))
    arm = LlvmTarget("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon")
    assert "!nontemporal !" not in render(kernel, arm)


def test_few_fill_buffers():
    """Targets differ in what they gain."""
    names = ("cascadelake", "znver4")
    x86 = [LlvmTarget("x86_64-unknown-linux-gnu", name, "+avx2,+avx512f") for name in names]
    assert [cpu.streams_lines for cpu in x86] == [False, True]
    assert not LlvmTarget("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon").streams_lines


def test_intermediate_and_small_results_do_not():
    columns, rows = kernels(lambda library, z: library.fft.fft(z), noise(1 << POINTS.bit_length()))
    assert streams(columns) == {False}
    assert (True in streams(rows)) == TARGET.streams_lines
    (kernel,) = kernels(lambda library, z: library.fft.fft(z), noise(64, 64))
    assert streams(kernel) == {False}


def test_results_within_lines():
    """A result that begins within a line is stored through the caches."""

    def behind(library, z):
        first = library.zeros(3, dtype=library.complex64)
        return library.concatenate([first, library.fft.fft(z).reshape(-1)])

    kernels(behind, noise(POINTS // 64, 64))
