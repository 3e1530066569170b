"""Text of arrays. Tensors are printed with NumPy's print options."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.functions._base import operand
from numus.functions.interop.protocols import printable
from numus.tensor import ArrayLike

__all__ = [
    "array2string", "array_repr", "array_str", "get_printoptions", "printoptions",
    "set_printoptions",
]  # fmt: skip

_PROFILES: dict[str, dict[str, Any]] = {  # PyTorch's
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": 1 << 62, "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    suppress: bool | None = None,
    *,
    profile: str | None = None,
    sci_mode: bool | None = None,
    **options: Any,
) -> None:
    """How arrays are printed, NumPy's as well as numus's: there is one set of options.

    Args:
        precision: digits after the point.
        threshold: arrays of more elements are abbreviated.
        edgeitems: how many elements are shown at each end of an abbreviated axis.
        suppress: no exponents for small numbers.
        profile: PyTorch's "default", "short" or "full".
        sci_mode: PyTorch's name for not `suppress`.
        options: NumPy's others: nanstr, infstr, sign, floatmode, formatter.

    >>> with nm.printoptions(precision=2):
    ...     print(nm.asarray([3.14159]))
    [3.14]
    """
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"set_printoptions: profile must be one of {', '.join(_PROFILES)}")
    chosen = dict(_PROFILES[profile]) if profile is not None else {}
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems}
    given |= {"linewidth": linewidth, "suppress": suppress}
    if sci_mode is not None:
        given["suppress"] = not sci_mode
    chosen |= {name: value for name, value in given.items() if value is not None}
    np.set_printoptions(**chosen, **options)


def get_printoptions() -> dict[str, Any]:
    """The options in force."""
    return dict(np.get_printoptions())


def printoptions(*args: Any, **kwargs: Any) -> Any:
    """Options for the length of a `with`."""
    return np.printoptions(*args, **kwargs)


def array2string(x: ArrayLike, /, *args: Any, **kwargs: Any) -> str:
    """The numbers of an array as text, with NumPy's arguments.

    >>> nm.array2string(nm.asarray([1.0, 2.5]), separator=", ")
    '[1. , 2.5]'
    """
    array, digits = printable(operand("array2string", x))
    if digits is not None:
        kwargs.setdefault("precision", digits)
    return np.array2string(array, *args, **kwargs)


def array_repr(arr: ArrayLike, /) -> str:
    """The text of repr(x)."""
    return repr(operand("array_repr", arr))


def array_str(a: ArrayLike, /) -> str:
    """The text of str(x)."""
    return str(operand("array_str", a))
