"""nm.fft: transforms along one axis and several, frequencies and shifts."""

import numpy as np
import scipy.fft

from numus import dtypes as dt
from ops.row import COMPLEX, DTYPE, FLOATS, NUMBERS, case, fraction, op, x

LINEAR = {"relative": False, "ulps": 16}


def spectrum(d):
    """What the transform of a dtype has."""
    return dt.complex_of(fraction(d))


def signal(d):
    """What real transforms of a dtype give."""
    return dt.real_of(spectrum(d))


_ANY = {"dtypes": (*FLOATS, "int32", "bool", *COMPLEX), "out": spectrum, **LINEAR}
_REAL = {"dtypes": (*FLOATS, "int32", "bool"), "out": spectrum, **LINEAR}
_SIGNAL = {"dtypes": (*FLOATS, *COMPLEX), "out": signal, **LINEAR}

ONE_AXIS = [
    op("fft.fft", np.fft.fft, case(x(2, 6)), case(x(5)), case(x(1)), case(x(3, 2), axis=0),
       case(x(2, 7), n=4, norm="ortho"), case(x(3), n=8, norm="forward"), case(x(0, 4)),
       case(x(2, 211)), **_ANY),
    op("fft.ifft", np.fft.ifft, case(x(2, 6)), case(x(3, 2), axis=0), case(x(5), n=7),
       case(x(4), norm="forward"), case(x(211), norm="ortho"), **_ANY),
    op("fft.rfft", np.fft.rfft, case(x(2, 6)), case(x(5)), case(x(1)), case(x(4, 2), axis=0),
       case(x(3), n=8, norm="ortho"), case(x(2, 9), n=6), case(x(0, 4)), **_REAL),
    op("fft.irfft", np.fft.irfft, case(x(2, 4)), case(x(4), n=7), case(x(4, 2), axis=0),
       case(x(3), n=8, norm="ortho"), case(x(4), n=1), case(x(2, 3), n=2), **_SIGNAL),
    op("fft.hfft", np.fft.hfft, case(x(2, 4)), case(x(4), n=7), case(x(3), norm="ortho"),
       **_SIGNAL),
    op("fft.ihfft", np.fft.ihfft, case(x(2, 6)), case(x(5)), case(x(4), norm="forward"), **_REAL),
]  # fmt: skip

SEVERAL_AXES = [
    op("fft.fftn", np.fft.fftn, case(x(2, 3, 4)), case(x(2, 3), s=(4, 2), axes=(0, 1)),
       case(x(3, 2), axes=(0, 0)), **_ANY),
    op("fft.ifftn", np.fft.ifftn, case(x(2, 3, 2)), case(x(2, 3), axes=(0,), norm="ortho"),
       **_ANY),
    op("fft.rfftn", np.fft.rfftn, case(x(2, 3, 4)), case(x(4, 3), axes=(1, 0)),
       case(x(2, 4), axes=(-1, -1)), **_REAL),
    op("fft.irfftn", np.fft.irfftn, case(x(2, 3, 3)), case(x(2, 3), s=(3, 5), axes=(0, 1)),
       **_SIGNAL),
    op("fft.fft2", np.fft.fft2, case(x(2, 3, 4)), case(x(2, 3), s=(3, -1)), **_ANY),
    op("fft.ifft2", np.fft.ifft2, case(x(3, 4)), **_ANY),
    op("fft.rfft2", np.fft.rfft2, case(x(2, 3, 4)), **_REAL),
    op("fft.irfft2", np.fft.irfft2, case(x(3, 3)), case(x(3, 3), s=(2, 5)), **_SIGNAL),
    op("fft.hfftn", scipy.fft.hfftn, case(x(2, 3, 3)), case(x(2, 3), s=(3, 5), norm="ortho"),
       **_SIGNAL),
    op("fft.ihfftn", scipy.fft.ihfftn, case(x(2, 3, 4)), case(x(4, 3), axes=(1, 0)), **_REAL),
    op("fft.hfft2", scipy.fft.hfft2, case(x(3, 3), norm="forward"), **_SIGNAL),
    op("fft.ihfft2", scipy.fft.ihfft2, case(x(3, 4), s=(2, 5)), **_REAL),
]  # fmt: skip


def wide(d):
    """What cosine transforms of a dtype give."""
    return spectrum(d) if d.is_complex else signal(d)


def by_parts(f):
    """SciPy's function, whose complex results do not always follow its arguments."""

    def function(x, *args, **options):
        if not np.iscomplexobj(x):
            return f(x, *args, **options)
        return f(x.real, *args, **options) + 1j * f(x.imag, *args, **options)

    return function


_TRIGONOMETRIC = {"dtypes": (*FLOATS, "int32", "complex64"), "out": wide, **LINEAR}

COSINES = [
    op("fft.dct", scipy.fft.dct, case(x(2, 6)), case(x(5)), case(x(1)), case(x(3, 2), axis=0),
       case(x(2, 5), type=1), case(x(5), type=3, norm="ortho"), case(x(6), type=4, n=4),
       case(x(7), type=4), case(x(4), type=1, norm="ortho"), case(x(0, 4)), **_TRIGONOMETRIC),
    op("fft.idct", by_parts(scipy.fft.idct), case(x(2, 6), orthogonalize=True),
       case(x(5), norm="forward"), case(x(4), type=3, norm="ortho"), **_TRIGONOMETRIC),
    op("fft.dst", scipy.fft.dst, case(x(2, 5)), case(x(4), type=1, norm="ortho"),
       case(x(6), type=3, norm="ortho"), case(x(3), type=4, n=5), **_TRIGONOMETRIC),
    op("fft.idst", scipy.fft.idst, case(x(2, 6), norm="ortho"), case(x(5), type=1),
       **_TRIGONOMETRIC),
    op("fft.dctn", scipy.fft.dctn, case(x(2, 3)), case(x(2, 3), s=(3, 2), norm="ortho"),
       **_TRIGONOMETRIC),
    op("fft.idctn", scipy.fft.idctn, case(x(3, 2), type=4), case(x(2, 4), axes=(1,)),
       **_TRIGONOMETRIC),
    op("fft.dstn", scipy.fft.dstn, case(x(2, 3), type=3), **_TRIGONOMETRIC),
    op("fft.idstn", scipy.fft.idstn, case(x(2, 3), axes=(0,)), **_TRIGONOMETRIC),
    op("fft.fht", scipy.fft.fht, case(x(2, 6), 0.5, 0.5), case(x(5), 0.7, 1.0, 0.3, 0.4),
       dtypes=(*FLOATS, "int32"), out=signal, relative=False, ulps=64),
    op("fft.ifht", scipy.fft.ifht, case(x(2, 6), 0.5, 0.5), case(x(5), 0.7, 1.0, 0.3, 0.4),
       dtypes=(*FLOATS, "int32"), out=signal, relative=False, ulps=64),
]  # fmt: skip


def frequencies(f):
    return lambda n, d=1.0, dtype=None: f(n, d)


FREQUENCIES = [
    op("fft.fftfreq", frequencies(np.fft.fftfreq), case(5, dtype=DTYPE),
       case(8, d=0.1, dtype=DTYPE), case(1, dtype=DTYPE), dtypes=FLOATS, orders=0),
    op("fft.rfftfreq", frequencies(np.fft.rfftfreq), case(5, dtype=DTYPE),
       case(8, d=0.1, dtype=DTYPE), case(1, dtype=DTYPE), dtypes=FLOATS, orders=0),
    op("fft.fftshift", np.fft.fftshift, case(x(5)), case(x(3, 4)), case(x(3, 4), axes=1),
       dtypes=NUMBERS),
    op("fft.ifftshift", np.fft.ifftshift, case(x(5)), case(x(3, 4)), case(x(3, 4), axes=(0,)),
       dtypes=NUMBERS),
]  # fmt: skip

ROWS = [*ONE_AXIS, *SEVERAL_AXES, *COSINES, *FREQUENCIES]
