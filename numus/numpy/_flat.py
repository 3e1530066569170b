"""`x.flat` and `x.flags`: what NumPy tells of an array's elements in order, and of its memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as host

import numus as nm
from numus.numpy._convert import to_tensor


class Flags(SimpleNamespace):
    """`x.flags`: by attribute, and by NumPy's upper-case keys."""

    def __init__(self, c: bool, f: bool, owns: bool) -> None:
        known = {"c_contiguous": c, "f_contiguous": f, "contiguous": c, "fortran": f and not c}
        known |= {"forc": c or f, "fnc": f and not c, "owndata": owns, "carray": c, "farray": f}
        super().__init__(**known, writeable=True, aligned=True, behaved=True)

    def __getitem__(self, key: str) -> Any:
        short = {"C": "c_contiguous", "F": "f_contiguous", "O": "owndata", "W": "writeable"}
        return getattr(self, short.get(key, key.lower()))


class flatiter:  # noqa: N801
    """`x.flat`: the elements in row-major order."""

    def __init__(self, base: Any) -> None:
        self.base = base
        self.index = 0

    def __len__(self) -> int:
        return int(self.base.size)

    def __iter__(self) -> flatiter:
        return self

    def __next__(self) -> Any:
        if self.index >= len(self):
            raise StopIteration
        self.index += 1
        return self[self.index - 1]

    @property
    def coords(self) -> tuple[int, ...]:
        """The coordinates of the next element."""
        return tuple(map(int, host.unravel_index(self.index, self.base.shape)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return host.array(self.base.__array__().reshape(-1), dtype=dtype)

    def copy(self) -> Any:
        """The elements as an array of one axis."""
        return self.base.flatten()

    def __getitem__(self, index: Any) -> Any:
        return self.base.flatten()[_flat_index(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        index, flat = _flat_index(index), self.base.flatten()
        shape = () if isinstance(index, int) else flat[index].shape
        flat[index] = nm.resize(to_tensor(value), shape or (1,)) if shape else value
        self.base[...] = flat.reshape(self.base.shape)

    def __eq__(self, other: Any) -> Any:
        return self.copy() == other

    __hash__ = None  # type: ignore[assignment]


def _flat_index(index: Any) -> Any:
    """NumPy's iterators take one index: an integer, a slice, or an array of integers."""
    one = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    given = one.copy() if isinstance(one, flatiter) else one
    if isinstance(given, (list, tuple)):
        given = host.asarray(given, dtype=None if len(given) else int)
    kind = getattr(getattr(given, "dtype", None), "kind", "i")
    if given is None or kind not in "iub" or (isinstance(index, tuple) and len(index) > 1):
        raise IndexError(f"unsupported iterator index: {index!r:.60}")
    return given
