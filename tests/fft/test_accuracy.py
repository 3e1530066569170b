"""Errors of transforms against a reference in higher precision, beside pocketfft's."""

import numpy as np
import pytest
import scipy.fft

import numus as nm

# smooth numbers, primes, twice a prime, 2^k - 1 and 2^k + 1
LARGE = [
    *(2**12, 2**14, 2**16, 2**18, 2**20, 3**8, 5**6, 7**5, 11**4, 13**4, 3 * 2**14, 15 * 2**12),
    *(44_100, 48_000, 30_030, 46_189, 65_520, 98_304, 100_000, 103_680, 117_649, 147_456),
    *(4099, 5003, 6007, 7919, 9973, 10_007, 16_411, 20_011, 32_771, 50_021, 65_537, 100_003),
    *(2 * 4099, 2 * 5003, 2 * 7919, 2 * 10_007, 2 * 16_411, 2 * 20_011, 2 * 32_771, 2 * 50_021),
    *(2**12 - 1, 2**12 + 1, 2**13 - 1, 2**13 + 1, 2**14 - 1, 2**14 + 1, 2**15 - 1, 2**15 + 1),
    *(2**16 - 1, 2**17 - 1, 2**17 + 1, 2**18 - 1, 2**18 + 1, 2**19 - 1, 2**19 + 1, 2**20 - 1),
    *(127 * 127, 211 * 16),
]  # fmt: skip


def relative_rms(got, want):
    size = np.linalg.norm(want)
    return float(np.linalg.norm(np.asarray(got) - want) / size)


def ratios(n, dtype, names=("fft",), device="cpu"):
    """Our error over pocketfft's, of each function at one length."""
    rng = np.random.default_rng(n)
    shape = (max(2, 1024 // n), n)
    z = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    floor = np.finfo(dtype).eps / 4  # tiny lengths have exact results
    for name in names:
        x = z.real if name == "rfft" else z[:, : n // 2 + 1] if name == "irfft" else z
        args = (n,) if name == "irfft" else ()
        wide = x.astype(np.longdouble if name == "rfft" else np.clongdouble)
        want = getattr(np.fft, name)(wide, *args)
        ours = getattr(nm.fft, name)(nm.asarray(np.ascontiguousarray(x), device=device), *args)
        theirs = getattr(scipy.fft, name)(x, *args)
        yield name, relative_rms(ours, want) / max(relative_rms(theirs, want), floor)


def failures(lengths, dtype, bounds):
    found = ((n, *each) for n in lengths for each in ratios(n, dtype, tuple(bounds)))
    return [(n, name, ratio) for n, name, ratio in found if ratio > bounds[name]]


def test_lengths():
    lengths = (*range(1, 18), 25, 31, 32, 49, 64, 77, 81, 97, 121, 128, 211, 256)
    assert not failures(lengths, "complex64", {"fft": 1.5})


def test_double_precision():
    assert not failures(
        (8, 15, 17, 77, 131, 211, 422, 1000), "complex128", {"fft": 1.5, "ifft": 1.5}
    )


ALL = {"fft": 1.5, "ifft": 1.5, "rfft": 1.5, "irfft": 1.5}


def bounds_of(n, every):
    """Every length is transformed forward; the others, whose butterflies are the same, are sampled:
    one of them at one length in `every`."""
    others = [name for name in ALL if name != "fft"]
    chosen = np.random.default_rng(n).integers(every * len(others))
    return {name: ALL[name] for name in ("fft", *others[chosen : chosen + 1])}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("start", [1, 513, 1025, 1537])
def test_lengths_to_2048(start, dtype):
    """Every length in single precision, every third in double: their kernels have other vectors."""
    lengths = range(start, start + 512, 1 if dtype == "complex64" else 3)
    assert not [x for n in lengths for x in failures((n,), dtype, bounds_of(n, every=8))]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_large_lengths(dtype):
    assert len(LARGE) >= 60
    assert not [x for n in LARGE for x in failures((n,), dtype, bounds_of(n, every=1))]
