"""Arrays from numbers, sequences, grids and files, with NumPy's defaults.

The functions have the parameters that mean something here; `_bind` gives them NumPy's own.
"""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.functions.indexing.coordinates import Joined, Mesh
from numus.functions.interop.numpy_errors import hosted
from numus.numpy import _convert as nc
from numus.tensor import Tensor


def array(object: Any, dtype: Any = None, *, copy: Any = True, ndmin: int = 0) -> Any:
    """An array of what is given: a copy, unless told otherwise."""
    is_tensor = isinstance(object, Tensor)
    changes = dtype is not None and not (is_tensor and dtype is object._node.dtype)
    if copy is False and (changes if is_tensor else not isinstance(object, host.ndarray)):
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    if is_tensor and not changes:
        found = nm.copy(nc.plain(object)) if copy else object
        found = found if type(found) is not Tensor or copy else nc.shared(found)
    else:
        found = nc.to_tensor(object, dtype)
    missing = ndmin - found.ndim
    return nm.reshape(nc.shared(found), (1,) * missing + found.shape) if missing > 0 else found


def asarray(a: Any, dtype: Any = None, *, copy: Any = None) -> Any:
    """An array of what is given; an array of that dtype is returned as it is."""
    return array(a, dtype, copy=copy)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """A row-major array of one axis at least."""
    found = nc.adopt(array(a, dtype, copy=None, ndmin=1))
    return found if found.flags.c_contiguous else found.copy()


asanyarray = asfortranarray = asarray  # memory is row-major, whatever order is asked for


def asarray_chkfinite(a: Any, dtype: Any = None) -> Any:
    """An array without NaN and infinity."""
    nm.asarray_chkfinite(nc.to_tensor(a))
    return asarray(a, dtype)


def require(a: Any, dtype: Any = None, requirements: Any = None) -> Any:
    """An array of a dtype: all are aligned and writeable."""
    host.require(host.empty(0), requirements=requirements)  # checks them
    return array(a, dtype, copy=None)


def copy(a: Any) -> Any:
    """A copy."""
    return array(a)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """An array in another dtype."""
    if not isinstance(x, (Tensor, host.generic)):
        raise TypeError(f"Input should be a NumPy array. It is of type {type(x)}.")
    return x.astype(dtype) if isinstance(x, host.generic) else nc.adopt(x).astype(dtype, copy=copy)


def shape_of(given: Any) -> Any:
    """A shape as NumPy takes one: a number, a sequence or an array of integers."""
    given = given.tolist() if isinstance(given, Tensor) else given
    if hasattr(given, "__index__"):
        return int(given)
    if any(isinstance(n, (float, host.floating)) for n in given):
        raise TypeError("'float' object cannot be interpreted as an integer")
    return tuple(map(int, given))


def _made(name: str) -> Any:
    engine = getattr(nm, name)

    def make(shape: Any, dtype: Any = dt.float64, *, device: Any = None) -> Tensor:
        found: Tensor = engine(shape_of(shape), dtype=dtype, device=device)
        return found

    return make


zeros, ones = _made("zeros"), _made("ones")
empty = zeros  # no memory is uninitialised


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """An array of one value, in its dtype unless told otherwise."""
    return nm.copy(nm.broadcast_to(nc.to_tensor(fill_value, dtype), shape_of(shape)))


def _like(make: Any) -> Any:
    def like(a: Any, *value: Any, dtype: Any = None, shape: Any = None, **options: Any) -> Tensor:
        x = nc.to_tensor(a)
        given = tuple(options.pop(n) for n in ("fill_value",) if n in options)
        options["device"] = options.get("device") or x.device
        extents = x.shape if shape is None else shape
        found: Tensor = make(extents, *value, *given, dtype=dtype or x.dtype, **options)
        return found

    return like


zeros_like = empty_like = _like(zeros)
ones_like, full_like = _like(ones), _like(full)


# -- numbers in a row -----------------------------------------------------------------------------


def _number(x: Any) -> Any:
    return x.item() if hasattr(x, "item") else x


def arange(
    start_or_stop: Any = None,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    like: Any = None,
    **named: Any,
) -> Any:
    """Numbers from a start to a stop (not included)."""
    first = named.pop("start", start_or_stop)
    if stop is None and start_or_stop is None:
        raise TypeError("arange() requires stop to be specified.")
    start, end = (0, first) if stop is None else (0 if first is None else first, stop)
    given = (start, end, 1 if step is None else step)
    wanted = nc.engine_dtype(dtype) or nc.common_dtype(host.dtype(int), *given)
    if wanted.is_complex or wanted is dt.bool_:
        raise TypeError(f"numus.numpy: arange counts in real numbers, not in {wanted.name}")
    low, high, by = map(_number, given)
    return nc.adopt(nm.arange(low, high, by, dtype=wanted, device=device))


def _spaced(name: str) -> Any:
    engine = getattr(nm, name)

    def make(
        start: Any,
        stop: Any,
        num: Any = 50,
        endpoint: bool = True,
        *,
        retstep: bool = False,
        dtype: Any = None,
        axis: int = 0,
        **base: Any,
    ) -> Any:
        count = num.__index__()
        if count < 0:
            raise ValueError(f"Number of samples, {count}, must be non-negative.")
        given = [start, stop, *base.values()]
        given = [x if host.isscalar(x) else nc.to_tensor(x) for x in given]
        first, last, *root = [x if getattr(x, "ndim", 0) else _number(x) for x in given]
        wide = nc.common_dtype(first, last, 1.0)
        compute = dt.complex128 if wide.is_complex else dt.float64
        options = {"endpoint": endpoint, "axis": axis, **dict(zip(base, root, strict=True))}
        found = engine(first, last, count, dtype=compute, **options)
        if dtype is not None and dtype.is_integer:
            found = nm.floor(found)
        made = nc.cast(found, dtype or wide)
        return (made, _step(first, last, count - 1 if endpoint else count)) if retstep else made

    return make


def _step(first: Any, last: Any, parts: int) -> Any:
    ends = (nc.adopt(x) if isinstance(x, Tensor) else x for x in (last, first))
    between = nc.function("subtract")(*ends)
    return nc.function("true_divide")(between, parts) if parts else host.float64("nan")


linspace, logspace, geomspace = map(_spaced, ("linspace", "logspace", "geomspace"))


def _window(name: str) -> Any:
    engine = getattr(nm, f"{name}_window")

    def make(M: Any, **beta: Any) -> Any:
        options = {name: float(value) for name, value in beta.items()}
        return engine(max(int(M), 0), False, dtype=dt.float64, **options)

    return make


bartlett, blackman, hamming, kaiser = map(_window, ("bartlett", "blackman", "hamming", "kaiser"))
hanning = _window("hann")


# -- matrices and grids ---------------------------------------------------------------------------


def _diagonal(name: str) -> Any:
    engine = getattr(nm, name)

    def make(N: int, M: Any = None, k: Any = 0, dtype: Any = dt.float64) -> Tensor:
        found: Tensor = engine(N, M, k=k.__index__(), dtype=dtype)
        return found

    return make


eye, tri = _diagonal("eye"), _diagonal("tri")


def identity(n: int, dtype: Any = dt.float64) -> Tensor:
    """The identity matrix."""
    return nm.eye(n, dtype=dtype)


def fromfunction(function: Any, shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """A function of the coordinates of each element."""
    return function(*nc.array_result(indices(shape, nc.engine_dtype(dtype))), **kwargs)


def indices(dimensions: Any, dtype: Any = dt.int64, sparse: bool = False) -> Any:
    """The coordinates of each element of a grid."""
    return nm.indices(tuple(dimensions), dtype, sparse)


def ix_(*args: Any) -> Any:
    """Vectors shaped to broadcast to an open mesh."""
    known = (Tensor, host.ndarray)  # what has no elements and no dtype is an index
    given = ((a, nc.to_tensor(a)) for a in args)
    ready = (x if x.size or isinstance(a, known) else nc.cast(x, dt.int64) for a, x in given)
    return nc.array_result(nm.ix_(*ready))


def mask_indices(n: int, mask_func: Any, k: Any = 0) -> Any:
    """Indices of an n × n array, where a function of it is not zero."""
    return nc.function("nonzero")(mask_func(nc.adopt(ones((n, n), dt.int64)), k))


class _OfFace(nc.OfArrays):
    """Meshes and joins of slices: points, dtypes and results as NumPy has them."""

    def _spaced(self, *args: Any) -> Tensor:
        found: Tensor = linspace(*args)
        return found

    def _counted(self, *args: Any) -> Tensor:
        found: Tensor = nc.plain(arange(*args))
        return found

    def _together(self, items: list[Any], parts: list[Tensor]) -> list[Tensor]:
        pairs = zip(items, parts, strict=True)
        return nc.in_common_dtype(parts, nc.common_dtype(*(self._kind(i, p) for i, p in pairs)))

    def _kind(self, item: Any, part: Tensor) -> Any:
        if isinstance(item, slice) and isinstance(item.step, host.floating):
            return nc.common_dtype(item.stop, item.step)
        return item if type(item) in (int, float, complex) else part


_grid, _join = type("Grid", (_OfFace, Mesh), {}), type("Joined", (_OfFace, Joined), {})
mgrid, ogrid, r_, c_ = _grid(False), _grid(True), _join(False), _join(True)


# -- files, memory, text --------------------------------------------------------------------------


def _from_host(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(map(_from_host, x))
    return nc.adopt(nc.to_tensor(x)) if isinstance(x, host.ndarray) else x


def _read(name: str) -> Any:
    """A function that makes arrays of host data: NumPy reads it, numus holds it."""
    reader = getattr(host, name)

    def read(*args: Any, **kwargs: Any) -> Any:
        found = reader(*args, **kwargs)
        if isinstance(found, host.lib.npyio.NpzFile):
            with found:
                return {key: _from_host(found[key]) for key in found.files}
        return _from_host(found)

    return nc.renamed(read, name)


def _write(name: str) -> Any:
    """A function that writes or prints the elements: NumPy's, of host memory."""
    writer = getattr(host, name)

    def write(*args: Any, **kwargs: Any) -> Any:
        return writer(*map(hosted, args), **{k: hosted(v) for k, v in kwargs.items()})

    return nc.renamed(write, name)


_READERS = "frombuffer fromfile fromiter fromregex fromstring genfromtxt load loadtxt".split()
_WRITERS = "save savetxt savez savez_compressed array2string array_repr array_str".split()
# Those that are called as they are; the others are bound to NumPy's signatures.
OWN: dict[str, Any] = {
    **{name: _read(name) for name in _READERS}, **{name: _write(name) for name in _WRITERS},
    "arange": arange, "astype": astype, "c_": c_, "fromfunction": fromfunction, "ix_": ix_,
    "mask_indices": mask_indices, "may_share_memory": nm.shares_memory, "mgrid": mgrid,
    "ogrid": ogrid, "r_": r_, "shares_memory": nm.shares_memory,
}  # fmt: skip
