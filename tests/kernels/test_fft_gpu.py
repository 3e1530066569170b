"""Transforms by threads, on an interpreted GPU."""

import math
from functools import partial

import fake_cuda_driver
import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.kernels.fft import thread_steps

simt_machine.install()
SLOW = partial(pytest.param, marks=pytest.mark.slow)
RNG = np.random.default_rng(0)


def check(shape, axis=-1, dtype="complex64", name="fft"):
    x = (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(dtype)
    found = getattr(nm.fft, name)(nm.asarray(x, device="simt"), axis=axis).numpy()
    want = getattr(np.fft, name)(x.astype("complex128"), axis=axis)
    bound = 4 * np.finfo(dtype).eps
    assert np.linalg.norm(found - want) <= bound * np.linalg.norm(want)


@pytest.mark.parametrize("n", [2, 6, 15, 16, 100, 3 * 17, 41, 512, 720, 1024])
def test_rows_in_shared_memory(n):
    check((3, n))


@pytest.mark.parametrize("n", [2048, 1025 * 3, SLOW(1 << 15)])
def test_rows_in_steps(n):
    check((2, n), name="ifft")


@pytest.mark.parametrize("n", [67, 131, 2 * 71, 227])
def test_convolutions_with_a_chirp(n):
    check((3, n))
    check((n, 9), axis=0, name="ifft")
    check((1, n), dtype="complex128")


@pytest.mark.parametrize(
    "shape", [(48, 9), (2, 60, 8), (512, 9), (2, 600, 8), (600, 3), SLOW((1 << 16, 8))]
)
def test_columns(shape):
    check(shape, axis=len(shape) - 2)


@pytest.mark.parametrize("n", [24, 34, 1536])
def test_double_precision(n):
    check((2, n), dtype="complex128")


@pytest.mark.parametrize("n", [4, 34, 250, 1000])
def test_real_rows_in_shared_memory(n):
    runtime = nm.device("simt").runtime
    x = RNG.normal(size=(5, n)).astype("float32")
    half = np.fft.rfft(x)
    runtime.launched.clear()
    found = nm.fft.rfft(nm.asarray(x, device="simt")).numpy()
    assert [program.name for program in runtime.launched] == ["fft"]
    bound = 4 * np.finfo("float32").eps
    assert np.linalg.norm(found - half) <= bound * np.linalg.norm(half)
    back = nm.fft.irfft(nm.asarray(half.astype("complex64"), device="simt")).numpy()
    assert np.linalg.norm(back - x) <= bound * np.linalg.norm(x)


def test_kernels_serve_any_number_of_rows():
    runtime = nm.device("simt").runtime
    texts = []
    for shape in ((67, 40), (69, 40), (2, 1600), (3, 1600)):
        runtime.launched.clear()
        check(shape)
        texts.append([program.text for program in runtime.launched])
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


@pytest.mark.parametrize("n", [64, 8192, 44_100, 1_048_575, 1 << 24])
@pytest.mark.parametrize("target", [simt_machine.TARGET, simt_machine.HOPPER])
def test_steps_multiply_to_the_length_and_fit_shared_memory(n, target):
    for columns in (False, True):
        steps = thread_steps.step_lengths(n, nm.complex64, target, columns)
        assert math.prod(steps) == n
        for length in steps:
            radices = thread_steps.step_radices(length, False, 61)
            assert math.prod(radices) == length
            width = thread_steps.block_width(length, n // length, True, nm.complex64, target)
            assert 8 * thread_steps.padded(length * width) <= target.shared_bytes


def test_transforms_share_a_launch(monkeypatch):
    """Loads of pairs are those of one iteration in a joint kernel, too."""
    driver, name = fake_cuda_driver.install(monkeypatch)
    x = nm.asarray(np.zeros(40, np.float32), device=name)
    nm.eval(x)
    before = driver.started
    nm.eval([nm.signal.welch(x, nperseg=16)[1], nm.signal.welch(x + 1, nperseg=16)[1]])
    assert 0 < driver.started - before < 8
