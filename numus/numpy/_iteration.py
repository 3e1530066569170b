"""Python functions of elements and slices, and iteration, as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus.numpy import _convert
from numus.numpy._array import adopt, ndarray, result
from numus.numpy._convert import cast, plain, to_tensor
from numus.numpy._ufuncs import _axes
from numus.tensor import Tensor

__all__ = [
    "apply_along_axis", "apply_over_axes", "broadcast", "frompyfunc", "insert", "ndenumerate",
    "nditer", "vectorize",
]  # fmt: skip


def _host(x):
    return x.__array__() if isinstance(x, Tensor) else x


# -- Python functions of elements and slices ------------------------------------------------------


def insert(arr, obj, values, axis=None):
    """Values put in before indices along an axis."""
    x = to_tensor(arr)
    value = cast(to_tensor(values), x.dtype)
    at: Any = obj
    if isinstance(obj, (list, Tensor, host.ndarray)):
        at = to_tensor(obj).numpy()
        if at.dtype == bool:
            at = host.flatnonzero(at)
        elif at.size == 0:
            at = at.astype(int)
        elif at.ndim == 0:
            at = int(at)
    return adopt(nm.insert(x, at, value, axis))


def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    """A function of the vectors along an axis."""
    x = to_tensor(arr)
    (axis,) = _axes(axis, x.ndim)
    lines = nm.moveaxis(x, axis, -1)
    lead = lines.shape[:-1]
    if not host.prod(lead, dtype=int):
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    parts = [
        to_tensor(func1d(adopt(plain(lines)[i]), *args, **kwargs)) for i in host.ndindex(*lead)
    ]
    found = nm.reshape(nm.stack(parts), lead + parts[0].shape)
    order = [*range(axis), *range(len(lead), found.ndim), *range(axis, len(lead))]
    return adopt(nm.permute_dims(found, order)) if found.ndim else result(found)


def apply_over_axes(func, a, axes):
    """A function that takes an axis, applied over several."""
    value = adopt(to_tensor(a))
    for axis in (axes,) if host.ndim(_host(axes)) == 0 else axes:
        found = func(value, int(axis) + value.ndim if axis < 0 else int(axis))
        value = found if found.ndim == value.ndim else _convert.function("expand_dims")(found, axis)
        if value.ndim != to_tensor(a).ndim:
            raise ValueError("function is not returning an array of the correct shape")
    return value


class vectorize(host.vectorize):  # noqa: N801
    """A Python function of scalars, called for each element; on the host, as NumPy does."""

    def __call__(self, *args, **kwargs):
        if self._init_stage_2 is not None and not hasattr(self, "pyfunc"):
            return super().__call__(*args, **kwargs)
        found = super().__call__(*map(_deep, args), **{k: _deep(v) for k, v in kwargs.items()})
        return _lift(found)


def _deep(x):
    return to_tensor(x).numpy() if _convert.has_tensors(x) else x


def _lift(x):
    if isinstance(x, tuple):
        return tuple(map(_lift, x))
    liftable = isinstance(x, host.ndarray) and x.dtype.kind in "biufc"
    return adopt(to_tensor(x)) if liftable else x


def frompyfunc(func, /, nin, nout, *, identity=None):
    """A Python function of scalars as a function of arrays; results of numbers are arrays."""
    made = host.frompyfunc(func, nin, nout)

    def call(*args):
        found = made(*map(_deep, args))
        parts = found if isinstance(found, tuple) else (found,)
        lifted = tuple(
            _lift(host.array(p.tolist())) if isinstance(p, host.ndarray) else p for p in parts
        )
        return lifted if nout > 1 else lifted[0]

    call.nin, call.nout = nin, nout
    return call


# -- iteration ------------------------------------------------------------------------------------


class ndenumerate:  # noqa: N801
    """Pairs of coordinates and elements."""

    def __init__(self, arr):
        self.iter = host.ndenumerate(adopt(to_tensor(arr)).__array__())

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iter)


class nditer:  # noqa: N801
    """The elements of arrays side by side. With op_flags=["readwrite"], what is written to them is
    in the arrays when the `with` block or the loop ends."""

    def __init__(self, op, flags=None, op_flags=None, **options):
        given = op if isinstance(op, (list, tuple)) else [op]
        self.arrays = [None if x is None else adopt(to_tensor(x)) for x in given]
        self.targets = given
        copies = [None if x is None else host.array(x.__array__()) for x in self.arrays]
        modes = op_flags or [["readonly"]] * len(given)
        modes = [modes] * len(given) if modes and isinstance(modes[0], str) else modes
        options = {k: v for k, v in options.items() if v is not None}
        self.writes = [any(m in ("readwrite", "writeonly") for m in mode) for mode in modes]
        self.iter = host.nditer(copies, flags or [], modes, **options)
        self.copies = copies

    def __iter__(self):
        yield from self.iter
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getattr__(self, name):
        return getattr(self.iter, name)

    @property
    def operands(self):
        """The operands, those that were allocated too."""
        return tuple(
            t if isinstance(t, ndarray) else adopt(to_tensor(o))
            for t, o in zip(self.targets, self.iter.operands, strict=True)
        )

    def close(self):
        """Write back."""
        for target, new, written in zip(self.targets, self.copies, self.writes, strict=True):
            if written and isinstance(target, Tensor) and new is not None:
                target[...] = new


class broadcast:  # noqa: N801
    """Arrays side by side, broadcast to one shape."""

    def __init__(self, *args):
        if len(args) > 64:
            raise ValueError("Need at least 0 and at most 64 array objects.")
        self._arrays = [a if isinstance(a, ndarray) else adopt(to_tensor(a)) for a in args]
        self.shape = host.broadcast_shapes(*(a.shape for a in self._arrays))
        self.ndim = self.nd = len(self.shape)
        self.numiter = len(args)
        self.size = int(host.prod(self.shape, dtype=int))
        self.index = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index >= self.size:
            raise StopIteration
        at = tuple(map(int, host.unravel_index(self.index, self.shape)))
        self.index += 1
        return tuple(_convert.function("broadcast_to")(a, self.shape)[at] for a in self._arrays)

    @property
    def iters(self):
        """An iterator of each array."""
        wide = _convert.function("broadcast_to")
        same = (a if a.shape == self.shape else wide(a, self.shape) for a in self._arrays)
        return tuple(a.flat for a in same)

    def reset(self):
        """Begin again."""
        self.index = 0
