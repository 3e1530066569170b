"""How NumPy's array of a tensor's elements would lie in memory: strides and flags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from numus import aliases
from numus.shapes import row_major
from numus.tensor import Tensor


class Flags(SimpleNamespace):
    """NumPy's `x.flags`: by attribute, and by upper-case keys."""

    def __init__(self, c: bool, f: bool, owns: bool) -> None:
        known = {"c_contiguous": c, "f_contiguous": f, "contiguous": c, "fortran": f and not c}
        known |= {"forc": c or f, "fnc": f and not c, "owndata": owns, "carray": c, "farray": f}
        super().__init__(**known, writeable=True, aligned=True, behaved=True)

    def __getitem__(self, key: str) -> Any:
        short = {"C": "c_contiguous", "F": "f_contiguous", "O": "owndata", "W": "writeable"}
        return getattr(self, short.get(key, key.lower()))


def element_strides(x: Tensor) -> tuple[int, ...]:
    """The elements from one to the next along each axis; views have those of their root."""
    return tuple(aliases.layout(x) or row_major(x._node.shape))


def flags_of(x: Tensor) -> Flags:
    """The flags of an array with these strides."""
    shape, strides = x._node.shape, element_strides(x)
    like = np.lib.stride_tricks.as_strided(np.empty(1, "b"), shape, strides)
    return Flags(like.flags.c_contiguous, like.flags.f_contiguous, aliases.base(x) is None)
