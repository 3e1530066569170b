"""Iteration over elements as NumPy has it: flat iterators, `nditer`, `broadcast`.

Elements come one by one, through host memory. What makes tensors of operands and what results
become can be another interface's, as for `numus.random.Generator`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.functions import api as nm
from numus.shapes import size_of
from numus.tensor import Tensor


class _Hooks:
    """How operands become tensors, and tensors results."""

    def _tensor(self, x: Any) -> Any:
        return nm.asarray(x)

    def _result(self, x: Tensor) -> Any:
        return x


class FlatIterator(_Hooks):
    """The elements of a tensor in row-major order, to read and to write."""

    def __init__(self, base: Any) -> None:
        self.base = base
        self.index = 0

    def __len__(self) -> int:
        return int(self.base.size)

    def __iter__(self) -> FlatIterator:
        return self

    def __next__(self) -> Any:
        if self.index >= len(self):
            raise StopIteration
        self.index += 1
        return self[self.index - 1]

    @property
    def coords(self) -> tuple[int, ...]:
        """The coordinates of the next element."""
        return tuple(map(int, np.unravel_index(self.index, self.base.shape)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.base.__array__().reshape(-1), dtype=dtype)

    def copy(self) -> Any:
        """The elements with one axis."""
        return self._result(nm.reshape(nm.copy(Tensor(self.base._node)), -1))

    def __getitem__(self, index: Any) -> Any:
        return self.copy()[_flat_index(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Values that are too few are used over and over."""
        index, flat = _flat_index(index), self.copy()
        shape = () if isinstance(index, int) else flat[index].shape
        count = size_of(shape)
        if shape and count:
            new = nm.reshape(self._tensor(value), -1)
            value = nm.reshape(nm.tile(new, -(-count // max(new.size, 1)))[:count], shape)
        flat[index] = value
        self.base[...] = nm.reshape(flat, self.base.shape)

    def __eq__(self, other: Any) -> Any:
        return self.copy() == other

    __hash__ = None  # type: ignore[assignment]


def _flat_index(index: Any) -> Any:
    """One index: an integer, a slice, or an array of integers or booleans."""
    one = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    given = one.copy() if isinstance(one, FlatIterator) else one
    if isinstance(given, (list, tuple)):
        given = np.asarray(given, dtype=None if len(given) else int)
    dtype = given._node.dtype.np if isinstance(given, Tensor) else getattr(given, "dtype", None)
    kind = getattr(dtype, "kind", "i")
    if given is None or kind not in "iub" or (isinstance(index, tuple) and len(index) > 1):
        raise IndexError(f"unsupported iterator index: {index!r:.60}")
    return given


class ElementIterator(_Hooks):
    """The elements of arrays side by side (NumPy's nditer). With op_flags=["readwrite"], what is
    written to them is in the arrays when the `with` block or the loop ends."""

    def __init__(self, op: Any, flags: Any = None, op_flags: Any = None, **options: Any) -> None:
        self.targets = op if isinstance(op, (list, tuple)) else [op]
        hosted = (None if x is None else self._tensor(x).numpy() for x in self.targets)
        self.copies = [None if x is None else np.array(x) for x in hosted]
        modes = op_flags or [["readonly"]] * len(self.targets)
        self.modes = [modes] * len(self.targets) if isinstance(modes[0], str) else modes
        self.iter = np.nditer(self.copies, flags or [], self.modes, **options)

    def __iter__(self) -> Any:
        yield from self.iter
        self.close()

    def __enter__(self) -> ElementIterator:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iter, name)

    @property
    def operands(self) -> Any:
        """The operands, those that were allocated too."""
        pairs = zip(self.targets, self.iter.operands, strict=True)
        return tuple(
            t if isinstance(t, Tensor) else self._result(self._tensor(o)) for t, o in pairs
        )

    def close(self) -> None:
        """Write back."""
        for target, new, mode in zip(self.targets, self.copies, self.modes, strict=True):
            if isinstance(target, Tensor) and {"readwrite", "writeonly"} & set(mode):
                target[...] = new


class Broadcast(_Hooks):
    """Arrays side by side, broadcast to one shape."""

    def __init__(self, *arrays: Any) -> None:
        given = [a if isinstance(a, Tensor) else self._result(self._tensor(a)) for a in arrays]
        like = np.broadcast(*(np.broadcast_to(0, a.shape) for a in given))
        self.shape, self.ndim, self.nd, self.size = like.shape, like.ndim, like.nd, like.size
        self.numiter, self.index = len(arrays), 0
        wide = (Tensor(a._node) if a.shape != self.shape else a for a in given)
        self._arrays: list[Any] = [
            a if a.shape == self.shape else self._result(nm.broadcast_to(a, self.shape))
            for a in wide
        ]

    def __iter__(self) -> Broadcast:
        return self

    def __next__(self) -> Any:
        if self.index >= self.size:
            raise StopIteration
        self.index += 1
        return tuple(i[self.index - 1] for i in self.iters)

    @property
    def iters(self) -> Any:
        """An iterator of each array."""
        return tuple(map(self._flat, self._arrays))

    def _flat(self, x: Any) -> FlatIterator:
        return FlatIterator(x)

    def reset(self) -> None:
        """Begin again."""
        self.index = 0
