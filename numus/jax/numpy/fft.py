"""`jax.numpy.fft`."""

from numus import fft
from numus.jax._adapt import forwarder

_NAMES = """
    fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft
    rfft2 rfftfreq rfftn
"""

__getattr__, __dir__ = forwarder(__name__, _NAMES.split(), lambda name: getattr(fft, name), {})
