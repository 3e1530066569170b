"""Functions with NumPy's signatures over functions of tensors: a generic adapter.

Arguments are bound by NumPy's own signature; what names arrays becomes tensors, in the dtypes that
NumPy would compute in; parameters that the engine calls by another name are renamed, and those that
mean nothing to it (the order of memory, subclasses) are dropped. `out=`, `dtype=` and `casting=`
are done here, and where the engine refuses shapes, axes or options, NumPy's own error is raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as host

from numus import dtypes as dt
from numus.functions.interop.numpy_errors import raise_as_reference, raise_if_numpy_does
from numus.numpy import _convert as nc
from numus.tensor import Tensor

# Parameters of NumPy's functions that take an array, and those of them that keep their own dtype.
ARRAYS = frozenset(
    """
    a b x y m v z p arr ary ar ar1 ar2 array element test_elements weights fweights aweights values
    x1 x2 xp fp A val filt condition mask q prepend append to_end to_begin repeats f a1 a2 sorter
    u w seq_of_zeros X arys args xi object indices obj where mean vals ind default
    """.split()
)
UNPROMOTED = frozenset("where condition condlist mask indices ind sorter repeats obj".split())
SEQUENCES = frozenset(
    "arrays tup choices condlist choicelist arys args xi keys multi_index".split()
)
IGNORED = frozenset(
    """
    order subok like overwrite_input kind casting device stable sorted copy max_work refcheck
    allow_pickle fix_imports overwrite hermitian
    """.split()
)
# Indices of functions whose booleans and empty lists are integers; masks; tuples, and lists.
INDEXED, INDICES = ("take", "put"), ("indices", "ind")
MASKS = frozenset("condition condlist mask".split())
TUPLES = dict.fromkeys("meshgrid gradient broadcast_arrays".split(), tuple)
SERIES = TUPLES | dict.fromkeys("array_split dsplit hsplit split vsplit".split(), list)
RENAMED = {"ddof": "correction", "a_min": "min", "a_max": "max"}
_WEAK = (int, float, complex)
# Options whose wrong values NumPy is asked to refuse, on arrays of one element.
CHECKED = frozenset("mode kind ord order side method trim indexing UPLO".split())

# Functions of C, which older releases of NumPy tell no signature of.
SIGNATURES = {
    "array": "object, dtype=None, *, copy=True, order='K', subok=False, ndmin=0, like=None",
    "asanyarray": "a, dtype=None, order=None, *, device=None, copy=None, like=None",
    "asarray": "a, dtype=None, order=None, *, device=None, copy=None, like=None",
    "ascontiguousarray": "a, dtype=None, *, like=None",
    "asfortranarray": "a, dtype=None, *, like=None",
    "bincount": "x, /, weights=None, minlength=0",
    "concatenate": "arrays, /, axis=0, out=None, *, dtype=None, casting='same_kind'",
    "copyto": "dst, src, casting='same_kind', where=True",
    "dot": "a, b, out=None",
    "empty": "shape, dtype=None, order='C', *, device=None, like=None",
    "empty_like": "a, /, dtype=None, order='K', subok=True, shape=None, *, device=None",
    "from_dlpack": "x, /, *, device=None, copy=None",
    "inner": "a, b, /",
    "lexsort": "keys, axis=-1",
    "packbits": "a, /, axis=None, bitorder='big'",
    "putmask": "a, /, mask, values",
    "ravel_multi_index": "multi_index, dims, mode='raise', order='C'",
    "unpackbits": "a, /, axis=None, count=None, bitorder='big'",
    "unravel_index": "indices, shape, order='C'",
    "vdot": "a, b, /",
    "where": "condition, x=None, y=None, /",
    "zeros": "shape, dtype=None, order='C', *, device=None, like=None",
}
SIGNATURES["concat"] = SIGNATURES["concatenate"]


def signature_of(name: str, reference: Any) -> inspect.Signature:
    """The signature of one of NumPy's functions."""
    if name in SIGNATURES:
        return inspect.signature(eval(f"lambda {SIGNATURES[name]}: None"))
    return inspect.signature(reference)


class Bound:
    """A function of tensors under NumPy's signature.

    `kind` says how arrays are treated:
      view    the arrays themselves, of which results are views
      same    as they are
      common  in their common dtype; weak: Python's numbers do not widen it
      float   in their common dtype, integers and booleans as float64
      reduce  as they are, or in `dtype=`; axes as NumPy counts them, of numbers too
      mean    the same, integers and booleans as float64
      index   as they are; results are positions, int64; find: in a common dtype
      raw     whatever was given
      write   the first is written to, the others in its dtype
    """

    def __init__(
        self, name: str, kind: str, engine: Callable[..., Any], reference: Any, keep: bool = False
    ) -> None:
        self.kind, self.engine, self.name, self.reference = kind, engine, name, reference
        self.__name__ = self.__qualname__ = name
        self.__module__, self.__doc__ = "numus.numpy", f"As `numpy.{name}`, of tensors."
        self.keep = keep or kind == "view"  # results without axes stay arrays
        self.__signature__ = signature_of(name, reference)
        parameters = list(self.__signature__.parameters.values())
        given = list(inspect.signature(engine).parameters.values())
        self.takes_more = any(p.kind is p.VAR_POSITIONAL for p in given)
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in given)
        self.names = {p.name for p in given if p.kind is not p.POSITIONAL_ONLY}
        free = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        # NumPy's parameters, in order, stand for those of the engine that have no name of their own
        self.positional: dict[str, int] = {}
        for p, mine in zip(parameters, free, strict=False):
            if p.name in self.names and mine.kind is not mine.POSITIONAL_ONLY:
                break
            self.positional[p.name] = len(self.positional)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(args, kwargs)
        except (TypeError, ValueError, IndexError) as error:
            raise_if_numpy_does(error, self.reference, args, kwargs)
            raise

    def __repr__(self) -> str:
        return f"<function {self.__name__} of numus.numpy>"

    def __reduce__(self) -> Any:
        return nc.function, (self.name,)

    def _call(self, args: Any, kwargs: dict[str, Any]) -> Any:
        bound = dict(self.__signature__.bind(*args, **kwargs).arguments)
        for name in [n for n, value in bound.items() if value is nc.NoValue]:
            del bound[name]
        out, casting = bound.pop("out", None), bound.pop("casting", "same_kind")
        dtype = nc.engine_dtype(bound.pop("dtype", None))
        defaults = self.__signature__.parameters
        if self.name != "ravel_multi_index" and any(
            n in CHECKED and bound[n] is not defaults[n].default for n in bound
        ):
            raise_as_reference(self.reference, args, kwargs, extent=1)
        wide = dtype
        if dtype is None and out is not None and self.name in ("sum", "prod", "cumsum", "cumprod"):
            wide = (out[0] if isinstance(out, tuple) else out)._node.dtype
        if "initial" in bound:
            bound["initial"] = getattr(bound["initial"], "item", lambda: bound["initial"])()
        self._convert(bound, wide, casting)
        self._check_axis(bound)
        places, named = self._placed(bound)
        if wide is not None and (self.takes_all or "dtype" in self.names):
            named["dtype"] = wide
        found = self.engine(*places, **named)
        if dtype is not None and isinstance(found, Tensor) and self.kind != "raw":
            found = nc.cast(found, dtype)
        if self.kind in ("index", "find") or (self.name == "where" and isinstance(found, tuple)):
            found = _positions(found)
        if self.kind == "write":
            return None
        if isinstance(found, (list, tuple)) and self.name in SERIES:
            found = SERIES[self.name](found)
        if out is None:
            return nc.array_result(found) if self.keep else nc.result(found)
        if "casting" in self.__signature__.parameters and dtype is not None:
            raise TypeError(f"{self.name}() only takes `out` or `dtype` as an argument, not both")
        if isinstance(found, Tensor) and found.shape != _shape_of(out):
            raise ValueError(f"{self.name}: Output array is the wrong shape: {_shape_of(out)}")
        strict = self.kind in ("index", "find", "common")
        return nc.write_out(found, out, self.name, casting if strict else "unsafe")

    def _placed(self, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The engine's arguments: by place, and by name."""
        places: list[Any] = []
        named: dict[str, Any] = {}
        for name, value in bound.items():
            parameter = self.__signature__.parameters[name]
            mine = name if name in self.names else RENAMED.get(name, name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                kept = (Tensor, bool, int, float, complex, host.generic)
                places.extend(x if isinstance(x, kept) else nc.to_tensor(x) for x in value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                named |= value
            elif self.positional.get(name) == len(places) or (self.takes_more and name in ARRAYS):
                places.append(value)
            elif mine in self.names or (self.takes_all and name not in IGNORED):
                if mine in named and value != parameter.default:
                    raise ValueError(f"{name} and {mine} can't be provided simultaneously.")
                named[mine] = value
            elif name not in IGNORED and value is not parameter.default and value is not None:
                raise TypeError(f"numus.numpy.{self.name}: {name}= is not there")
        return places, named

    def _check_axis(self, bound: dict[str, Any]) -> None:
        """NumPy's own error for an axis that is not there."""
        first = bound["a"] if self.name == "compress" else next(iter(bound.values()), None)
        axis = bound.get("axis")
        x = first[0] if isinstance(first, (list, tuple)) and first else first
        if self.kind in ("reduce", "mean") and isinstance(x, Tensor):
            bound["axis"] = nc.normal_axes(axis, x.ndim)
        elif isinstance(axis, int) and isinstance(x, Tensor) and x.ndim:
            nc.normalize_axis(axis, x.ndim + (self.name in ("stack", "expand_dims")))

    def _convert(self, bound: dict[str, Any], dtype: Any, casting: str) -> None:
        """Make tensors of what names arrays, in the dtypes that NumPy computes in."""
        if self.kind == "raw":
            return
        load: Callable[[Any], Tensor] = nc.shared if self.kind == "view" else nc.to_tensor
        keys: Any
        slots: list[tuple[str, Any, Any, Any]] = []  # a name, where its tensor is, what was given
        for name, value in list(bound.items()):
            if value is None or (name == "where" and value is True):
                bound.pop(name) if name == "where" else None
                continue
            if name in SEQUENCES and self.name != "piecewise":
                if not isinstance(value, (list, tuple, Tensor, host.ndarray)):
                    text = 'arrays to stack must be passed as a "sequence" type such as list'
                    raise TypeError(f"{self.name}: {text} or tuple.")
                holder: Any = list(value)
                bound[name], keys = holder, range(len(holder))
            elif name in ARRAYS and not (name == "q" and type(value) in _WEAK):
                holder, keys = bound, [name] if (self.name, name) != ("cond", "p") else []
            else:
                continue
            for key in keys:
                slots.append((name, holder, key, holder[key]))
                if self.kind != "write" or len(slots) > 1:
                    holder[key] = self._indexing(name, load(holder[key]))
                elif not isinstance(value, Tensor):
                    kind = type(value).__name__
                    raise TypeError(f"{self.name}: writes to an array, not to {kind}")
        self._promote([slot for slot in slots if slot[0] not in UNPROMOTED], dtype, casting)

    def _indexing(self, name: str, x: Tensor) -> Tensor:
        if self.name in INDEXED and name in INDICES and (x.dtype is dt.bool_ or not x.size):
            return nc.cast(x, dt.int64)
        return nc.cast(x, dt.bool_) if name in MASKS else x

    def _promote(self, slots: list[tuple[str, Any, Any, Any]], dtype: Any, casting: str) -> None:
        if not slots or self.kind in ("same", "view", "index"):
            return
        if self.kind == "write":
            dtype, casting = slots[0][3]._node.dtype, "unsafe"
            slots = slots[1:]
        strict = dtype is not None and self.kind in ("common", "weak")
        if dtype is None and self.kind != "reduce":
            is_weak, is_float = self.kind == "weak", self.kind in ("float", "mean")
            kinds = [g if is_weak and type(g) in _WEAK else holder[k] for _, holder, k, g in slots]
            if is_float:
                kinds = [k if k.dtype.is_inexact else host.dtype(float) for k in kinds]
            dtype = nc.common_dtype(*kinds)
        for _, holder, key, _ in slots:
            if strict:
                nc.require_cast(holder[key].dtype.np, dtype.np, casting)
            holder[key] = nc.cast(holder[key], dtype)


def _shape_of(out: Any) -> Any:
    given = out[0] if isinstance(out, tuple) and out else out
    if not isinstance(given, (Tensor, host.ndarray)):
        raise TypeError(f"return arrays must be of ArrayType, not {type(given).__name__}")
    return given.shape


def _positions(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map(_positions, x))
    return nc.cast(x, dt.int64) if isinstance(x, Tensor) else x


bind = Bound
__all__ = ["Bound", "bind"]
