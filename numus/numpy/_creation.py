"""Arrays from numbers, sequences, grids and files, with NumPy's defaults; text of arrays."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as host

import numus as nm
from numus import aliases
from numus import dtypes as dt
from numus.numpy import _convert
from numus.numpy._array import adopt, array_result, ndarray
from numus.numpy._convert import cast, engine_dtype, plain, renamed, to_tensor
from numus.tensor import Tensor

__all__ = [
    "arange", "array", "array2string", "array_repr", "array_str", "asanyarray", "asarray",
    "asarray_chkfinite", "ascontiguousarray", "asfortranarray", "astype", "bartlett",
    "blackman", "c_", "common_type", "copy", "copyto", "empty", "empty_like", "eye",
    "from_dlpack", "frombuffer", "fromfile", "fromfunction", "fromiter", "fromregex",
    "fromstring", "full", "full_like", "genfromtxt", "geomspace", "hamming", "hanning",
    "identity", "indices", "iscomplexobj", "isfortran", "isrealobj", "isscalar", "ix_",
    "kaiser", "linspace", "load", "loadtxt", "logspace", "mask_indices", "may_share_memory",
    "meshgrid", "mgrid", "min_scalar_type", "ndim", "ogrid", "ones", "ones_like", "r_",
    "require", "result_type", "save", "savetxt", "savez", "savez_compressed", "shape",
    "shares_memory", "size", "tri", "vander", "zeros", "zeros_like",
]  # fmt: skip

bool = builtins.bool
Reader = Callable[..., Any]


def array(object, dtype=None, *, copy=True, order="K", subok=False, ndmin=0, ndmax=0, like=None):
    """An array of what is given: a copy, unless told otherwise."""
    wanted = engine_dtype(dtype)
    if isinstance(object, Tensor):
        changes = wanted is not None and wanted is not object._node.dtype
        if not changes and not copy:
            found = object if isinstance(object, ndarray) else adopt(_convert.shared(object))
        elif copy is False:
            raise ValueError("Unable to avoid copy while creating an array as requested.")
        else:
            cut = cast(plain(object), wanted)
            found = adopt(cut if changes else nm.copy(cut))
    elif copy is False and not isinstance(object, host.ndarray):
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    else:
        found = adopt(to_tensor(object, wanted))
    missing = ndmin - found.ndim
    return found.reshape((1,) * missing + found.shape) if missing > 0 else found


def asarray(a, dtype=None, order=None, *, device=None, copy=None, like=None):
    """An array of what is given; an array of that dtype is returned as it is."""
    return array(a, dtype, copy=copy)


def asanyarray(a, dtype=None, order=None, *, device=None, copy=None, like=None):
    """As asarray."""
    return array(a, dtype, copy=copy)


def ascontiguousarray(a, dtype=None, *, like=None):
    """A row-major array of one axis at least."""
    found = array(a, dtype, copy=None, ndmin=1)
    return found if found.flags.c_contiguous else found.copy()


def asfortranarray(a, dtype=None, *, like=None):
    """An array: memory is row-major, whatever order is asked for."""
    return array(a, dtype, copy=None)


def asarray_chkfinite(a, dtype=None, order=None):
    """An array without NaN and infinity."""
    found = asarray(a, dtype)
    if found._node.dtype.is_inexact and not nm.all(nm.isfinite(plain(found))).item():
        raise ValueError("array must not contain infs or NaNs")
    return found


def require(a, dtype=None, requirements=None, *, like=None):
    """An array of a dtype: all are aligned and writeable."""
    host.require(host.empty(0), requirements=requirements)  # checks them
    return array(a, dtype, copy=None)


def copy(a, order="K", subok=False):
    """A copy."""
    return array(a)


def astype(x, dtype, /, *, copy=True, device=None):
    """An array in another dtype."""
    if isinstance(x, host.generic):
        return x.astype(dtype)
    if not isinstance(x, Tensor):
        raise TypeError(f"Input should be a NumPy array. It is of type {type(x)}.")
    return asarray(x).astype(dtype, copy=copy)


def empty(shape, dtype=None, order="C", *, device=None, like=None):
    """An array of zeros: no memory is uninitialised."""
    return zeros(shape, dtype, device=device)


def zeros(shape, dtype=None, order="C", *, device=None, like=None):
    """An array of zeros, float64 unless told otherwise."""
    return adopt(nm.zeros(_shape(shape), dtype=engine_dtype(dtype or float), device=device))


def ones(shape, dtype=None, order="C", *, device=None, like=None):
    """An array of ones, float64 unless told otherwise."""
    return adopt(nm.ones(_shape(shape), dtype=engine_dtype(dtype or float), device=device))


def full(shape, fill_value, dtype=None, order="C", *, device=None, like=None):
    """An array of one value, in its dtype unless told otherwise."""
    value = to_tensor(fill_value, dtype)
    return adopt(nm.copy(nm.broadcast_to(value, _shape(shape))))


def _shape(given):
    if isinstance(given, Tensor):
        given = given.tolist()
    return (
        given
        if isinstance(given, int)
        else (int(given) if hasattr(given, "__index__") else tuple(map(_size, given)))
    )


def _size(n):
    if isinstance(n, (float, host.floating)):
        raise TypeError(f"'{type(n).__name__}' object cannot be interpreted as an integer")
    return int(n)


def _like(make, name):
    def like(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
        x = to_tensor(a)
        return make(
            x.shape if shape is None else shape, dtype or x.dtype.np, device=device or x.device
        )

    return renamed(like, name)


empty_like = _like(empty, "empty_like")
zeros_like = _like(zeros, "zeros_like")
ones_like = _like(ones, "ones_like")


def full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    """One value everywhere, in the shape and dtype of an array."""
    x = to_tensor(a)
    return full(x.shape if shape is None else shape, fill_value, dtype or x.dtype.np)


def arange(start_or_stop, /, stop=None, step=1, *, dtype=None, device=None, like=None, **named):
    """Numbers from a start to a stop (not included)."""
    start = named.pop("start", start_or_stop)
    bounds = [start] if stop is None else [start, stop]
    bounds = [b[()] if isinstance(b, Tensor) and not b.shape else b for b in [*bounds, step]]
    if dtype is None and all(isinstance(b, (int, float)) for b in bounds):
        dtype = int if all(isinstance(b, int) for b in bounds) else float
        step = bounds.pop()
        return adopt(nm.arange(*_ends(bounds), step, dtype=engine_dtype(dtype), device=device))
    step = bounds.pop()
    return adopt(to_tensor(host.arange(*_ends(bounds), step, dtype=dtype)))


def _ends(bounds):
    return (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])


def _spaced(name, extra):
    """linspace and its kin: numbers by the engine, arrays by broadcasting along a new axis."""
    engine = getattr(nm, name)

    def make(start, stop, num=50, endpoint=True, *args, **kwargs):
        names = {"linspace": ("retstep", "dtype", "axis"), "logspace": ("base", "dtype", "axis")}
        kwargs |= dict(zip(names.get(name, ("dtype", "axis")), args, strict=False))
        num = num if isinstance(num, int) else num.__index__()
        if num < 0:
            raise ValueError(f"Number of samples, {num}, must be non-negative.")
        ends = [
            _convert.has_tensors(x) or not host.isscalar(x)
            for x in (start, stop, kwargs.get("base", 0))
        ]
        integral = kwargs.get("dtype") is not None and host.dtype(kwargs["dtype"]).kind in "iu"
        if any(ends) or integral or isinstance(start, complex) or isinstance(stop, complex):
            given = {k: _hosted(v) for k, v in kwargs.items()}
            found = getattr(host, name)(_hosted(start), _hosted(stop), num, endpoint, **given)
            return tuple(map(_from_host, found)) if isinstance(found, tuple) else _from_host(found)
        wanted = engine_dtype(kwargs.get("dtype") or host.result_type(start, stop, 1.0))
        options = {"base": kwargs["base"]} if "base" in kwargs else {}
        found = engine(start, stop, num, endpoint=endpoint, dtype=dt.float64, **options)
        made = adopt(cast(found, wanted))
        if kwargs.get("retstep"):
            parts = num - 1 if endpoint else num
            return made, host.float64((stop - start) / parts) if parts else host.float64("nan")
        return made

    return renamed(make, name)


def _hosted(x):
    return x.__array__() if isinstance(x, Tensor) else x


def _from_host(x):
    return adopt(to_tensor(x)) if isinstance(x, host.ndarray) else x


linspace = _spaced("linspace", "")
logspace = _spaced("logspace", "")
geomspace = _spaced("geomspace", "")


def eye(N, M=None, k=0, dtype=float, order="C", *, device=None, like=None):
    """Ones on a diagonal, zeros elsewhere."""
    return adopt(nm.eye(N, N if M is None else M, k=int(k), dtype=engine_dtype(dtype or float)))


def identity(n, dtype=None, *, like=None):
    """The identity matrix."""
    return eye(n, dtype=dtype or float)


def tri(N, M=None, k=0, dtype=float, *, like=None):
    """Ones at and below a diagonal."""
    return adopt(nm.tri(N, N if M is None else M, k=k, dtype=engine_dtype(dtype)))


def vander(x, N=None, increasing=False):
    """The powers of a vector as columns."""
    v = to_tensor(x)
    wide = engine_dtype(host.promote_types(v.dtype.np, int))
    return adopt(nm.vander(cast(v, wide), N, increasing))


def fromfunction(function, shape, *, dtype=float, like=None, **kwargs):
    """A function of the coordinates of each element."""
    return function(*indices(shape, dtype=dtype), **kwargs)


def indices(dimensions, dtype=int, sparse=False):
    """The coordinates of each element of a grid."""
    return array_result(nm.indices(tuple(dimensions), engine_dtype(dtype), sparse))


def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    """Coordinate matrices from coordinate vectors."""
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    lines = [nm.reshape(to_tensor(x), -1) for x in xi]
    if not sparse:
        return tuple(map(adopt, nm.meshgrid(*lines, indexing=indexing))) if lines else ()
    found = []
    for i, line in enumerate(lines):
        at = {0: 1, 1: 0}.get(i, i) if indexing == "xy" and len(lines) > 1 else i
        found.append(
            adopt(nm.reshape(line, tuple(-1 if j == at else 1 for j in range(len(lines)))))
        )
    return tuple(found)


def ix_(*args):
    """Vectors shaped to broadcast to an open mesh."""
    return tuple(_from_host(x) for x in host.ix_(*map(_hosted, args)))


def mask_indices(n, mask_func, k=0):
    """Indices of an n × n array, where a function of it is not zero."""
    found: tuple[ndarray, ...] = _convert.function("nonzero")(mask_func(ones((n, n), int), k))
    return found


class _Grid:
    """np.mgrid, np.ogrid, np.r_ and np.c_: grids written as slices."""

    def __init__(self, name):
        self.name = name

    def __getitem__(self, key):
        items = tuple(_hosted(k) for k in key) if isinstance(key, tuple) else _hosted(key)
        found = getattr(host, self.name)[items]
        return tuple(map(_from_host, found)) if isinstance(found, tuple) else _from_host(found)

    def __len__(self):
        return 0


mgrid, ogrid, r_, c_ = (_Grid(name) for name in ("mgrid", "ogrid", "r_", "c_"))


def _window(name):
    def make(M, *beta):
        if M < 1:
            return adopt(nm.zeros((0,), dtype=dt.float64))
        return adopt(to_tensor(getattr(host, name)(M, *beta)))

    return renamed(make, name)


bartlett, blackman, hamming, hanning, kaiser = map(
    _window, "bartlett blackman hamming hanning kaiser".split()
)


def _read(name):
    """A function that makes arrays of host data: NumPy reads it, numus holds it."""
    reader = getattr(host, name)

    def read(*args, **kwargs):
        found = reader(*args, **kwargs)
        if isinstance(found, host.lib.npyio.NpzFile):
            with found:
                return {key: _from_host(found[key]) for key in found.files}
        return [_from_host(x) for x in found] if isinstance(found, list) else _from_host(found)

    return renamed(read, name)


frombuffer, fromfile, fromiter, fromregex, fromstring, genfromtxt, load, loadtxt = map(
    _read, "frombuffer fromfile fromiter fromregex fromstring genfromtxt load loadtxt".split()
)


def _write(name):
    writer = getattr(host, name)

    def write(*args, **kwargs):
        writer(*map(_hosted, args), **{k: _hosted(v) for k, v in kwargs.items()})

    return renamed(write, name)


save, savetxt, savez, savez_compressed = map(_write, "save savetxt savez savez_compressed".split())


def from_dlpack(x, /, *, device=None, copy=None):
    """An array of any object with DLPack."""
    return adopt(plain(nm.from_dlpack(x, device=device, copy=copy)))


def copyto(dst, src, casting="same_kind", where=True):
    """Copy values into an array, where a mask holds."""
    if not isinstance(dst, Tensor):
        raise TypeError(f"copyto() argument 1 must be numpy.ndarray, not {type(dst).__name__}")
    value = to_tensor(src)
    weak = type(src) in (int, float, complex, bool)
    kind = type(src) if weak else value.dtype.np
    if weak and not isinstance(src, complex):
        host.copyto(host.zeros((), dst._node.dtype.np), src, casting=casting)  # checks it
    elif not host.can_cast(kind, dst._node.dtype.np, casting):
        kinds = f"from {value.dtype.np!r} to {dst._node.dtype.np!r}"
        raise TypeError(f"Cannot cast array data {kinds} according to the rule {casting!r}")
    nm.copyto(
        dst, cast(value, dst._node.dtype), "unsafe", True if where is True else to_tensor(where)
    )


# -- questions ------------------------------------------------------------------------------------


def shape(a):
    """The extents of the axes."""
    return a.shape if hasattr(a, "shape") else to_tensor(a).shape


def ndim(a):
    """The number of axes."""
    return len(shape(a))


def size(a, axis=None):
    """The number of elements, all or along axes."""
    found = shape(a)
    if axis is None:
        return int(host.prod(found, dtype=int))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return int(
        host.prod([found[i] for i in host.lib.array_utils.normalize_axis_tuple(axes, len(found))])
    )


def isscalar(element):
    """Whether it is a scalar, and no array."""
    return host.isscalar(element)


def iscomplexobj(x):
    """Whether the dtype is complex."""
    return x._node.dtype.is_complex if isinstance(x, Tensor) else host.iscomplexobj(_probe(x))


def isrealobj(x):
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


def _probe(x):
    return to_tensor(x).numpy() if _convert.has_tensors(x) else x


def isfortran(a):
    """Whether memory is column-major and not row-major."""
    return bool(asarray(a).flags.fnc)


def _base(x):
    own = x._alias
    return own[0] if own is not None else id(x)


def shares_memory(a, b, /, max_work=-1):
    """Whether a write to one may be seen in the other."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return a is b or (_base(a) is _base(b) and aliases.may_overlap(_path(a), _path(b)))


def _path(x):
    return x._alias[1]


may_share_memory = shares_memory


def _dtypes(given):
    return [x._node.dtype.np if isinstance(x, Tensor) else x for x in given]


def result_type(*arrays_and_dtypes):
    """The dtype that NumPy's promotion gives."""
    return host.result_type(*_dtypes(arrays_and_dtypes))


def common_type(*arrays):
    """The floating-point type that holds all."""
    return host.common_type(
        *(host.empty(0, d) if isinstance(d, host.dtype) else d for d in _dtypes(arrays))
    )


def min_scalar_type(a, /):
    """The smallest dtype that holds a scalar."""
    return host.min_scalar_type(_hosted(a))


# -- text -----------------------------------------------------------------------------------------


def array2string(a, *args, **kwargs):
    """The text of an array."""
    return host.array2string(_hosted(a), *args, **kwargs)


def array_repr(arr, *args, **kwargs):
    """The text of an array with its dtype."""
    return host.array_repr(_hosted(arr), *args, **kwargs)


def array_str(a, *args, **kwargs):
    """The text of an array's elements."""
    return host.array_str(_hosted(a), *args, **kwargs)
