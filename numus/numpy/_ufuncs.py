"""NumPy's universal functions over numus's elementwise functions.

The dtypes of a call are those that NumPy's own ufunc of this name resolves (NEP 50, `dtype=`,
`signature=`, `casting=`); operands are cast to them, in the graph, and the engine's function
computes. Calls on scalars alone are NumPy's: there is no array to compute with.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.functions.elementwise.comparison import compare_lexicographic
from numus.functions.interop.numpy_errors import raise_as_reference
from numus.functions.interop.ufunc_dtypes import WEAK, as_signature, comparable, kind_of, resolved
from numus.functions.reduction import folds
from numus.numpy import _convert as nc
from numus.tensor import Tensor

_OF_NUMPY = "nin nout nargs identity signature types ntypes resolve_dtypes".split()
_SCALARS = (bool, int, float, complex, host.generic)
_BOOLEAN = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or"}
_BOOLEAN |= {"minimum": "logical_and", "fmax": "logical_or", "fmin": "logical_and"}
_BOOLEAN |= {"absolute": "copy"}
_COMPARISONS = "equal not_equal less less_equal greater greater_equal".split()
_CORE = ("matmul", "vecdot", "matvec", "vecmat")  # generalised ufuncs: of the last axes
_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
_REDUCTIONS |= {"logical_and": "all", "logical_or": "any"}
_SCANS = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"}


def as_operand(x: Any) -> Any:
    """An operand: scalars stay, everything else becomes a tensor."""
    if isinstance(x, Tensor) or type(x) in WEAK or isinstance(x, _SCALARS):
        return x
    return nc.to_tensor(x)


class ufunc:  # noqa: N801
    """A function of elements, with NumPy's ways to apply it."""

    def __init__(self, name: str, engine: Any = None, reference: Any = None) -> None:
        self.numpy = reference or getattr(host, name)
        self.__name__ = name
        self.__doc__ = f"As `numpy.{name}`, over `numus.{name}`."
        self.engine = engine or getattr(nm, name)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_NUMPY:
            return getattr(self.numpy, name)
        raise AttributeError(f"ufunc {self.__name__!r} has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<ufunc '{self.__name__}'>"

    def __reduce__(self) -> Any:
        return nc.function, (self.__name__,)

    # -- calls ------------------------------------------------------------------------------------

    def __call__(
        self,
        *args: Any,
        out: Any = None,
        where: Any = True,
        casting: str = "same_kind",
        order: str = "K",
        dtype: Any = None,
        subok: bool = True,
        signature: Any = None,
        sig: Any = None,
        **options: Any,
    ) -> Any:
        nin, nout = self.numpy.nin, self.numpy.nout
        if not nin <= len(args) <= nin + nout:
            many = f"{nin} to {nin + nout} positional arguments but {len(args)} were given"
            raise TypeError(f"{self.__name__}() takes from {many}")
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
        wanted = as_signature(dtype, signature if signature is not None else sig, nin, nout)
        try:
            found = self._apply(operands, wanted, casting, dict(options))
        except (ShapeError, DTypeError):
            raise_as_reference(self.numpy, operands, options)
            raise
        results = found if isinstance(found, tuple) else (found,)
        given = [self._write(x, o, where, casting) for x, o in zip(results, outs, strict=True)]
        return given[0] if nout == 1 else tuple(given)

    def _apply(self, operands: Any, wanted: Any, casting: str, options: dict[str, Any]) -> Any:
        name, kinds = self.__name__, tuple(map(kind_of, operands))
        if wanted is None and name in _COMPARISONS:
            operands, kinds = comparable(operands, kinds)
        into, outputs = resolved(self.numpy, kinds, wanted, casting)
        like = next((x.device for x in operands if isinstance(x, Tensor)), None)
        ready = [_loaded(x, d, like) for x, d in zip(operands, into, strict=True)]
        engine = self.engine
        if into[0].is_complex and name in _COMPARISONS[2:]:
            engine = functools.partial(compare_lexicographic, name)
        if into[0] is dt.bool_ and name in _BOOLEAN:
            engine = getattr(nm, _BOOLEAN[name])
        if name == "power" and into[0].kind == "int" and nc.holds_any(nm.less(ready[1], 0)):
            raise ValueError("Integers to negative integer powers are not allowed.")
        if name in _CORE:
            return folds.over_core_axes(engine, ready, **options)
        if options:
            raise TypeError(f"{name}() got unexpected keyword arguments {sorted(options)}")
        found = engine(*ready)
        if isinstance(found, tuple):
            return tuple(nc.cast(x, d) for x, d in zip(found, outputs, strict=True))
        return nc.cast(found, outputs[0])

    def _write(self, x: Any, out: Any, where: Any, casting: str) -> Any:
        if self.__name__ == "matmul" and out is not None and out.shape[-2:] != x.shape[-2:]:
            text = f"of shape {out.shape} has a mismatch in its core dimension with {x.shape}"
            raise ValueError(f"matmul: Output operand 0 {text}")
        if where is True:
            return nc.write_out(x, out, self.__name__, casting)
        mask = _mask(where)
        shape = host.broadcast_shapes(x.shape, mask.shape, () if out is None else out.shape)
        old = nm.zeros((), dtype=x.dtype) if out is None else nc.plain(out)
        if out is not None and not host.can_cast(x.dtype.np, old.dtype.np, casting):  # type: ignore[arg-type]
            return nc.write_out(x, out, self.__name__, casting)  # raises
        new = nm.where(mask, nc.cast(x, old.dtype), old)
        return nc.write_out(nm.broadcast_to(new, shape), out, self.__name__, casting)

    # -- along axes -------------------------------------------------------------------------------

    def reduce(
        self,
        array: Any,
        axis: Any = 0,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = nc.NoValue,
        where: Any = True,
    ) -> Any:
        """Combine the elements along axes."""
        self._require_binary("reduce")
        options = {"keepdims": keepdims, "where": where, "out": out}
        if self.__name__ in _REDUCTIONS:
            if initial is not nc.NoValue and not self.__name__.startswith("logical"):
                options["initial"] = initial
            if self.__name__ in ("add", "multiply"):
                options["dtype"] = dtype
            return nc.function(_REDUCTIONS[self.__name__])(array, axis, **options)
        x = nc.to_tensor(array)
        axes = nc.normal_axes(axis, x.ndim)
        if len(axes) > 1 and self.__name__ in ("subtract", "divide"):
            text = "is not reorderable, so at most one axis may be specified"
            raise ValueError(f"reduction operation '{self.__name__}' {text}")
        x = nc.cast(x, self._reduced_dtype(x, dtype))
        if where is not True:
            x = nm.where(_mask(where), x, nm.full((), self.numpy.identity, dtype=x.dtype))
        found = folds.fold(self.engine, x, axes, self.numpy.identity)
        if initial is not nc.NoValue and initial is not None:
            found = self.engine(found, nc.cast(nc.to_tensor(initial), x.dtype))
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        return nc.write_out(nm.reshape(found, kept) if keepdims else found, out, self.__name__)

    def _reduced_dtype(self, x: Tensor, dtype: Any) -> Any:
        if dtype is not None:
            return nc.engine_dtype(dtype)
        if self.__name__.startswith("logical") or self.__name__ in _COMPARISONS:
            return dt.bool_
        return resolved(self.numpy, (x.dtype.np, x.dtype.np), None, "same_kind")[0][0]

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """The results of reducing the first 1, 2, … elements along an axis."""
        self._require_binary("accumulate")
        x = nc.to_tensor(array)
        if not x.ndim:
            raise TypeError("cannot accumulate on a scalar")
        if self.__name__ in ("add", "multiply"):
            return nc.function(_SCANS[self.__name__])(x, axis, dtype, out)
        (at,) = nc.normal_axes(axis, x.ndim)
        x = nc.cast(x, self._reduced_dtype(x, dtype))
        if self.__name__ in _SCANS and x.dtype is not dt.bool_:
            found = getattr(nm, _SCANS[self.__name__])(x, axis=at)
        else:
            found = folds.accumulate(lambda a, b: self._apply([a, b], None, "same_kind", {}), x, at)
        return nc.write_out(found, out, self.__name__, "unsafe")

    def reduceat(
        self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None
    ) -> Any:
        """Reduce slices between successive indices along an axis."""
        self._require_binary("reduceat")
        x = nc.to_tensor(array)
        (at,) = nc.normal_axes(axis, x.ndim)
        starts = [int(i) for i in nc.to_tensor(indices).tolist()]
        found = folds.fold_slices(
            lambda part: nc.to_tensor(self.reduce(nc.adopt(part), axis=at, dtype=dtype)),
            x,
            starts,
            at,
        )
        return nc.write_out(found, out, self.__name__, "unsafe")

    def outer(self, a: Any, b: Any, /, **options: Any) -> Any:
        """The function of all pairs of elements."""
        self._require_binary("outer")
        if isinstance(a, WEAK) or isinstance(b, WEAK):
            return self(a, b, **options)
        x, y = nc.to_tensor(a), nc.to_tensor(b)
        return self(nc.adopt(nm.reshape(x, x.shape + (1,) * y.ndim)), nc.adopt(y), **options)

    def at(self, a: Any, indices: Any, b: Any = None, /) -> None:
        """Apply the function in place at indices, once for each time they name an element."""
        if not isinstance(a, Tensor):
            raise TypeError("ufunc.at: the first operand must be an array")
        if (self.numpy.nin == 1) != (b is None):
            raise ValueError("second operand needed for ufunc" if b is None else "only one operand")
        index, values = nc.engine_index(indices), nc.plain(a)
        if self.__name__ in ("add", "subtract") and values.dtype is not dt.bool_:
            change = nc.cast(nc.to_tensor(b), values.dtype)
            change = nm.negative(change) if self.__name__ == "subtract" else change
            at = index if isinstance(index, tuple) else (index,)
            a.rebind(nm.index_put(values, at, change, accumulate=True)._node, "at")
            return
        given = None if b is None else nc.to_tensor(b)
        new = folds.updated_at(lambda *pair: self(*map(nc.result, pair)), values, index, given)
        a.rebind(new._node, "at")

    def _require_binary(self, what: str) -> None:
        if self.numpy.nin != 2:
            raise ValueError(f"{what} only supported for binary functions")
        if self.numpy.nout != 1:
            raise ValueError(f"{what} only supported for functions returning a single value")


def _loaded(x: Any, dtype: Any, device: Any) -> Tensor:
    if isinstance(x, Tensor):
        return nc.cast(nc.plain(x), dtype)
    if type(x) is int and dtype.is_integer:
        host.array(x, dtype.np)  # out of range is an error
    with host.errstate(all="ignore"):
        return nm.full((), host.asarray(x).astype(dtype.np)[()].item(), dtype=dtype, device=device)


def _mask(where: Any) -> Tensor:
    mask = nc.to_tensor(where)
    if mask.dtype is not dt.bool_:
        raise TypeError("Cannot cast array data for 'where' to bool according to the rule 'safe'")
    return mask


__all__ = ["as_operand", "ufunc"]
