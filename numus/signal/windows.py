"""The windows of `scipy.signal.windows`, and the window with a name."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.signal._arguments import Array, tensor
from numus.signal.slepian import dpss
from numus.signal.window_shapes import *  # noqa: F403
from numus.signal.window_shapes import HOST
from numus.signal.window_shapes import __all__ as _shapes
from numus.tensor import Tensor

__all__ = [*_shapes, "dpss", "get_window"]

_ALIASES = {
    **{"box": "boxcar", "boxcar": "boxcar", "ones": "boxcar", "rect": "boxcar"},
    **{
        "rectangular": "boxcar",
        "black": "blackman",
        "blk": "blackman",
        "blackharr": "blackmanharris",
    },
    **{"bkh": "blackmanharris", "bman": "bohman", "bmn": "bohman"},
    **{"bart": "bartlett"},
    **{"brt": "bartlett", "brthan": "barthann", "bth": "barthann", "cheb": "chebwin"},
    **{"halfcosine": "cosine", "poisson": "exponential", "flat": "flattop", "flt": "flattop"},
    **{"gauss": "gaussian", "gss": "gaussian", "general gaussian": "general_gaussian"},
    **{"general gauss": "general_gaussian", "general_gauss": "general_gaussian"},
    **{"ggs": "general_gaussian", "general cosine": "general_cosine", "hamm": "hamming"},
    **{"ham": "hamming", "han": "hann", "kaiser bessel derived": "kaiser_bessel_derived"},
    **{"ksr": "kaiser", "kbd": "kaiser_bessel_derived", "sinc": "lanczos", "nutt": "nuttall"},
    **{"nut": "nuttall", "parz": "parzen", "par": "parzen", "slepian": "dpss", "tri": "triang"},
    **{"triangle": "triang", "taylorwin": "taylor", "tuk": "tukey"},
}
_NEED_ARGUMENTS = (
    "chebwin dpss gaussian general_cosine general_gaussian general_hamming kaiser "
    "kaiser_bessel_derived"
).split()


def host_window(window: Any, Nx: int, fftbins: bool = True, op: str = "get_window") -> Array:
    """A window by name, by (name, *arguments), or as the beta of a Kaiser window, in float64."""
    if isinstance(window, (int, float)) and not isinstance(window, bool):
        name, args = "kaiser", [float(window)]
    elif isinstance(window, str):
        name, args = window, []
    elif isinstance(window, tuple) and window and isinstance(window[0], str):
        name, args = window[0], [*window[1:]]
    else:
        raise ValueError(
            f"signal.{op}: window {window!r} must be a name, a tuple (name, *arguments), or the "
            "beta of a Kaiser window"
        )
    for ending, periodic in (("_periodic", True), ("_symmetric", False)):
        if name.endswith(ending):
            name, fftbins = name.removesuffix(ending), periodic
    name = _ALIASES.get(name, name)
    if name not in HOST:
        raise ValueError(f"signal.{op}: there is no window {name!r}; see signal.windows")
    if name in _NEED_ARGUMENTS and not args:
        raise ValueError(f"signal.{op}: the window {name!r} has arguments: give ({name!r}, ...)")
    return HOST[name](Nx, *args, sym=not fftbins)


def get_window(
    window: Any, Nx: int, fftbins: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """The window with a name or (name, *arguments), by default a periodic one.

    >>> nm.signal.get_window("hann", 4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    >>> nm.signal.get_window(("kaiser", 0.0), 2).tolist()
    [1.0, 1.0]
    """
    return tensor(host_window(window, Nx, fftbins), dtype or dt.default_float, device)
