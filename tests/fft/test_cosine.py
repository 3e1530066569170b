"""Cosine, sine and Hankel transforms against SciPy: types, lengths, normalisations, errors."""

import warnings

import numpy as np
import pytest
import scipy.fft

import numus as nm
from numus.fft import transform, trigonometric
from numus.functions.template_cache import clear_templates


def noise(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def near(got, want, bound=1e-12):
    np.testing.assert_allclose(np.asarray(got), want, atol=bound * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idst"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_types_lengths_and_norms(name, kind):
    ours, theirs = getattr(nm.fft, name), getattr(scipy.fft, name)
    for n in (2, 5, 6, 35):
        x = noise(2, n)
        near(ours(x, kind), theirs(x, kind))
    for norm in (None, "ortho", "forward"):
        for ortho in (None, True, False):
            options = {"type": kind, "norm": norm, "orthogonalize": ortho}
            near(ours(x[:, :12], **options), theirs(x[:, :12], **options))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["dct", "dst"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_lengths_to_300(name, kind):
    """All short lengths, and every third of the others, which differ between types."""
    for n in (*range(2, 33), *range(33 + (kind + (name == "dst")) % 3, 301, 3)):
        x = noise(2, n)
        near(getattr(nm.fft, name)(x, kind), getattr(scipy.fft, name)(x, kind))


def test_errors():
    x = nm.ones((2, 1))
    for function in (nm.fft.dct, nm.fft.idct, nm.fft.dctn):
        with pytest.raises(ValueError, match="at least 2"):
            function(x, 1)
        with pytest.raises(ValueError, match="type is 5"):
            function(x, 5)
        with pytest.raises(ValueError, match="norm is 'none'"):
            function(x, norm="none")
    with pytest.raises(ValueError, match="at least 1"):
        nm.fft.dst(x[:, :0])
    with pytest.raises(ValueError, match="no points"):
        nm.fft.fht(x[:, :0], 0.1, 0.0)
    with pytest.raises(TypeError, match="complex"):
        nm.fft.fht(x * 1j, 0.1, 0.0)


@pytest.mark.parametrize("name", ["fht", "ifht"])
@pytest.mark.parametrize("n", [1, 6, 15])
def test_hankel_transforms(name, n):
    x = noise(2, n)
    for mu, offset, bias in [(0.0, 0.0, 0.0), (0.5, 0.3, 0.4), (-0.3, 0.2, -1.5), (2.0, 1.0, -0.9)]:
        near(
            getattr(nm.fft, name)(x, 0.1, mu, offset, bias),
            getattr(scipy.fft, name)(x, 0.1, mu, offset=offset, bias=bias),
            1e-10,
        )


def test_singular_hankel_transforms():
    x = noise(8)
    for name, bias in [("fht", -1.0), ("ifht", 1.0), ("fht", 1.0)]:
        found = []
        for module in (nm.fft, scipy.fft):
            with warnings.catch_warnings(record=True) as raised:
                warnings.simplefilter("always")
                with np.errstate(all="ignore"):
                    y = np.asarray(getattr(module, name)(x, 0.1, 0.0, 0.0, bias))
            found.append((y, len(raised)))
        (ours, warned), (theirs, expected) = found
        assert warned == expected
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_offsets():
    for mu, bias, initial in [(0.0, 0.0, 0.0), (0.5, 0.4, 0.5), (2.0, 0.0, -3.0)]:
        want = scipy.fft.fhtoffset(0.1, mu, initial, bias)
        assert nm.fft.fhtoffset(0.1, mu, initial, bias) == pytest.approx(want, abs=1e-10)


def test_long_transforms_read_their_parts_in_order(monkeypatch):
    monkeypatch.setattr(trigonometric, "_is_read_in_parts", lambda n, device: True)
    for name, kind in (("dct", 1), ("dct", 2), ("dst", 1)):
        for n in (6, 35):
            x = noise(2, n)
            near(getattr(nm.fft, name)(x, kind), getattr(scipy.fft, name)(x, kind))


@pytest.fixture
def several_passes(monkeypatch):
    """Transforms of half the length of a real signal are not in a core's cache."""
    with monkeypatch.context() as patch:
        patch.setattr(transform, "_is_one_pass", lambda half, x: False)
        clear_templates()
        yield
    clear_templates()


@pytest.mark.usefixtures("several_passes")
@pytest.mark.parametrize("n", [2, 4, 6, 34])
def test_spectra_in_parts(n):
    """Both ends of the spectrum of a long real signal are parts of their own."""
    x = noise(3, n)
    near(nm.fft.rfft(x), scipy.fft.rfft(x))
    near(nm.fft.irfft(nm.fft.rfft(x)), x)
    for name in ("dct", "dst"):
        for kind in (1, 2, 3, 4):
            near(getattr(nm.fft, name)(x, kind), getattr(scipy.fft, name)(x, kind))
    weight = noise(n // 2 + 1)
    loss = lambda x: (nm.abs(nm.fft.rfft(x)) ** 2 * weight).sum()
    spectrum = scipy.fft.rfft(x) * weight
    spectrum[:, 1 : n // 2] *= 0.5  # which stand for two
    both = 2 * n * scipy.fft.irfft(spectrum, n)
    near(nm.grad(loss)(nm.asarray(x)), both)
