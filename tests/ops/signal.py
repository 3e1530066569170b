"""nm.signal: the functions that gradients flow through, against SciPy."""

import numpy as np
import scipy.signal

import numus as nm
from numus import dtypes as dt
from ops.row import FLOATS, case, op, x

_COMPLEX = (*FLOATS[:2], "complex64")
_LOOSE = {"relative": False, "ulps": 64, "dtypes": FLOATS[:2]}
SOS = scipy.signal.butter(3, 0.3, output="sos")
B, A = scipy.signal.butter(2, 0.3)


def second(f):
    """Of (frequencies, values), the values."""
    return lambda *args, **options: f(*args, **options)[1]


def last(f):
    return lambda *args, **options: f(*args, **options)[-1]


def spectral(name, reference, part, *cases, **options):
    """A row of one of the results."""
    function = getattr(nm.signal, name.split(".")[1])
    return op(name, part(reference), *cases, **{**_LOOSE, **options}, call=part(function))


ROWS = [
    op("signal.convolve", scipy.signal.convolve, case(x(5), x(3)),
       case(x(4, 3), x(2, 2), mode="same"), relative=False, ulps=16,
       dtypes=("float32", "float64", "int64", "complex64")),
    op("signal.correlate", scipy.signal.correlate, case(x(4), x(3)),
       **{**_LOOSE, "dtypes": _COMPLEX}),
    op("signal.fftconvolve", scipy.signal.fftconvolve, case(x(2, 6), x(1, 3), mode="same", axes=1),
       **{**_LOOSE, "dtypes": _COMPLEX}),
    op("signal.oaconvolve", scipy.signal.oaconvolve, case(x(30), x(3)), **_LOOSE),
    op("signal.hilbert", scipy.signal.hilbert, case(x(2, 6)), case(x(5), N=8),
       **{**_LOOSE, "out": dt.complex_of}),
    op("signal.detrend", scipy.signal.detrend, case(x(2, 6)), case(x(6), type="constant"),
       case(x(7), bp=[3]), **_LOOSE),
    op("signal.resample", scipy.signal.resample, case(x(6, 2), 4),
       **{**_LOOSE, "dtypes": _COMPLEX}),
    op("signal.resample_poly", scipy.signal.resample_poly,
       case(x(2, 6), 3, 2, axis=1, padtype="line"), **_LOOSE),
    op("signal.upfirdn", scipy.signal.upfirdn, case(np.array([1.0, 2.0, 0.5]), x(2, 5), 2, 3),
       **_LOOSE),
    op("signal.decimate", scipy.signal.decimate, case(x(30), 2, ftype="fir"),
       **_LOOSE),
    op("signal.savgol_filter", scipy.signal.savgol_filter, case(x(2, 8), 5, 2),
       case(x(7), 3, 1, deriv=1, mode="nearest"), **_LOOSE),
    op("signal.lfilter", scipy.signal.lfilter, case(x(3), x(2, low=1.0), x(2, 5)),
       case(B, A, x(40)), case(x(3), [1.0], x(6)), **{**_LOOSE, "ulps": 512}),
    op("signal.sosfilt", scipy.signal.sosfilt, case(SOS, x(2, 40)), case(SOS, x(5, 2), axis=0),
       **_LOOSE),
    op(
        "signal.filtfilt",
        scipy.signal.filtfilt,
        case(B, A, x(2, 20)),
        case(B, A, x(2, 20), method="gust"),
        **_LOOSE,
    ),
    op("signal.sosfiltfilt", scipy.signal.sosfiltfilt, case(SOS, x(20), padlen=9), **_LOOSE),
    spectral("signal.stft", scipy.signal.stft, last, case(x(40), nperseg=16),
             out=dt.complex_of),
    spectral("signal.istft", scipy.signal.istft, second, case(x(9, 4), nperseg=16), dtypes=_COMPLEX,
             out=dt.real_of),
    spectral("signal.spectrogram", scipy.signal.spectrogram, last, case(x(40), nperseg=16)),
    spectral("signal.welch", scipy.signal.welch, second, case(x(40), nperseg=16)),
    spectral("signal.csd", scipy.signal.csd, second, case(x(40), x(40), nperseg=16),
             out=dt.complex_of),
    spectral("signal.periodogram", scipy.signal.periodogram, second, case(x(12))),
]  # fmt: skip
