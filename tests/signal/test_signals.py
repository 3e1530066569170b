"""Convolutions, filters and spectra against SciPy: modes, lengths, states, errors, fusion."""

import warnings

import numpy as np
import pytest
import scipy.signal

import numus as nm

NULL = nm.device("null")


@pytest.fixture(autouse=True)
def on_the_reference_device():
    """Compositions are checked here; the op table runs them on other devices."""
    before = nm.default_device()
    nm.set_default_device("reference")
    yield
    nm.set_default_device(before)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def same(name, *args, bound=1e-9, **options):
    """All results of a function are SciPy's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = getattr(scipy.signal, name)(*args, **options)
    got = getattr(nm.signal, name)(*args, **options)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for a, b in pairs:
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=bound * max(1e-3, np.abs(b).max(initial=0)))


# -- convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve", "oaconvolve"])
def test_convolutions(name, mode):
    for n, m in [(7, 3), (8, 4), (3, 7), (1, 4), (6, 1)]:
        same(name, noise(n), noise(m, seed=1), mode)
    same(name, noise(6, 7), noise(2, 4), mode)
    same(name, noise(7), noise(3) + 1j * noise(3, seed=2), mode)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_long_signals_are_convolved_in_blocks(mode):
    same("fftconvolve", noise(10_000), noise(100), mode)
    same("oaconvolve", noise(100), noise(3_000), mode)
    same("oaconvolve", noise(3, 1000), noise(1, 20), mode, axes=1)
    same("oaconvolve", noise(3, 200, 90), noise(3, 5, 4), mode, axes=(1, 2))


def test_integers_are_convolved_exactly():
    x = np.arange(50) * 10**7 + 1
    for method in ("auto", "direct"):
        got = nm.signal.convolve(x, x[:7], method=method)
        np.testing.assert_array_equal(got.numpy(), np.convolve(x, x[:7]))
    same("convolve", np.arange(9), np.arange(4), method="fft")
    same("correlation_lags", 7, 4, "same")


def test_errors_of_convolutions():
    s, x = nm.signal, nm.ones(3)
    for call, message in [
        (lambda: s.convolve(x, nm.ones((2, 2))), "number of axes"),
        (lambda: s.convolve(x, x[:0]), "empty"),
        (lambda: s.convolve(x, x, "most"), "mode"),
        (lambda: s.convolve(x, x, method="slow"), "method"),
        (lambda: s.fftconvolve(nm.ones((2, 9)), nm.ones((5, 4)), "valid"), "at least as large"),
        (lambda: s.fftconvolve(nm.ones((2, 9)), nm.ones((3, 4)), axes=1), "broadcast"),
        (lambda: s.oaconvolve(nm.ones((2, 9)), nm.ones((2, 4)), axes=(1, 1)), "distinct"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    assert s.fftconvolve(x, x[:0]).shape == (0,)


# -- filters --------------------------------------------------------------------------------------

SOS = scipy.signal.ellip(7, 1, 60, 0.2, output="sos")
FILTERS = [scipy.signal.butter(4, 0.2), ([1.0, 0.5], [1.0]), ([0.3], [2.0, -0.9]), ([2.0], [4.0]),
           (scipy.signal.firwin(51, 0.3), [1.0]), ([1.0, 2, 3, 4], [1.0, 0.5])]  # fmt: skip


@pytest.mark.parametrize("n", [1, 5, 65, pytest.param(3000, marks=pytest.mark.slow)])
def test_filters_and_their_states(n):
    x = noise(2, n, 3)
    for b, a in FILTERS:
        same("lfilter", b, a, x, axis=1)
        order = max(len(a), len(b)) - 1
        same("lfilter", b, a, x, axis=1, zi=noise(2, order, 3))
    same("sosfilt", SOS, x, axis=1)
    same("sosfilt", SOS, x, axis=1, zi=noise(4, 2, 2, 3))
    if n > 50:
        for padtype in ("odd", "even", "constant", None):
            same("filtfilt", *scipy.signal.butter(3, 0.1), x, axis=1, padtype=padtype)
            same("sosfiltfilt", SOS, x, axis=1, padtype=padtype)
        for irlen in (None, 20):
            same("filtfilt", *scipy.signal.butter(3, 0.1), x, axis=1, method="gust", irlen=irlen)


def test_parts_of_a_signal_are_filtered_one_after_another():
    x = nm.asarray(noise(3, 500))
    state = nm.zeros((4, 3, 2), dtype=nm.float64)
    parts = []
    for start, stop in [(0, 7), (7, 300), (300, 500)]:
        y, state = nm.signal.sosfilt(SOS, x[:, start:stop], zi=state)
        parts.append(y)
    whole = nm.signal.sosfilt(SOS, x)
    np.testing.assert_allclose(nm.concat(parts, axis=1).numpy(), whole.numpy(), atol=1e-12)


def test_gradients_of_coefficients():
    x = nm.asarray(noise(50))

    def energy(b, a):
        return nm.sum(nm.signal.lfilter(b, a, x) ** 2)

    b, a = nm.asarray([0.5, 0.2]), nm.asarray([1.0, -0.6, 0.1])
    gb, ga = nm.grad(energy, argnums=(0, 1))(b.astype(nm.float64), a.astype(nm.float64))

    def host(b, a):
        return np.sum(scipy.signal.lfilter(b, a, x.numpy()) ** 2)

    step = 1e-6
    for i, g in enumerate((gb, ga)):
        for k in range(g.shape[0]):
            given = [np.array([0.5, 0.2]), np.array([1.0, -0.6, 0.1])]
            given[i][k] += step
            up = host(*given)
            given[i][k] -= 2 * step
            assert g[k].item() == pytest.approx((up - host(*given)) / (2 * step), rel=1e-5)


def test_filters_compile():
    x = nm.asarray(noise(2, 100).astype(np.float32), device="cpu")
    compiled = nm.jit(lambda x: nm.signal.sosfilt(SOS, x))
    np.testing.assert_allclose(compiled(x).numpy(), scipy.signal.sosfilt(SOS, x.numpy()), atol=1e-5)


def test_errors_of_filters():
    s, x = nm.signal, nm.ones((2, 9))
    for call, message in [
        (lambda: s.lfilter([1.0], [0.0], x), "zero"),
        (lambda: s.lfilter([], [1.0], x), "elements"),
        (lambda: s.lfilter([1.0], [0.0, 1.0], x), r"a\[0\] is zero"),
        (lambda: s.lfilter([1.0, 1.0], [1.0, 1.0], x, zi=np.ones((2, 2))), "zi"),
        (lambda: s.sosfilt(np.ones((1, 5)), x), "sections"),
        (lambda: s.sosfilt(np.full((1, 6), 2.0), x), "ones"),
        (lambda: s.filtfilt([1.0, 1.0], [1.0], x, padlen=10), "padlen"),
        (lambda: s.filtfilt([1.0, 1.0], [1.0], x, padtype="none"), "padtype"),
        (lambda: s.lfilter([1.0], [1.0], x, axis=2), "axis"),
    ]:
        with pytest.raises((ValueError, IndexError), match=message):
            call()


@pytest.mark.parametrize(("n", "m"), [(1, 3), (5, 8), (8, 5), (8, 4), (9, 9), (12, 20)])
def test_resampling(n, m):
    same("resample", noise(n, 2), m)
    same("resample", noise(n, 2) + 1j * noise(n, 2, seed=1), m)
    for padtype in ("constant", "line", "mean") if n > 1 else ("constant",):
        same("resample_poly", noise(n, 2), m, n, padtype=padtype)


def test_other_rates():
    x = noise(2, 200)
    same("resample", x, 70, axis=1, window="hann")
    same("resample", x[0], 100, t=np.linspace(0, 1, 200))
    same("resample", x[:, :7] + 1j * x[:, 7:14], 9, axis=1, window="hann")
    same("resample_poly", x, 3, 2, axis=1, cval=2.0)
    same("resample_poly", x, 2, 3, axis=1, padtype="median")
    same("upfirdn", noise(7), x, 3, 5)
    for mode in ("wrap", "edge", "smooth", "symmetric", "reflect", "antisymmetric", "antireflect"):
        same("resample_poly", x[:, :60] + 1j * x[:, 60:120], 5, 7, axis=1, padtype=mode)
        same("upfirdn", noise(40), x[:, :6], 3, 2, mode=mode)  # taps reach far beyond the ends
    same("upfirdn", noise(20), x[:, :9], 2, 3, mode="line", axis=0)
    same("upfirdn", noise(5), x[:, :9], mode="constant", cval=2.0)
    for options in ({}, {"ftype": "fir"}, {"zero_phase": False}, {"n": 4}):
        same("decimate", x, 3, **options)
    same("detrend", x, bp=[30, 50])
    same("hilbert", x, N=230)
    for window, order in [(5, 2), (6, 2), (1, 0)]:
        for mode in ("interp", "mirror", "constant", "nearest", "wrap"):
            same("savgol_filter", x, window, order, deriv=min(1, order), delta=0.5, mode=mode)
    for call, message in [
        (lambda: nm.signal.resample(x, 0), "at least 1"),
        (lambda: nm.signal.resample_poly(x, 0, 1), "at least 1"),
        (lambda: nm.signal.resample_poly(x, 1, 2, padtype="mean", cval=1.0), "no effect"),
        (lambda: nm.signal.hilbert(x, N=0), "positive"),
        (lambda: nm.signal.savgol_filter(x, 3, 3), "polyorder"),
        (lambda: nm.signal.savgol_filter(x, 300, 3), "longer"),
        (lambda: nm.signal.detrend(x, bp=[900]), "breakpoints"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


# -- spectra --------------------------------------------------------------------------------------

X, Y = noise(2, 600), noise(2, 600, seed=1)


@pytest.mark.parametrize(
    "options",
    [{}, {"nperseg": 101, "noverlap": 75}, {"nfft": 300}, {"detrend": "linear", "nperseg": 64},
     {"boundary": None}, {"boundary": "even"}, {"boundary": "odd"}, {"boundary": "constant"},
     {"padded": False, "nperseg": 77}, {"scaling": "psd", "fs": 10.0},
     {"window": np.hanning(50), "nperseg": 50}],
)  # fmt: skip
def test_stft(options):
    same("stft", X, **options)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"nperseg": 101, "noverlap": 75}, {"nperseg": 60, "noverlap": 50}]
)
def test_istft_restores_the_signal(options, real):
    x = X if real else X + 1j * Y
    z = nm.signal.stft(x, **options)[2]
    t, y = nm.signal.istft(z, input_onesided=real, **options)
    assert t.shape == y.shape[-1:]
    assert np.abs(y.numpy()[:, :600] - x).max() <= 1e-12
    narrow = nm.signal.stft(x.astype("f4" if real else "c8"), **options)[2]
    single = nm.signal.istft(narrow, input_onesided=real, **options)[1]
    assert np.abs(single.numpy()[:, :600] - x).max() <= 3e-6


def test_axes_of_spectra():
    same("stft", X.T, axis=0, nperseg=64)
    z = scipy.signal.stft(X.T, axis=0, nperseg=64)[2]
    want = scipy.signal.istft(z, nperseg=64, freq_axis=0)[1]
    got = nm.signal.istft(z, nperseg=64, freq_axis=0)[1]
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)
    same("welch", X.T, axis=0, nperseg=100)
    same("csd", X.T, Y.T, axis=0, nperseg=100)


@pytest.mark.parametrize(
    "options",
    [{}, {"nperseg": 100}, {"nfft": 512, "nperseg": 300}, {"detrend": False},
     {"scaling": "spectrum", "fs": 5.0}, {"return_onesided": False},
     {"average": "median", "nperseg": 100}],
)  # fmt: skip
def test_averaged_spectra(options):
    same("welch", X, **options)
    same("csd", X, Y, **options)
    if "average" not in options:
        same("spectrogram", X, **options)
    if not {"scaling", "return_onesided", "average"} & set(options):
        same("coherence", X, Y, **options)
    if not {"nperseg", "average"} & set(options):
        same("periodogram", X, **options)


@pytest.mark.parametrize("mode", ["complex", "magnitude", "angle", "phase"])
def test_spectrograms(mode):
    same("spectrogram", X, mode=mode, nperseg=64, bound=1e-7)


def test_errors_of_spectra():
    s = nm.signal
    for call, message in [
        (lambda: s.stft(X, nperseg=0), "at least 1"),
        (lambda: s.stft(X, noverlap=256), "less than nperseg"),
        (lambda: s.stft(X, nfft=100), "nfft"),
        (lambda: s.stft(X, window=np.ones((2, 2))), "vector"),
        (lambda: s.stft(X, boundary="round"), "boundary"),
        (lambda: s.stft(X[:, :0]), "no samples"),
        (lambda: s.istft(np.ones(4)), "2 axes"),
        (lambda: s.welch(X, average="mode"), "average"),
        (lambda: s.spectrogram(X, mode="loud"), "mode"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.warns(UserWarning, match="uncovered"):
        s.istft(np.ones((33, 5)), nperseg=64, noverlap=0)


def test_frames_and_windows_run_inside_the_transform():
    x = nm.asarray(np.zeros((2, 4096), np.float32), device=NULL)

    def run():
        nm.eval(nm.signal.stft(x, nperseg=256)[2])

    run()
    NULL.runtime.reset()
    run()
    assert NULL.runtime.reset().kernels <= 3


def test_frames_are_read_without_divisions():
    """A sample's index is a sum, though frames are blocks of a stride."""
    x = nm.asarray(np.zeros(1 << 16, np.float32), device=NULL)
    for overlap in (384, 100):
        NULL.runtime.reset()
        nm.eval(nm.signal.stft(x, nperseg=512, noverlap=overlap)[2])
        (transform,) = (p.text for p in NULL.runtime.launched if p.text.count("fma") > 9)
        loads = transform[transform.index(": lanes") :]
        assert "idiv" not in loads
        assert "irem" not in loads
