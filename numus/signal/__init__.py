"""Signal processing: SciPy's names and conventions, on every device (docs/signal.md)."""

from numus.signal import windows
from numus.signal.convolution import (
    choose_conv_method,
    convolve,
    correlate,
    correlation_lags,
    fftconvolve,
    oaconvolve,
)
from numus.signal.filtering import (
    decimate,
    detrend,
    hilbert,
    resample,
    resample_poly,
    savgol_coeffs,
    savgol_filter,
    upfirdn,
)
from numus.signal.fir_design import firwin, kaiser_atten, kaiser_beta
from numus.signal.iir_design import butter, cheby1, cheby2, ellip, iirfilter
from numus.signal.linear_filters import (
    filtfilt,
    lfilter,
    lfilter_zi,
    sosfilt,
    sosfilt_zi,
    sosfiltfilt,
)
from numus.signal.mel import hz_to_mel, mel_filter_bank, mel_spectrogram, mel_to_hz
from numus.signal.peaks import find_peaks
from numus.signal.short_time import istft, stft
from numus.signal.spectral import coherence, csd, periodogram, spectrogram, welch
from numus.signal.windows import get_window

__all__ = [
    "butter", "cheby1", "cheby2", "choose_conv_method", "coherence", "convolve", "correlate",
    "correlation_lags", "csd", "decimate", "detrend", "ellip", "fftconvolve", "filtfilt",
    "find_peaks", "firwin", "get_window", "hilbert", "hz_to_mel", "iirfilter", "istft",
    "kaiser_atten", "kaiser_beta", "lfilter", "lfilter_zi", "mel_filter_bank", "mel_spectrogram",
    "mel_to_hz", "oaconvolve", "periodogram", "resample", "resample_poly", "savgol_coeffs",
    "savgol_filter", "sosfilt", "sosfilt_zi", "sosfiltfilt", "spectrogram", "stft", "upfirdn",
    "welch", "windows",
]  # fmt: skip
