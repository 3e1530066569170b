"""NumPy's universal functions over numus's elementwise functions.

The dtypes of a call are those that NumPy's own ufunc of this name resolves (NEP 50, `dtype=`,
`signature=`, `casting=`); operands are cast to them, in the graph, and the engine's function
computes. Calls on scalars alone are NumPy's: there is no array to compute with.
"""

from __future__ import annotations

import functools

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.numpy._array import adopt, array_result, ndarray, result, write_out
from numus.numpy._convert import (
    cast,
    engine_dtype,
    engine_index,
    function,
    has_tensors,
    plain,
    raise_as_reference,
    to_tensor,
)
from numus.tensor import Tensor

_WEAK = (int, float, complex)
_SCALARS = (bool, int, float, complex, host.generic)
_BOOLEAN = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or"}
_BOOLEAN |= {"minimum": "logical_and", "fmax": "logical_or", "fmin": "logical_and"}
_BOOLEAN |= {"absolute": "copy"}
_COMPARISONS = "equal not_equal less less_equal greater greater_equal".split()
_CORE = ("matmul", "vecdot", "matvec", "vecmat")  # generalised ufuncs: loops over leading axes

_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
_REDUCTIONS |= {"logical_and": "all", "logical_or": "any"}
_SCANS = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"}
_SCATTERS = {"add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin"}


@functools.lru_cache(8192)
def _resolved(ufunc, kinds, signature, casting):
    """The dtypes that operands are cast to, and those of results."""
    missing = (None,) * ufunc.nout
    options = {} if signature is None else {"signature": signature}
    found = ufunc.resolve_dtypes(kinds + missing, casting=casting, **options)
    known = tuple(engine_dtype(d) for d in found)
    return known[: ufunc.nin], known[ufunc.nin :]


def _kind(x):
    """What NumPy's resolution is told about an operand: a dtype, or a Python type that is weak."""
    if isinstance(x, Tensor):
        return x._node.dtype.np
    kind = type(x)
    if kind in _WEAK:
        return kind
    return host.dtype(bool) if kind is bool else x.dtype


def as_operand(x):
    """An operand: scalars stay, everything else becomes a tensor."""
    if isinstance(x, Tensor) or type(x) in _WEAK or isinstance(x, _SCALARS):
        return x
    return to_tensor(x)


class ufunc:  # noqa: N801
    """A function of elements, with NumPy's ways to apply it."""

    def __init__(self, name, engine=None):
        self.numpy = getattr(host, name)
        self.__name__ = name
        self.__doc__ = f"As `numpy.{name}`, over `numus.{name}`."
        self.engine = engine or getattr(nm, name)

    def __getattr__(self, name):
        if name in ("nin", "nout", "nargs", "identity", "signature", "types", "ntypes"):
            return getattr(self.numpy, name)
        raise AttributeError(f"ufunc {self.__name__!r} has no attribute {name!r}")

    def __repr__(self):
        return f"<ufunc '{self.__name__}'>"

    def __reduce__(self):
        return _by_name, (self.__name__,)

    def resolve_dtypes(self, dtypes, **options):
        """The dtypes of a call: NumPy's."""
        return self.numpy.resolve_dtypes(dtypes, **options)

    # -- calls ------------------------------------------------------------------------------------

    def __call__(
        self,
        *args,
        out=None,
        where=True,
        casting="same_kind",
        order="K",
        dtype=None,
        subok=True,
        signature=None,
        sig=None,
        **options,
    ):
        nin, nout = self.numpy.nin, self.numpy.nout
        if not nin <= len(args) <= nin + nout:
            raise TypeError(
                f"{self.__name__}() takes from {nin} to {nin + nout} positional arguments but "
                f"{len(args)} were given"
            )
        if len(args) > nin:
            if out is not None:
                raise TypeError("cannot specify 'out' as both a positional and keyword argument")
            out = tuple(args[nin:]) + (None,) * (nin + nout - len(args))
        outs = out if isinstance(out, tuple) else (out,) + (None,) * (nout - 1)
        if len(outs) != nout:
            raise ValueError("The 'out' tuple must have exactly one entry per ufunc output")
        operands = [as_operand(x) for x in args[:nin]]
        choices = (dtype, signature, sig, *outs, options or None)
        on_host = not any(isinstance(x, Tensor) for x in operands)
        if on_host and where is True and all(c is None for c in choices):
            return self.numpy(*operands)
        wanted = _signature(dtype, signature if signature is not None else sig, nin, nout)
        try:
            found = self._apply(operands, wanted, casting, dict(options))
        except (ShapeError, DTypeError):
            raise_as_reference(self.numpy, operands, options)
            raise
        results = found if isinstance(found, tuple) else (found,)
        given = [self._write(x, o, where, casting) for x, o in zip(results, outs, strict=True)]
        return given[0] if nout == 1 else tuple(given)

    def _apply(self, operands, wanted, casting, options):
        kinds = tuple(map(_kind, operands))
        if wanted is None and self.__name__ in _COMPARISONS:
            operands, kinds = _comparable(operands, kinds)
        into, outputs = _resolved(self.numpy, kinds, wanted, casting)
        like = next((x.device for x in operands if isinstance(x, Tensor)), None)
        ready = [_loaded(x, d, like) for x, d in zip(operands, into, strict=True)]
        engine = self.engine
        if into[0] is dt.bool_ and self.__name__ in _BOOLEAN:
            engine = getattr(nm, _BOOLEAN[self.__name__])
        if self.__name__ == "power" and into[0].is_integer and _any_negative(operands[1]):
            raise ValueError("Integers to negative integer powers are not allowed.")
        if self.__name__ in _CORE:
            _check_core(self.__name__, ready)
            return _core_call(engine, ready, options)
        if options:
            raise TypeError(f"{self.__name__}() got unexpected keyword arguments {sorted(options)}")
        found = engine(*ready)
        if isinstance(found, tuple):
            return tuple(cast(x, d) for x, d in zip(found, outputs, strict=True))
        return cast(found, outputs[0])

    def _write(self, x, out, where, casting):
        if where is True:
            return write_out(x, out, self.__name__, casting)
        mask = _mask(where)
        shape = host.broadcast_shapes(x.shape, mask.shape, () if out is None else out.shape)
        old = nm.zeros((), dtype=x.dtype) if out is None else plain(out)
        if out is not None and not host.can_cast(x.dtype.np, old.dtype.np, casting):
            return write_out(x, out, self.__name__, casting)  # raises
        new = nm.where(mask, cast(x, old.dtype), old)
        return write_out(nm.broadcast_to(new, shape), out, self.__name__, casting)

    # -- along axes -------------------------------------------------------------------------------

    def reduce(
        self, array, axis=0, dtype=None, out=None, keepdims=False, initial=host._NoValue, where=True
    ):
        """Combine the elements along axes."""
        self._require_binary("reduce")
        x = to_tensor(array)
        axes = _axes(axis, x.ndim)
        given = out[0] if isinstance(out, tuple) else out
        wide = self._reduced_dtype(x, dtype if dtype is not None or given is None else given.dtype)
        if dtype is None and given is not None and self.__name__ not in ("add", "multiply"):
            wide = self._reduced_dtype(x, None)
        x = cast(x, wide)
        if where is not True:
            x = self._masked(x, where, initial)
        if not axes:
            found = x
        elif self.__name__ in _REDUCTIONS:
            found = self._engine_reduction(x, axes, initial)
        else:
            found = self._folded(x, axes)
        if initial is not host._NoValue and initial is not None:
            found = (
                self.engine(*_pair(found, initial))
                if found.dtype is not dt.bool_
                else (_truth(self.__name__, found, initial))
            )
        if keepdims:
            kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
            found = nm.reshape(found, kept)
        return write_out(
            found, given, self.__name__, "unsafe" if dtype is not None else "same_kind"
        )

    def _reduced_dtype(self, x, dtype):
        name, own = self.__name__, x.dtype
        if dtype is not None:
            found = engine_dtype(dtype)
            assert found is not None
            return found
        if name in ("add", "multiply") and (own is dt.bool_ or own.is_integer) and own.itemsize < 8:
            return dt.uint64 if own.kind == "uint" else dt.int64
        if name.startswith("logical") or name in _COMPARISONS:
            return dt.bool_
        into, _ = _resolved(self.numpy, (own.np, own.np), None, "same_kind")
        return into[0]

    def _engine_reduction(self, x, axes, initial):
        name = self.__name__
        empty = any(x.shape[i] == 0 for i in axes)
        if empty and name in ("maximum", "minimum"):
            if initial is host._NoValue:
                raise ValueError(
                    f"zero-size array to reduction operation {name} which has no identity"
                )
            rest = tuple(n for i, n in enumerate(x.shape) if i not in axes)
            return nm.full(rest, initial, dtype=x.dtype, device=x.device)
        kept = {"dtype": x.dtype} if name in ("add", "multiply") else {}
        if x.dtype is dt.bool_ and name in _BOOLEAN:
            name, kept = _BOOLEAN[name], {}
        found: Tensor = getattr(nm, _REDUCTIONS[name])(x, axis=axes, **kept)
        return found

    def _folded(self, x, axes):
        if (
            len(axes) > 1
            and self.numpy.identity is None
            and self.__name__ in ("subtract", "divide")
        ):
            text = "is not reorderable, so at most one axis may be specified"
            raise ValueError(f"reduction operation '{self.__name__}' {text}")
        for axis in sorted(axes, reverse=True):
            parts = [plain(p) for p in nm.unstack(x, axis=axis)]
            if not parts:
                if self.numpy.identity is None:
                    text = f"operation {self.__name__} which has no identity"
                    raise ValueError(f"zero-size array to reduction {text}")
                rest = x.shape[:axis] + x.shape[axis + 1 :]
                x = nm.full(rest, self.numpy.identity, dtype=x.dtype)
                continue
            x = functools.reduce(lambda a, b: plain(self.engine(a, b)), parts)
        return x

    def _masked(self, x, where, initial):
        mask = _mask(where)
        identity = self.numpy.identity
        if self.__name__ in ("maximum", "minimum"):
            if initial is host._NoValue:
                raise ValueError(
                    f"reduction operation '{self.__name__}' does not have an identity, so to use a "
                    "where mask one has to specify 'initial'"
                )
            identity = initial
        shape = host.broadcast_shapes(x.shape, mask.shape)
        return nm.where(mask, nm.broadcast_to(x, shape), nm.full((), identity, dtype=x.dtype))

    def accumulate(self, array, axis=0, dtype=None, out=None):
        """The results of reducing the first 1, 2, … elements along an axis."""
        self._require_binary("accumulate")
        x = to_tensor(array)
        if not x.ndim:
            raise TypeError("cannot accumulate on a scalar")
        given = out[0] if isinstance(out, tuple) else out
        wanted = dtype if dtype is not None or given is None else given.dtype
        x = cast(x, self._reduced_dtype(x, wanted))
        (at,) = _axes(axis, x.ndim)
        kept = {"dtype": x.dtype} if self.__name__ in ("add", "multiply") else {}
        if self.__name__ in _SCANS and x.dtype is not dt.bool_:
            found = getattr(nm, _SCANS[self.__name__])(x, axis=at, **kept)
        elif x.shape[at] == 0:
            found = x
        else:
            parts = [plain(p) for p in nm.unstack(x, axis=at)]
            for i in range(1, len(parts)):
                parts[i] = plain(self._apply([parts[i - 1], parts[i]], None, "same_kind", {}))
            found = nm.stack(parts, axis=at)
        return write_out(found, given, self.__name__, "unsafe")

    def reduceat(self, array, indices, axis=0, dtype=None, out=None):
        """Reduce slices between successive indices along an axis."""
        self._require_binary("reduceat")
        x = to_tensor(array)
        (at,) = _axes(axis, x.ndim)
        starts = [int(i) for i in host.asarray(to_tensor(indices).numpy(), dtype=int)]
        if any(not 0 <= i < x.shape[at] for i in starts):
            raise IndexError(f"index out-of-bounds in {self.__name__}.reduceat [0, {x.shape[at]})")
        parts = []
        for start, stop in zip(starts, [*starts[1:], x.shape[at]], strict=True):
            cut = (slice(None),) * at + (slice(start, max(stop, start + 1)),)
            part = self.reduce(adopt(plain(x)[cut]), axis=at, dtype=dtype)
            parts.append(to_tensor(part))
        shape = (*x.shape[:at], 0, *x.shape[at + 1 :])
        found = nm.stack(parts, axis=at) if parts else nm.zeros(shape, dtype=x.dtype)
        return write_out(found, out, self.__name__, "unsafe")

    def outer(self, a, b, /, **options):
        """The function of all pairs of elements."""
        self._require_binary("outer")
        x, y = to_tensor(a), to_tensor(b)
        if isinstance(a, _WEAK) or isinstance(b, _WEAK):
            return self(a, b, **options)
        return self(adopt(nm.reshape(x, x.shape + (1,) * y.ndim)), adopt(y), **options)

    def at(self, a, indices, b=None, /):
        """Apply the function in place at indices, once for each time they name an element."""
        if not isinstance(a, Tensor):
            raise TypeError("ufunc.at: the first operand must be an array")
        if (self.numpy.nin == 1) != (b is None):
            raise ValueError("second operand needed for ufunc" if b is None else "only one operand")
        index = engine_index(indices)
        values = plain(a)
        if self.__name__ in ("add", "subtract") and values.dtype is not dt.bool_:
            change = cast(to_tensor(b), values.dtype)
            change = nm.negative(change) if self.__name__ == "subtract" else change
            at = index if isinstance(index, tuple) else (index,)
            a.rebind(nm.index_put(values, at, change, accumulate=True)._node, "at")
            return
        places = nm.reshape(nm.arange(values.size), values.shape)[index]
        flat = adopt(nm.reshape(nm.copy(values), -1))
        given = None if b is None else nm.reshape(nm.broadcast_to(to_tensor(b), places.shape), -1)
        for i, place in enumerate(nm.reshape(places, -1).tolist()):
            operands = (flat[place],) if given is None else (flat[place], result(given[i]))
            flat[place] = self.numpy(*operands)
        a.rebind(nm.reshape(plain(flat), values.shape)._node, "at")

    def _require_binary(self, what):
        if self.numpy.nin != 2:
            raise ValueError(f"{what} only supported for binary functions")
        if self.numpy.nout != 1:
            raise ValueError(f"{what} only supported for functions returning a single value")


def _by_name(name):
    return function(name)


def _signature(dtype, signature, nin, nout):
    if signature is None:
        return None if dtype is None else (None,) * nin + (host.dtype(dtype),) * nout
    if dtype is not None:
        raise TypeError("cannot specify both 'signature' and 'dtype'")
    if isinstance(signature, str):
        left, _, right = signature.partition("->")
        if not right:
            return (None,) * nin + tuple(map(host.dtype, left))
        return tuple(map(host.dtype, left + right))
    given = tuple(signature) if isinstance(signature, tuple) else (signature,)
    given = tuple(None if d is None else host.dtype(d) for d in given)
    return (None,) * nin + given * nout if len(given) == 1 else given


def _loaded(x, dtype, device):
    if isinstance(x, Tensor):
        return cast(plain(x), dtype)
    if type(x) is int and dtype.is_integer:
        host.array(x, dtype.np)  # out of range is an error
    with host.errstate(all="ignore"):
        return nm.full((), host.asarray(x).astype(dtype.np)[()].item(), dtype=dtype, device=device)


def _comparable(operands, kinds):
    """Comparisons with a Python integer that the array's dtype does not hold are still exact."""
    for i, other in ((0, 1), (1, 0)):
        if kinds[i] is int and not isinstance(kinds[other], type) and kinds[other].kind in "iu":
            low, high = dt.int_range(dt.as_dtype(kinds[other]))
            if not low <= operands[i] <= high:
                operands = list(operands)
                operands[i] = float(operands[i])
                return operands, tuple(map(_kind, operands))
    return operands, kinds


def _any_negative(exponent):
    if isinstance(exponent, Tensor):
        from numus.numpy._array import is_concrete

        if exponent._node.dtype.kind != "int" or not is_concrete(exponent):
            return False
        return bool((exponent.__array__() < 0).any())
    return bool(exponent < 0)


def _check_core(name, ready):
    wanted = {"matmul": (1, 1), "vecdot": (1, 1), "matvec": (2, 1), "vecmat": (1, 2)}[name]
    for i, (x, n) in enumerate(zip(ready, wanted, strict=True)):
        if x.ndim < n:
            raise ValueError(
                f"{name}: Input operand {i} does not have enough dimensions (has {x.ndim}, gufunc "
                f"core with signature {getattr(host, name).signature} requires {n})"
            )


def _core_call(engine, ready, options):
    axis = options.pop("axis", -1)
    axes = options.pop("axes", None)
    keepdims = options.pop("keepdims", False)
    if axes is not None:
        axes = [(a,) if isinstance(a, int) else tuple(a) for a in axes]
        ready = [
            nm.moveaxis(x, at, tuple(range(-len(at), 0))) if at else x
            for x, at in zip(ready, axes, strict=False)
        ]
    elif axis != -1:
        ready = [nm.moveaxis(x, axis, -1) for x in ready]
    found: Tensor = engine(*ready)
    if keepdims:
        found = nm.expand_dims(found, axis)
    if axes is not None and len(axes) > len(ready) and axes[-1]:
        found = nm.moveaxis(found, tuple(range(-len(axes[-1]), 0)), axes[-1])
    return found


def _axes(axis, ndim):
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if ndim == 0 and all(a in (0, -1) for a in given):
        return ()
    found = tuple(host.lib.array_utils.normalize_axis_index(a, ndim) for a in given)
    if len(set(found)) != len(found):
        raise ValueError("duplicate value in 'axis'")
    return found


def _mask(where):
    mask = to_tensor(where)
    if mask.dtype is not dt.bool_:
        raise TypeError("Cannot cast array data for 'where' to bool according to the rule 'safe'")
    return mask


def _pair(x, initial):
    return x, nm.full((), host.asarray(initial).astype(x.dtype.np)[()].item(), dtype=x.dtype)


def _truth(name, x, initial):
    combine = nm.logical_and if name in ("logical_and", "multiply", "minimum") else nm.logical_or
    return combine(x, nm.full((), bool(initial), dtype=dt.bool_))


__all__ = ["array_result", "has_tensors", "ndarray", "ufunc"]
