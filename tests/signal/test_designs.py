"""Windows and filter designs against SciPy's."""

import warnings

import numpy as np
import pytest
import scipy.signal

import numus as nm

ARGUMENTS = {
    **{"general_cosine": ([0.3, 0.4, 0.2],), "general_hamming": (0.6,), "gaussian": (3.0,)},
    **{"general_gaussian": (1.5, 2.0), "kaiser": (5.0,), "chebwin": (60.0,), "dpss": (0.9,)},
    **{"kaiser_bessel_derived": (4.0,)},
}
NAMES = [n for n in scipy.signal.windows.__all__ if n != "get_window"]


@pytest.mark.parametrize("name", NAMES)
def test_windows(name):
    ours, theirs = (getattr(m.windows, name) for m in (nm.signal, scipy.signal))
    args = ARGUMENTS.get(name, ())
    derived = name == "kaiser_bessel_derived"
    sizes = (
        (2, 8, 64) if derived else (3, 4, 8, 9, 33) if name == "dpss" else (0, 1, 2, 3, 4, 9, 64)
    )
    for n in sizes:
        for sym in (True,) if derived else (True, False):
            got = ours(n, *args, sym=sym, dtype=nm.float64)
            np.testing.assert_allclose(got.numpy(), theirs(n, *args, sym=sym), atol=1e-12)
    assert ours(8, *args).dtype is nm.float32


@pytest.mark.parametrize(
    "window", ["hann", "hamm", ("tukey", 0.3), 8.0, "hann_symmetric", "taylor", "poisson",
               "triangle", ("exponential", None, 3.0), ("dpss", 2.0)],
)  # fmt: skip
def test_windows_by_name(window):
    want = scipy.signal.get_window(window, 16)
    got = nm.signal.get_window(window, 16, dtype=nm.float64)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.parametrize("norm", [None, 2, "approximate", "subsample"])
def test_slepian_sequences(norm):
    for many in (None, 3):
        want = scipy.signal.windows.dpss(32, 2.5, many, norm=norm, return_ratios=True)
        options = {"norm": norm, "return_ratios": True, "dtype": nm.float64}
        for a, b in zip(nm.signal.windows.dpss(32, 2.5, many, **options), want, strict=True):
            np.testing.assert_allclose(a.numpy(), b, atol=1e-10)


def test_errors_of_windows():
    windows = nm.signal.windows
    for call, message in [
        (lambda: windows.hann(-1), "at least 0"),
        (lambda: windows.exponential(5, center=2.0), "sym=False"),
        (lambda: windows.kaiser_bessel_derived(5, 1.0), "even"),
        (lambda: windows.dpss(8, 4.5), "below M / 2"),
        (lambda: windows.dpss(8, 2.0, 9), "Kmax"),
        (lambda: windows.dpss(8, 2.0, norm="none"), "norm"),
        (lambda: windows.get_window("round", 8), "no window 'round'"),
        (lambda: windows.get_window("kaiser", 8), "arguments"),
        (lambda: windows.get_window(None, 8), "must be a name"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.warns(UserWarning, match="45 dB"):
        windows.chebwin(8, 30.0)


BANDS = [("low", 0.3), ("high", 0.3), ("bandpass", [0.2, 0.5]), ("bandstop", [0.2, 0.5]),
         ("low", 0.01)]  # fmt: skip
FAMILIES = [("butter", ()), ("cheby1", (1.0,)), ("cheby2", (40.0,)), ("ellip", (1.0, 40.0)),
            ("ellip", (0.1, 80.0))]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), FAMILIES)
@pytest.mark.parametrize("output", ["ba", "zpk", "sos"])
def test_designs_are_within_1e_10_of_scipy(name, args, output):
    for order in (1, 2, 5, 8):
        for band, wn in BANDS:
            for analog in (False, True) if output != "sos" else (False,):
                options = {"btype": band, "analog": analog, "output": output}
                want = getattr(scipy.signal, name)(order, *args, wn, **options)
                got = getattr(nm.signal, name)(order, *args, wn, **options)
                pairs = [(got, want)] if output == "sos" else zip(got, want, strict=True)
                for a, b in pairs:
                    a, b = np.asarray(a), np.asarray(b)
                    if output == "zpk":
                        a, b = (np.sort_complex(np.atleast_1d(c).round(11)) for c in (a, b))
                    assert a.shape == b.shape
                    error = np.abs(a - b) / np.maximum(1, np.abs(b))
                    assert error.max(initial=0) <= 1e-10


def test_rates_and_generic_designs():
    want = scipy.signal.butter(3, [100, 200], "bandpass", fs=1000, output="sos")
    got = nm.signal.iirfilter(3, [100, 200], btype="band", fs=1000, output="sos")
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)
    want = scipy.signal.iirfilter(3, 0.2, rp=1, rs=50, btype="low", ftype="ellip")
    got = nm.signal.iirfilter(3, 0.2, rp=1, rs=50, btype="low", ftype="ellip")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b, atol=1e-12)


@pytest.mark.parametrize(
    ("taps", "cutoff", "options"),
    [(11, 0.3, {}), (12, 0.3, {}), (11, 0.3, {"pass_zero": False}), (11, [0.2, 0.5], {}),
     (11, [0.2, 0.5], {"pass_zero": "bandpass"}), (31, [0.1, 0.3, 0.6], {}),
     (21, 0.3, {"width": 0.1}), (21, 1000, {"fs": 8000}),
     (21, 0.3, {"scale": False, "window": ("kaiser", 5.0)})],
)  # fmt: skip
def test_firwin(taps, cutoff, options):
    want = scipy.signal.firwin(taps, cutoff, **options)
    np.testing.assert_allclose(nm.signal.firwin(taps, cutoff, **options).numpy(), want, atol=1e-14)


def test_errors_of_designs():
    s = nm.signal
    for call, message in [
        (lambda: s.butter(0, 0.3), "at least 1"),
        (lambda: s.butter(2, 1.5), "half the sampling rate"),
        (lambda: s.butter(2, [0.3, 0.2], "bandpass"), "lower"),
        (lambda: s.butter(2, 0.3, "bandpass"), "2"),
        (lambda: s.butter(2, 0.3, "middle"), "btype"),
        (lambda: s.butter(2, 0.3, output="tf"), "output"),
        (lambda: s.butter(2, 0.3, analog=True, fs=10.0), "analog"),
        (lambda: s.cheby1(2, -1.0, 0.3), "positive"),
        (lambda: s.ellip(2, 40.0, 1.0, 0.3), "less than"),
        (lambda: s.firwin(10, 0.3, pass_zero=False), "odd numtaps"),
        (lambda: s.firwin(11, [0.5, 0.3]), "ascend"),
        (lambda: s.firwin(11, 1.3), "below"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_mel_scales(scale):
    hz = np.array([0.0, 440.0, 1000.0, 4000.0])
    mels = nm.signal.hz_to_mel(hz, scale)
    np.testing.assert_allclose(nm.signal.mel_to_hz(mels.numpy(), scale).numpy(), hz, atol=1e-2)
    assert mels[2].item() == pytest.approx(999.9855 if scale == "htk" else 15.0, abs=1e-3)


def test_mel_filter_banks_and_spectrograms():
    bank = nm.signal.mel_filter_bank(20, 256, 8000.0, dtype=nm.float64).numpy()
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 22) / 2595) - 1)
    for row, low, mid, high in zip(bank, edges, edges[1:], edges[2:], strict=False):
        hz = np.arange(129) * 8000 / 256
        np.testing.assert_allclose(row, np.interp(hz, [low, mid, high], [0, 1, 0]), atol=1e-12)
    area = (
        nm.signal.mel_filter_bank(5, 4096, 8000.0, norm="slaney").numpy().sum(axis=1) * 8000 / 4096
    )
    np.testing.assert_allclose(area, 1, rtol=1e-2)
    x = np.random.default_rng(0).normal(size=(2, 1000))
    _, _, z = scipy.signal.stft(x, window="hann", nperseg=256, noverlap=192, boundary="even",
                                padded=False)  # fmt: skip
    power = np.abs(z * scipy.signal.get_window("hann", 256).sum()) ** 2
    got = nm.signal.mel_spectrogram(x, 8000.0, 256, 64, 20)
    want = bank @ power
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    with pytest.raises(ValueError, match="fmax"):
        nm.signal.mel_filter_bank(5, 256, 8000.0, fmax=5000.0)
    with pytest.raises(ValueError, match="too few"):
        nm.signal.mel_spectrogram(np.ones(100), 8000.0)


@pytest.mark.parametrize(
    "options",
    [{}, {"height": 1}, {"height": (0, 2)}, {"threshold": 0.5}, {"distance": 5}, {"prominence": 1},
     {"prominence": (1, 3), "wlen": 21}, {"width": 2}, {"width": (1, 4), "rel_height": 0.8},
     {"plateau_size": 2, "height": 0, "threshold": 0, "distance": 3, "prominence": 0.5,
      "width": 0}],
)  # fmt: skip
def test_peaks(options):
    rng = np.random.default_rng(0)
    for x in (
        np.round(rng.normal(size=300) * 3),
        rng.normal(size=400).cumsum(),
        np.zeros(5),
        [1.0],
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about prominences of 0
            want, properties = scipy.signal.find_peaks(x, **options)
        got, found = nm.signal.find_peaks(x, **options)
        np.testing.assert_array_equal(got.numpy(), want)
        assert set(found) == set(properties)
        for name, values in properties.items():
            np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-6)


def test_errors_of_peaks():
    for call, message in [
        (lambda: nm.signal.find_peaks(np.ones((2, 2))), "vector"),
        (lambda: nm.signal.find_peaks(np.ones(4), distance=0), "distance"),
        (lambda: nm.signal.find_peaks(np.ones(4), width=1, wlen=1), "wlen"),
        (lambda: nm.signal.find_peaks(np.ones(4), height=np.ones(3)), "bounds"),
        (lambda: nm.signal.find_peaks(np.ones(4) * 1j), "complex"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            call()
