"""Shapes, products, comparisons and polynomials with NumPy's arguments."""

from __future__ import annotations

import operator

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy import _convert
from numus.numpy._array import adopt, array_result, ndarray, result, write_out
from numus.numpy._convert import cast, engine_dtype, is_concrete, plain, renamed, shared, to_tensor
from numus.numpy._ufuncs import _axes
from numus.tensor import Tensor

__all__ = [
    "allclose", "angle", "around", "array_equal", "block", "convolve", "correlate", "cross",
    "diff", "dot", "einsum", "einsum_path", "fix", "imag", "isclose", "isneginf", "isposinf",
    "outer", "pad", "poly", "poly1d", "polyder", "polyfit", "polyint", "polyval", "ravel",
    "real", "reshape", "resize", "roots", "round", "sort_complex", "transpose", "trim_zeros",
]  # fmt: skip

_ORDERS = ("C", "F", "A", "K", None)


def _in_order(x, order, op):
    """Whether elements are counted column by column."""
    if order not in _ORDERS:
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    return order == "F" or (order == "A" and isinstance(x, ndarray) and bool(x.flags.fnc))


def reshape(a, /, shape=None, order="C", *, copy=None, **named):
    """The elements in another shape; a view where NumPy gives one."""
    wanted = named.pop("newshape", shape)
    if wanted is None:
        raise TypeError("reshape() missing 1 required positional argument: 'shape'")
    if isinstance(wanted, Tensor):
        wanted = wanted.tolist()
    many = isinstance(wanted, (tuple, list))
    wanted = tuple(map(operator.index, wanted)) if many else (operator.index(wanted),)
    x = shared(a)
    if not _in_order(a, order, "reshape"):
        return adopt(nm.reshape(x, wanted, copy=copy))
    if -1 in wanted:
        rest = -int(host.prod(wanted, dtype=int))
        wanted = tuple(x.size // max(rest, 1) if n == -1 else n for n in wanted)
    return adopt(nm.transpose(nm.reshape(nm.transpose(x), wanted[::-1], copy=copy)))


def resize(a, new_shape):
    """The elements over and over, in another shape."""
    return adopt(nm.resize(to_tensor(a), new_shape))


def trim_zeros(filt, trim="fb", axis=None):
    """A sequence without zeros at its ends."""
    found = nm.trim_zeros(to_tensor(filt), trim.lower(), axis)
    return found.tolist() if isinstance(filt, list) else adopt(found)


def ravel(a, order="C"):
    """The elements with one axis; a view where NumPy gives one."""
    x = shared(a)
    if order == "K" and isinstance(a, ndarray):
        by = sorted(range(a.ndim), key=lambda i: -abs(a.strides[i]))
        return adopt(nm.reshape(nm.permute_dims(x, by), -1))
    return adopt(nm.reshape(nm.transpose(x) if _in_order(a, order, "ravel") else x, -1))


def transpose(a, axes=None):
    """The axes in reverse order, or in the one given."""
    x = shared(a)
    if axes is None or axes == ():
        return adopt(nm.transpose(x) if axes is None or x.ndim else x)
    if len(axes) != x.ndim:
        raise ValueError("axes don't match array")
    return adopt(nm.permute_dims(x, _axes_of(axes, x.ndim)))


def _axes_of(axes, ndim):
    found = tuple(host.lib.array_utils.normalize_axis_index(int(a), ndim) for a in axes)
    if len(set(found)) != len(found):
        raise ValueError("repeated axis in transpose")
    return found


def real(val):
    """The real part; a view of an array."""
    return val.real if isinstance(val, (ndarray, host.generic)) else _part(val, nm.real)


def imag(val):
    """The imaginary part; a view of an array."""
    return val.imag if isinstance(val, (ndarray, host.generic)) else _part(val, nm.imag)


def _part(val, take):
    if type(val) in (int, float, complex, bool):
        return getattr(val, take.__name__)
    return array_result(take(to_tensor(val)))


def angle(z, deg=False):
    """The angle of complex numbers."""
    x = to_tensor(z)
    found = nm.angle(cast(x, x.dtype if x.dtype.is_inexact else dt.float64))
    return result(nm.rad2deg(found) if deg else found)


def round(a, decimals=0, out=None):
    """Rounded to a number of decimals, halves to even."""
    if isinstance(a, (int, float, complex, host.generic)) and out is None:
        return host.round(a, decimals)
    x = to_tensor(a)
    if x.dtype is dt.bool_:
        x = cast(x, dt.float16)
    return write_out(nm.round(x, decimals), out, "round")


around = round


def fix(x, out=None):
    """Rounded towards zero."""
    return _convert.function("trunc")(x, out=out)


def _infinite(name):
    engine = getattr(nm, name)

    def test(x, out=None):
        given = to_tensor(x)
        if given.dtype.is_complex:
            raise TypeError(f"This operation is not supported for {given.dtype.np} values")
        return write_out(engine(given), out, name, "unsafe")

    return renamed(test, name)


isneginf, isposinf = _infinite("isneginf"), _infinite("isposinf")


def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether elements are equal within tolerances."""
    x, y = to_tensor(a), to_tensor(b)
    if type(a) in (int, float) or type(b) in (int, float):
        kinds = [v if type(v) in (int, float) else t.dtype.np for v, t in ((a, x), (b, y))]
        common = host.result_type(*kinds)
    else:
        common = host.result_type(x.dtype.np, y.dtype.np)
    wide = engine_dtype(common if common.kind in "fc" else float)
    x, y, bounds = cast(x, wide), cast(y, wide), [_tolerance(rtol), _tolerance(atol)]
    if not any(isinstance(t, Tensor) for t in bounds):
        return result(nm.isclose(x, y, rtol=bounds[0], atol=bounds[1], equal_nan=equal_nan))
    near = nm.less_equal(nm.abs(x - y), bounds[1] + bounds[0] * nm.abs(y))
    found = nm.logical_or(nm.logical_and(near, nm.isfinite(y)), nm.equal(x, y))
    return result(nm.logical_or(found, nm.isnan(x) & nm.isnan(y)) if equal_nan else found)


def _tolerance(x):
    return float(x) if host.ndim(x) == 0 else to_tensor(x)


def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are equal within tolerances."""
    return bool(_convert.function("all")(isclose(a, b, rtol, atol, equal_nan)))


def array_equal(a1, a2, equal_nan=False):
    """Whether two arrays have the same shape and elements."""
    try:
        x, y = to_tensor(a1), to_tensor(a2)
    except (TypeError, ValueError):
        return False
    return x.shape == y.shape and bool(nm.array_equal(x, y, equal_nan=equal_nan))


def block(arrays):
    """Nested lists of blocks as one array."""
    depths, leaves = [], []

    def visit(x, depth):
        if isinstance(x, tuple):
            raise TypeError("block: only lists are nested; a tuple is not one")
        if isinstance(x, list):
            if not x:
                raise ValueError("List at arrays cannot be empty")
            return [visit(i, depth + 1) for i in x]
        depths.append(depth)
        leaves.append(to_tensor(x))
        return len(leaves) - 1

    tree = visit(arrays, 0)
    if len(set(depths)) > 1:
        raise ValueError("List depths are mismatched.")
    common = engine_dtype(host.result_type(*(t.dtype.np for t in leaves)))
    rank = max(depths[0], *(t.ndim for t in leaves))

    def join(x, depth):
        if isinstance(x, int):
            t = leaves[x]
            return cast(nm.reshape(t, (1,) * (rank - t.ndim) + t.shape), common)
        return nm.concat([join(i, depth + 1) for i in x], axis=depth - depths[0] + rank)

    return adopt(nm.copy(join(tree, 0)))


# -- products -------------------------------------------------------------------------------------


def _pair(a, b):
    x, y = to_tensor(a), to_tensor(b)
    common = engine_dtype(host.result_type(x.dtype.np, y.dtype.np))
    return cast(x, common), cast(y, common)


def dot(a, b, out=None):
    """The inner product of the last axis of a and the second to last of b."""
    x, y = _pair(a, b)
    if out is not None and (
        not isinstance(out, Tensor) or out._node.dtype is not x.dtype or not out.flags.c_contiguous
    ):
        raise ValueError(
            "output array is not acceptable (must have the right datatype, number of dimensions)"
        )
    return write_out(nm.dot(x, y), out, "dot")


def outer(a, b, out=None):
    """The products of all pairs of elements."""
    x, y = (nm.reshape(v, -1) for v in _pair(a, b))
    return write_out(nm.outer(x, y), out, "outer")


_MODES = {0: "valid", 1: "same", 2: "full", "v": "valid", "s": "same", "f": "full"}


def _slid(name):
    engine = getattr(nm, name)

    def slide(a, v, mode="full" if name == "convolve" else "valid"):
        x, y = (nm.reshape(t, -1) if not t.ndim else t for t in _pair(a, v))
        for letter, given in (("a", x), ("v", y)):
            if not given.size:
                raise ValueError(f"{letter} cannot be empty")
        if mode is None:
            raise TypeError("mode must not be None")
        return result(engine(x, y, mode=_MODES.get(mode, mode)))

    return renamed(slide, name)


convolve, correlate = _slid("convolve"), _slid("correlate")


def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """The vector product."""
    if axis is not None:
        axisa, axisb, axisc = (axis,) * 3
    x, y = _pair(a, b)
    if not x.ndim or not y.ndim:
        raise ValueError("At least one array has zero dimension")
    x, y = nm.moveaxis(x, *_axes(axisa, x.ndim), -1), nm.moveaxis(y, *_axes(axisb, y.ndim), -1)
    sizes = (x.shape[-1], y.shape[-1])
    if any(n not in (2, 3) for n in sizes):
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they are {sizes}"
        )
    x, y = (nm.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 3 - v.shape[-1])]) for v in (x, y))
    shape = host.broadcast_shapes(x.shape, y.shape)
    found = nm.cross(nm.broadcast_to(x, shape), nm.broadcast_to(y, shape))
    if sizes == (2, 2):
        return result(found[..., 2])
    return result(nm.moveaxis(found, -1, *_axes(axisc, found.ndim)))


def einsum(*operands, out=None, optimize=False, **kwargs):
    """Einstein's sums of products."""
    unknown = set(kwargs) - {"dtype", "order", "casting"}
    if unknown:
        raise TypeError(f"Did not understand the following kwargs: {sorted(unknown)}")
    if not operands:
        raise ValueError("must specify the einstein sum subscripts string and at least one operand")
    subscripts, tensors = _subscripts(operands)
    kinds = [t.dtype.np for t in tensors]
    common = engine_dtype(kwargs.get("dtype") or host.result_type(*kinds))
    found = nm.einsum(subscripts, *(cast(t, common) for t in tensors))
    return write_out(cast(found, common), out, "einsum", "same_kind")


def _subscripts(operands):
    if isinstance(operands[0], str):
        return operands[0], [to_tensor(x) for x in operands[1:]]
    arrays, labels = list(operands[:-1:2]), list(operands[1::2])
    output = operands[-1] if len(operands) % 2 else None
    names = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = ",".join("".join("..." if i is Ellipsis else names[i] for i in sub) for sub in labels)
    if output is not None:
        text += "->" + "".join("..." if i is Ellipsis else names[i] for i in output)
    return text, [to_tensor(x) for x in arrays]


def einsum_path(*operands, optimize="greedy", einsum_call=False):
    """The order in which NumPy would contract; `einsum` finds its own."""
    given = [host.empty(x.shape) if isinstance(x, Tensor) else x for x in operands]
    return host.einsum_path(*given, optimize=optimize, einsum_call=einsum_call)


# -- differences and padding ----------------------------------------------------------------------


def diff(a, n=1, axis=-1, prepend=host._NoValue, append=host._NoValue):
    """Differences of neighbours along an axis."""
    if n == 0:
        return a
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    x = to_tensor(a)
    if not x.ndim:
        raise ValueError("diff requires input that is at least one dimensional")
    (axis,) = _axes(axis, x.ndim)
    parts = [x]
    for i, given in ((0, prepend), (len(parts) + 1, append)):
        if given is not host._NoValue:
            part = to_tensor(given)
            if not part.ndim:
                part = nm.broadcast_to(
                    part, tuple(1 if j == axis else m for j, m in enumerate(x.shape))
                )
            parts.insert(i, part)
    if len(parts) > 1:
        common = engine_dtype(host.result_type(*(p.dtype.np for p in parts)))
        x = nm.concat([cast(p, common) for p in parts], axis=axis)
    subtract = _convert.function("not_equal" if x.dtype is dt.bool_ else "subtract")
    for _ in range(n):
        later = (slice(None),) * axis + (slice(1, None),)
        earlier = (slice(None),) * axis + (slice(None, -1),)
        x = plain(subtract(x[later], x[earlier]))
    return result(x)


def pad(array, pad_width, mode="constant", **kwargs):
    """The array with a border."""
    x = to_tensor(array)
    width = host.asarray(
        pad_width.__array__() if isinstance(pad_width, Tensor) else _widths(pad_width, x.ndim)
    )
    if width.dtype.kind != "i":
        raise TypeError("`pad_width` must be of integral type.")
    width = host.broadcast_to(width, (x.ndim, 2)).tolist()
    if any(n < 0 for pair in width for n in pair):
        raise ValueError("index can't contain negative values")
    simple = mode == "constant" and set(kwargs) <= {"constant_values"}
    if simple and host.ndim(kwargs.get("constant_values", 0)) == 0:
        value = kwargs.get("constant_values", 0)
        value = host.asarray(value).astype(x.dtype.np).item()
        return adopt(nm.pad(x, [tuple(p) for p in width], "constant", constant_values=value))
    if mode in ("edge", "reflect", "symmetric", "wrap") and not kwargs and x.size:
        return adopt(nm.pad(x, [tuple(p) for p in width], mode))
    return _padded_positions(x, width, mode, kwargs)


def _widths(given, ndim):
    if not isinstance(given, dict):
        return given
    found = [(0, 0)] * ndim
    for axis, value in given.items():
        found[axis] = value if isinstance(value, (tuple, list)) else (value, value)
    return found


def _padded_positions(x, width, mode, kwargs):
    """The modes whose borders are statistics, ramps or functions: NumPy's, of the values."""
    return adopt(to_tensor(host.pad(x.numpy(), width, mode, **kwargs)))


# -- polynomials ----------------------------------------------------------------------------------


def polyval(p, x):
    """The values of a polynomial, its highest coefficient first."""
    if isinstance(x, poly1d):
        return host.polyval(_hosted(p), x)
    return result(nm.polyval(*_pair(p, x)))


def polyfit(x, y, deg, rcond=None, full=False, w=None, cov=False):
    """The least-squares polynomial of a degree."""
    if not full and not cov and rcond is None:
        pair = (cast(t, dt.float64 if not t.dtype.is_inexact else t.dtype) for t in _pair(x, y))
        weights = None if w is None else cast(to_tensor(w), dt.float64)
        return result(nm.polyfit(*pair, deg, w=weights))
    found = host.polyfit(_hosted(x), _hosted(y), deg, rcond, full, _hosted(w), cov)
    return tuple(adopt(to_tensor(f)) if isinstance(f, host.ndarray) else f for f in found)


def roots(p):
    """The roots of a polynomial; real ones where no imaginary part is left."""
    x = to_tensor(p)
    found = nm.roots(cast(x, x.dtype if x.dtype.is_inexact else dt.float64))
    if is_concrete(found) and found.dtype.is_complex and not nm.any(nm.imag(found) != 0).item():
        return result(nm.real(found))
    return result(found)


def sort_complex(a):
    """The elements as complex numbers, sorted by their real and then their imaginary part."""
    x = to_tensor(a)
    return adopt(nm.sort_complex(cast(x, engine_dtype(host.result_type(x.dtype.np, 1j)))))


def _hosted(x):
    return x.__array__() if isinstance(x, Tensor) else x


def _coefficients(name):
    """Rules on a few coefficients, which are numbers of the host: NumPy's."""
    rule = getattr(host, name)

    def apply(*args, **kwargs):
        found = rule(*map(_hosted, args), **kwargs)
        return adopt(to_tensor(found)) if isinstance(found, host.ndarray) else found

    return renamed(apply, name)


poly, polyder, polyint = map(_coefficients, ("poly", "polyder", "polyint"))


class poly1d(host.poly1d):  # noqa: N801
    """A polynomial by its coefficients; its values at arrays are arrays."""

    __hash__ = None

    def __init__(self, c_or_r, r=False, variable=None):
        super().__init__(_hosted(c_or_r), r, variable)

    def __call__(self, val):
        return polyval(self.coeffs, val) if isinstance(val, Tensor) else super().__call__(val)
