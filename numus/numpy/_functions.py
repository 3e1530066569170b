"""The functions of `numus.numpy`: a table of those that `_bind` makes, and those that differ.

A row of the table names how arrays are treated (`Bound`) and the functions; each is the function of
`_rules`, or of numus, of the same name.
"""

from __future__ import annotations

import importlib
import operator
from typing import Any

import numpy as host

import numus as nm
from numus.functions.interop.numpy_errors import hosted, imitating, stand_in
from numus.numpy import _convert as nc
from numus.numpy._array import ndarray
from numus.numpy._bind import bind
from numus.numpy._ufuncs import ufunc
from numus.tensor import Tensor
from numus.transforms import tree

_ROWS = """
view    swapaxes moveaxis rollaxis squeeze expand_dims matrix_transpose permute_dims diagonal flip
view    fliplr flipud rot90 array_split dsplit hsplit split vsplit unstack atleast_1d atleast_2d
view    atleast_3d broadcast_to broadcast_arrays
same    compress delete diag diagflat repeat roll tile tril triu unique_values unique_all
same    unique_counts unique_inverse packbits unpackbits extract nan_to_num bincount iscomplex
same    isreal real_if_close array_equiv nancumsum nancumprod cumsum cumprod cumulative_sum
same    cumulative_prod trace take take_along_axis insert unique choose resize round around
same    polyder isneginf isposinf ediff1d histogram histogram_bin_edges histogramdd sort_complex
same    vander interp quantile percentile nanquantile nanpercentile
array   sort partition piecewise meshgrid pad
raw     array asarray asanyarray ascontiguousarray asfortranarray asarray_chkfinite require copy
raw     zeros ones empty full zeros_like ones_like empty_like full_like linspace logspace geomspace
raw     bartlett blackman hamming hanning kaiser eye tri identity indices from_dlpack
weak    where select isclose
reduce  sum prod max min amax amin all any count_nonzero ptp nansum nanprod nanmax nanmin
mean    mean std var average nanmean nanstd nanvar
index   argwhere flatnonzero digitize diag_indices diag_indices_from tril_indices triu_indices
index   tril_indices_from triu_indices_from unravel_index ravel_multi_index lexsort argmax argmin
index   nanargmax nanargmin nonzero
order   argsort argpartition
find    searchsorted
common  append column_stack concatenate concat dstack hstack vstack row_stack stack inner isin kron
common  setxor1d setdiff1d intersect1d union1d tensordot vdot polyadd polymul polysub polyval
common  dot outer convolve correlate cross diff
float   cov corrcoef gradient trapezoid i0 sinc unwrap median nanmedian
float   polydiv angle roots poly polyint polyfit histogram2d
write   put putmask place fill_diagonal put_along_axis
"""
_ALIASES = {"around": "round", "amax": "max", "amin": "min", "concat": "concatenate"}
_KINDS = {"array": "same", "order": "index", "raw": "raw"}  # whose results without axes stay arrays
TABLE = {name: row.split()[0] for row in _ROWS.strip().splitlines() for name in row.split()[1:]}


def made(name: str) -> Any:
    """The function of the table under one of NumPy's names."""
    kind, own = TABLE[name], _ALIASES.get(name, name)
    module = importlib.import_module("numus.numpy." + ("_creation" if kind == "raw" else "_rules"))
    engine = getattr(module, own, None)
    found = bind(
        name,
        _KINDS.get(kind, kind),
        engine or getattr(nm, own),
        getattr(host, name),
        kind in _KINDS,
    )
    return found


def find(name: str) -> Any:
    """A function by NumPy's name; None where there is none."""
    if name in TABLE:
        return made(name)
    if name == "fix":
        return nc.function("trunc")
    found: Any = known().get(name)
    if not hasattr(host, name) or not hasattr(found, "__code__"):
        return found
    return imitating(found, getattr(host, name))


def known() -> dict[str, Any]:
    """The functions and classes that are written out, by NumPy's names."""
    modules = (importlib.import_module(f"numus.numpy.{m}") for m in ("_creation", "_iteration"))
    return {name: found for module in modules for name, found in module.OWN.items()} | _OWN


def names() -> list[str]:
    """All names of functions."""
    return [*TABLE, "fix", *known()]


# -- shapes ---------------------------------------------------------------------------------------


def _by_columns(x: Any, order: Any) -> bool:
    """Whether elements are counted column by column."""
    if order not in ("C", "F", "A", "K", None):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    return order == "F" or (order == "A" and isinstance(x, ndarray) and bool(x.flags.fnc))


def _extent(n: Any) -> int:
    if isinstance(n, (bool, host.bool_)):
        raise TypeError("an extent is an integer, not a bool")
    return operator.index(n)


def reshape(a: Any, /, shape: Any = None, order: Any = "C", *, copy: Any = None) -> Any:
    """The elements in another shape; a view where NumPy gives one."""
    if shape is None:
        raise TypeError("reshape() missing 1 required positional argument: 'shape'")
    wanted = shape.tolist() if isinstance(shape, Tensor) else shape
    many = isinstance(wanted, (tuple, list))
    wanted = tuple(map(_extent, wanted)) if many else (_extent(wanted),)
    x = nc.shared(a)
    if not _by_columns(a, order):
        return nc.adopt(nm.reshape(x, wanted, copy=copy))
    return nc.adopt(nm.transpose(nm.reshape(nm.transpose(x), wanted[::-1], copy=copy)))


def ravel(a: Any, order: Any = "C") -> Any:
    """The elements with one axis; a view where NumPy gives one."""
    x = nc.shared(a)
    if order == "K" and isinstance(a, ndarray):
        by = sorted(range(a.ndim), key=lambda i: -abs(a.strides[i]))
        return nc.adopt(nm.reshape(nm.permute_dims(x, by), -1))
    return nc.adopt(nm.reshape(nm.transpose(x) if _by_columns(a, order) else x, -1))


def transpose(a: Any, axes: Any = None) -> Any:
    """The axes in reverse order, or in the one given."""
    x = nc.shared(a)
    if axes is None:
        return nc.adopt(nm.transpose(x))
    if len(axes) != x.ndim:
        raise ValueError("axes don't match array")
    return nc.adopt(nm.permute_dims(x, nc.normal_axes(tuple(axes), x.ndim)) if x.ndim else x)


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """A sequence without zeros at its ends."""
    found = nm.trim_zeros(nc.to_tensor(filt), trim.lower(), axis)
    return found.tolist() if isinstance(filt, list) else nc.adopt(found)


def block(arrays: Any) -> Any:
    """Nested lists of blocks as one array."""
    leaves, lists = tree.flatten(arrays, lambda x: not isinstance(x, list))
    if any(isinstance(x, tuple) for x in leaves):
        raise TypeError("block: only lists are nested; a tuple is not one")
    parts = nc.in_common_dtype([nc.to_tensor(x) for x in leaves]) if leaves else []
    return nc.adopt(nm.copy(nm.block(tree.unflatten(lists, parts))))


# -- elements -------------------------------------------------------------------------------------


def _part(name: str) -> Any:
    def part(val: Any) -> Any:
        if isinstance(val, (ndarray, host.generic)) or type(val) in (int, float, complex, bool):
            return getattr(val, name)
        return nc.array_result(getattr(nm, name)(nc.to_tensor(val)))

    return part


_clip = ufunc("clip", nm.clip, host._core.umath.clip)  # type: ignore[attr-defined]


def clip(
    a: Any,
    a_min: Any = nc.NoValue,
    a_max: Any = nc.NoValue,
    out: Any = None,
    *,
    min: Any = nc.NoValue,
    max: Any = nc.NoValue,
    **kwargs: Any,
) -> Any:
    """Values within bounds."""
    if a_min is nc.NoValue and a_max is nc.NoValue:
        a_min, a_max = (None if v is nc.NoValue else v for v in (min, max))
    elif (
        a_min is nc.NoValue or a_max is nc.NoValue or min is not nc.NoValue or max is not nc.NoValue
    ):
        host.clip(0, a_min, a_max, min=min, max=max)  # raises
    x = a if isinstance(a, (Tensor, host.generic)) else nc.adopt(nc.to_tensor(a))
    if x.dtype.kind in "iu":  # Python's integers beyond the dtype's range bound nothing
        low, high = (int(v) for v in (host.iinfo(x.dtype).min, host.iinfo(x.dtype).max))
        a_min = None if type(a_min) is int and a_min <= low else a_min
        a_max = None if type(a_max) is int and a_max >= high else a_max
    if a_min is None and a_max is None:
        return nc.function("positive")(x, out=out, **kwargs)
    if a_min is None or a_max is None:
        one, bound = ("minimum", a_max) if a_min is None else ("maximum", a_min)
        return nc.function(one)(x, bound, out=out, **kwargs)
    return _clip(x, a_min, a_max, out=out, **kwargs)


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> bool:
    return bool(nc.function("all")(nc.function("isclose")(a, b, rtol, atol, equal_nan)))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    """Whether two arrays have the same shape and elements."""
    try:
        return bool(nm.array_equal(nc.to_tensor(a1), nc.to_tensor(a2), equal_nan=equal_nan))
    except (TypeError, ValueError):
        return False


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Copy values into an array, where a mask holds."""
    if not isinstance(dst, Tensor):
        raise TypeError(f"copyto() argument 1 must be numpy.ndarray, not {type(dst).__name__}")
    value, into = nc.to_tensor(src), dst._node.dtype
    if type(src) in (int, float, bool):
        host.copyto(host.zeros((), into.np), src, casting=casting)  # type: ignore[arg-type]
    else:
        nc.require_cast(value.dtype.np, into.np, casting)
    mask = True if where is True else nc.to_tensor(where)
    nm.copyto(dst, nc.cast(value, into), "unsafe", mask)


# -- products and polynomials ---------------------------------------------------------------------


def einsum(*operands: Any, out: Any = None, optimize: Any = False, **kwargs: Any) -> Any:
    """Einstein's sums of products."""
    unknown = set(kwargs) - {"dtype", "order", "casting"}
    if unknown:
        raise TypeError(f"Did not understand the following kwargs: {sorted(unknown)}")
    if not operands:
        raise ValueError("must specify the einstein sum subscripts string and at least one operand")
    first, count = isinstance(operands[0], str), len(operands)
    places = range(1, count) if first else range(0, count - count % 2, 2)
    given = [nc.to_tensor(operands[i]) for i in places]
    tensors = nc.in_common_dtype(given, nc.engine_dtype(kwargs.get("dtype")))
    ready = dict(zip(places, tensors, strict=True))
    found = nm.einsum(*(ready.get(i, x) for i, x in enumerate(operands)))
    return nc.write_out(nc.cast(found, tensors[0].dtype), out, "einsum", "same_kind")


def einsum_path(*operands: Any, optimize: Any = "greedy", einsum_call: bool = False) -> Any:
    """The order in which NumPy would contract; `einsum` finds its own."""
    given = [host.empty(x.shape) if isinstance(x, Tensor) else x for x in operands]
    find: Any = host.einsum_path
    return find(*given, optimize=optimize, einsum_call=einsum_call)


# -- questions: NumPy's own answers for shapes and dtypes -----------------------------------------


def _question(name: str) -> Any:
    ask, by_dtype = getattr(host, name), name in ("can_cast", "result_type")

    def answer(*args: Any, **kwargs: Any) -> Any:
        known = (x._node.dtype.np if by_dtype and isinstance(x, Tensor) else x for x in args)
        return ask(*map(stand_in, known), **kwargs)

    return nc.renamed(answer, name)


def isfortran(a: Any) -> bool:
    """Whether memory is column-major and not row-major."""
    return bool(nc.function("asarray")(a).flags.fnc)


def min_scalar_type(a: Any, /) -> Any:
    """The smallest dtype that holds a scalar."""
    return host.min_scalar_type(hosted(a))


_QUESTIONS = "can_cast common_type iscomplexobj isrealobj ndim result_type shape size".split()
_OWN: dict[str, Any] = {
    f.__name__: f
    for f in (
        allclose, array_equal, block, clip, copyto, einsum, einsum_path, isfortran,
        min_scalar_type, ravel, reshape, transpose, trim_zeros,
    )
} | {"real": _part("real"), "imag": _part("imag")}  # fmt: skip
_OWN |= {name: _question(name) for name in _QUESTIONS}
