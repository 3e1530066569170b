"""Functions with NumPy's signatures over numus's functions of the same name.

Arguments are bound by NumPy's own signature; what names arrays becomes tensors, in the dtypes that
NumPy would compute in; parameters that the engine calls by another name are renamed, and those that
mean nothing to it (the order of memory, subclasses) are dropped. `out=` and `dtype=` are here.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, IndexRangeError, ShapeError
from numus.numpy._array import array_result, result, write_out
from numus.numpy._convert import (
    cast,
    engine_dtype,
    has_tensors,
    raise_as_reference,
    shared,
    to_tensor,
)
from numus.tensor import Tensor

# Parameters of NumPy's functions that take an array.
ARRAYS = frozenset(
    """
    a b x y m v z p arr ary ar ar1 ar2 array element test_elements weights fweights aweights values
    x1 x2 xp fp A val filt condition mask q prepend append to_end to_begin repeats f a1 a2 sorter
    u w seq_of_zeros X arys args xi object indices obj bins
    """.split()
)
SEQUENCES = frozenset("arrays tup choices condlist arys args xi keys multi_index".split())
IGNORED = frozenset(
    """
    order subok like overwrite_input kind casting device stable sorted copy mode_ max_work refcheck
    allow_pickle fix_imports overwrite
    """.split()
)

# How each function treats its arrays:
#   view    hand over the array itself, of which results are views
#   same    as they are
#   common  in their common dtype
#   float   in their common dtype, integers and booleans as float64
#   index   as they are; results are positions, int64
#   scalar  as same, but results without axes stay arrays
FUNCTIONS: dict[str, tuple[str, str]] = {}


def _add(kind, names):
    FUNCTIONS.update({name: (kind, name) for name in names.split()})


_add(
    "view",
    """
    swapaxes moveaxis rollaxis squeeze expand_dims matrix_transpose permute_dims diagonal flip
    fliplr flipud rot90 array_split dsplit hsplit split vsplit unstack atleast_1d atleast_2d
    atleast_3d broadcast_to broadcast_arrays
    """,
)
_add(
    "same",
    """
    compress delete diag diagflat repeat roll tile tril triu unique_values
    unique_all unique_counts unique_inverse packbits unpackbits extract nan_to_num bincount
    iscomplex isreal real_if_close array_equiv identity nancumsum nancumprod
    """,
)
_add("index", "argwhere flatnonzero digitize diag_indices diag_indices_from tril_indices")
_add("index", "triu_indices tril_indices_from triu_indices_from unravel_index ravel_multi_index")
_add("index", "lexsort")
_add(
    "common",
    """
    append column_stack concatenate concat dstack hstack vstack row_stack stack inner
    isin kron setxor1d tensordot union1d vdot
    interp polyadd polymul polysub
    """,
)
_add(
    "float",
    """
    cov corrcoef gradient trapezoid i0 sinc unwrap median percentile quantile nanmedian
    nanpercentile nanquantile polydiv
    """,
)


def _signature(reference):
    return inspect.signature(reference)


def _is_sequence(x):
    return isinstance(x, (list, tuple))


class Bound:
    """A function of the engine under NumPy's signature."""

    def __init__(self, name, kind, engine, reference):
        self.kind, self.engine, self.name = kind, engine, name
        self.signature = _signature(reference)
        parameters = list(self.signature.parameters.values())
        given = list(inspect.signature(engine).parameters.values())
        self.names = {p.name for p in given if p.kind is not p.POSITIONAL_ONLY}
        free = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        # NumPy's parameters, in order, stand for those of the engine that have no name of their own
        self.positional: dict[str, int] = {}
        for p, mine in zip(parameters, free, strict=False):
            if p.name in self.names and mine.kind is not mine.POSITIONAL_ONLY:
                break
            self.positional[p.name] = len(self.positional)
        self.has_out = "out" in self.signature.parameters

    def __call__(self, *args, **kwargs):
        bound = self.signature.bind(*args, **kwargs).arguments
        out = bound.pop("out", None) if self.has_out else None
        casting = bound.pop("casting", "same_kind")
        dtype = engine_dtype(bound.pop("dtype", None)) if "dtype" in bound else None
        self._convert(bound, dtype, casting)
        self._check_axis(bound)
        places: list[Any] = []
        named: dict[str, Any] = {}
        for name, value in bound.items():
            if self.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                kept = (Tensor, bool, int, float, complex, host.generic)
                places.extend(x if isinstance(x, kept) else to_tensor(x) for x in value)
            elif name in self.positional and len(places) == self.positional[name]:
                places.append(value)
            elif name in self.names:
                named[name] = value
            elif name in ("kwargs", "kwds", "kw"):
                named |= value
            elif name not in IGNORED and value is not self.signature.parameters[name].default:
                default = self.signature.parameters[name].default
                if not (value is None or (default is False and value is True)):
                    raise TypeError(f"numus.numpy.{self.name}: {name}= is not there")
        if dtype is not None and "dtype" in self.names:
            named["dtype"] = dtype
        found = self.engine(*places, **named)
        if isinstance(found, list) and self.name == "gradient":
            found = tuple(found)
        if dtype is not None and isinstance(found, Tensor):
            found = cast(found, dtype)
        if self.kind == "index":
            found = _positions(found)
        if out is not None:
            if isinstance(found, Tensor) and found.shape != out.shape:
                raise ValueError(f"{self.name}: Output array is the wrong shape: {out.shape}")
            return write_out(found, out, self.name, "unsafe")
        return array_result(found) if self.kind in ("view", "scalar") else result(found)

    def _check_axis(self, bound):
        """NumPy's own error for an axis that is not there."""
        first, axis = next(iter(bound.values()), None), bound.get("axis")
        x = first[0] if isinstance(first, (list, tuple)) and first else first
        if isinstance(axis, int) and isinstance(x, Tensor) and x.ndim:
            extra = self.name in ("stack", "expand_dims")
            host.lib.array_utils.normalize_axis_index(axis, x.ndim + extra)

    def _convert(self, bound, dtype, casting):
        load = shared if self.kind == "view" else to_tensor
        found, raw = [], dict(bound)
        for name, value in raw.items():
            if value is None or value is host._NoValue:
                continue
            if name in SEQUENCES or (name == "keys" and _is_sequence(value)):
                if not _is_sequence(value):
                    if not isinstance(value, (Tensor, host.ndarray)):
                        text = 'arrays to stack must be passed as a "sequence" type such as list'
                        raise TypeError(f"{self.name}: {text} or tuple.")
                    value = list(value)
                bound[name] = type(value)(load(x) for x in value)
                found += [(name, i) for i in range(len(value))]
            elif name in ARRAYS:
                bound[name] = load(value)
                found.append((name, None))
        if self.kind not in ("common", "float"):
            return
        tensors = [bound[n] if i is None else bound[n][i] for n, i in found]
        weak = [n == "q" and isinstance(raw[n], (int, float)) for n, _ in found]
        kinds = [t.dtype.np for t, w in zip(tensors, weak, strict=True) if not w]
        if self.kind == "float":
            kinds = [k if k.kind in "fcV" else host.dtype(float) for k in kinds]
        if not kinds:
            return
        common = dtype or engine_dtype(host.result_type(*kinds))
        for (name, i), x in zip(found, tensors, strict=True):
            if dtype is not None and not host.can_cast(x.dtype.np, dtype.np, casting):
                rule = f"according to the rule {casting!r}"
                raise TypeError(
                    f"Cannot cast array data from {x.dtype.np!r} to {dtype.np!r} {rule}"
                )
            if i is None:
                bound[name] = cast(x, common)
            else:
                parts = list(bound[name])
                parts[i] = cast(x, common)
                bound[name] = type(bound[name])(parts)


def _positions(x):
    if isinstance(x, (tuple, list)):
        return type(x)(map(_positions, x))
    return cast(x, dt.int64) if isinstance(x, Tensor) else x


def imitating(call, reference):
    """A function that raises NumPy's own error where the engine refuses shapes, axes or dtypes."""

    @functools.wraps(call)
    def checked(*args, **kwargs):
        try:
            return call(*args, **kwargs)
        except (ShapeError, DTypeError, IndexRangeError):
            raise_as_reference(reference, args, kwargs)
            raise

    return checked


def bind(name, kind, engine=None, reference=None):
    """A function of the engine with the signature of NumPy's."""
    reference = reference or functools.reduce(getattr, name.split("."), host)
    made = Bound(name, kind, engine or functools.reduce(getattr, name.split("."), nm), reference)

    def plain_call(*args, **kwargs):
        return made(*args, **kwargs)

    call = imitating(plain_call, reference)
    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__signature__ = made.signature
    call.__doc__ = f"As `numpy.{name}`, over `numus.{name}`."
    call.__module__ = "numus.numpy"
    return call


__all__ = ["FUNCTIONS", "bind", "has_tensors"]
