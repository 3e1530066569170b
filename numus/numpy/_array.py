"""NumPy's ndarray: a tensor with NumPy's dtypes, scalars and methods.

An `ndarray` is a handle on a node like any tensor, so it is lazy, differentiable and on any device;
views see writes as they do in `numus`. What differs from `nm.Tensor` are NumPy's rules: float64 is
the default, `x.dtype` is a `numpy.dtype`, dtypes promote by NEP 50, and a result without axes is a
NumPy scalar, unless it is traced or differentiated, where a number would lose its history.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from typing import Any

import numpy as host

import numus as nm
from numus import aliases
from numus.evaluation.evaluate import elements, is_known
from numus.functions.interop.memory_layout import Flags, element_strides, flags_of
from numus.functions.interop.numpy_errors import raise_as_index
from numus.numpy import _convert
from numus.numpy import _convert as nc
from numus.numpy._iteration import flatiter
from numus.tensor import Tensor


class ndarray(Tensor):  # noqa: N801
    """NumPy's array over numus's engine."""

    __slots__ = ()

    def __new__(
        cls,
        shape: Any,
        dtype: Any = float,
        buffer: Any = None,
        offset: int = 0,
        strides: Any = None,
        order: Any = None,
    ) -> Any:
        if buffer is None:
            return nc.function("zeros")(shape, dtype)
        memory = buffer.__array__() if isinstance(buffer, Tensor) else buffer
        return nc.adopt(nc.to_tensor(host.ndarray(shape, dtype, memory, offset, strides, order)))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is done by `__new__`."""

    # -- attributes -------------------------------------------------------------------------------

    @property
    def dtype(self) -> Any:
        """The type of the elements, a `numpy.dtype`."""
        return self._node.dtype.np

    @property
    def shape(self) -> Any:
        """The extents of the axes; assigning reshapes the array itself."""
        return self._node.shape

    @shape.setter
    def shape(self, given: Any) -> None:
        aliases.become(self, nm.reshape(nc.shared(self), given))

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one element to the next along each axis, as NumPy would have them."""
        return tuple(n * self.itemsize for n in element_strides(self))

    @property
    def flags(self) -> Flags:
        """How NumPy's array would lie in memory."""
        return flags_of(self)

    @property
    def base(self) -> Any:
        """The array that this one is a view of."""
        return aliases.base(self)

    @property
    def flat(self) -> flatiter:
        """The elements one after the other, to read and to write."""
        return flatiter(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        flatiter(self)[:] = value

    # -- elements ---------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        given = index if type(index) is tuple else (index,)
        if len(given) == len(self._node.shape) and nc.is_concrete(self):
            kinds = {type(i) for i in given}
            if kinds <= {int, host.int64}:  # one element
                return elements(self._node)[index].copy()
        try:
            found = Tensor.__getitem__(self, nc.engine_index(index))
        except (TypeError, ValueError, IndexError) as error:
            raise_as_index(self.shape, index)
            raise IndexError(str(error)) from None
        if found.shape or any(i is Ellipsis for i in given):
            return nc.adopt(found)
        return nc.scalar(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        dtype = self._node.dtype
        if type(value) not in (int, float, bool) or not host.can_cast(type(value), dtype.np):
            if isinstance(value, int) and dtype.is_integer:
                host.array(value, dtype.np)  # out of range is an error
            value = nc.cast(nc.to_tensor(value), dtype)
        try:
            Tensor.__setitem__(self, nc.engine_index(index), value)
        except (TypeError, ValueError, IndexError):
            raise_as_index(self.shape, index, value)
            raise

    def __delitem__(self, index: Any) -> None:
        raise ValueError("cannot delete array elements")

    def __iter__(self) -> Any:
        if not self._node.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self._node.shape[0]))

    def item(self, *args: Any) -> Any:
        """An element as Python's number."""
        nm.evaluation.host_reads.check_readable(self._node, "item()")
        return self.__array__().item(*args)

    def dumps(self) -> bytes:
        """The array pickled."""
        return pickle.dumps(self)

    def dump(self, file: Any) -> None:
        """The array pickled, to a file."""
        with contextlib.nullcontext(file) if hasattr(file, "write") else open(file, "wb") as opened:
            opened.write(self.dumps())

    def astype(  # type: ignore[override]
        self,
        dtype: Any,
        order: Any = "K",
        casting: Any = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        """The array in another dtype."""
        wanted = nc.engine_dtype(dtype)
        nc.require_cast(self.dtype, wanted.np, casting)
        if wanted is not self._node.dtype:
            return nc.adopt(nc.cast(nc.plain(self), wanted))
        return self.copy() if copy else self

    def copy(self, order: Any = "C") -> Any:
        """The array in memory of its own."""
        return nc.adopt(nm.copy(nc.plain(self)))

    def view(self, dtype: Any = None, type: Any = None) -> Any:  # type: ignore[override]
        """A view, of another dtype if asked for: the same bytes."""
        is_class = dtype is None or (isinstance(dtype, builtin_type) and issubclass(dtype, Tensor))
        if is_class or nc.engine_dtype(dtype) is self._node.dtype:
            return nc.adopt(nc.shared(self))
        return nc.adopt(nc.to_tensor(self.__array__().view(nc.engine_dtype(dtype).np)))

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        """The elements in another shape."""
        given = shape[0] if len(shape) == 1 else shape
        return nc.function("reshape")(self, given, order=order, copy=copy)

    def transpose(self, *axes: Any) -> Any:
        """The axes in another order."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return nc.function("transpose")(self, given or None)

    def flatten(self, order: Any = "C") -> Any:  # type: ignore[override]
        """A copy with one axis."""
        return nc.adopt(nm.copy(nc.plain(nc.function("ravel")(self, order))))

    def fill(self, value: Any) -> None:  # type: ignore[override]
        """One value everywhere."""
        self[...] = value

    def sort(self, *args: Any, **options: Any) -> None:  # type: ignore[override]
        """Sort in place."""
        self.rebind(nc.function("sort")(self, *args, **options)._node, "sort")

    def partition(self, *args: Any, **options: Any) -> None:  # type: ignore[override]
        """Partition in place."""
        self.rebind(nc.function("partition")(self, *args, **options)._node, "partition")

    def resize(self, *shape: Any, refcheck: bool = True) -> None:  # type: ignore[override]
        """Another shape, in place: elements fall off, or zeros are added."""
        new = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if new is None or not shape:
            return
        wanted, flat = nm.shapes.size_of(tuple(new)), nm.reshape(nc.plain(self), -1)
        flat = nm.pad(flat, (0, max(wanted - flat.shape[0], 0)))[:wanted]
        self._alias = None
        self._bind(nm.reshape(nm.copy(flat), new)._node)

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **options: Any) -> Any:
        """The values within bounds, one of which may be left out."""
        return nc.function("clip")(self, min, max, out, **options)

    def conj(self, *args: Any, **options: Any) -> Any:
        """The complex conjugate; real numbers are the array itself."""
        is_same = not (args or options or self._node.dtype.is_complex)
        return self if is_same else nc.function("conjugate")(self, *args, **options)

    conjugate = conj

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        """The parts for which a condition holds."""
        return nc.function("compress")(condition, self, axis, out)

    def setflags(self, write: Any = None, align: Any = None, uic: Any = None) -> None:
        """Arrays are writeable and aligned."""
        if write is False:
            raise ValueError("numus.numpy: arrays are always writeable")

    def byteswap(self, inplace: bool = False) -> Any:
        """The bytes of each element in reverse order."""
        found = nc.adopt(nc.to_tensor(self.__array__().byteswap()))
        return nc.function("copyto")(self, found) or self if inplace else found

    # -- Python's protocols -----------------------------------------------------------------------

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len() of unsized object")
        return self._node.shape[0]

    def __bool__(self) -> bool:
        return bool(self.__array__()) if self.size == 1 else bool(host.empty(min(self.size, 2)))

    def _item(self) -> Any:
        if self.size != 1:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return Tensor._item(self)

    def __contains__(self, item: Any) -> bool:
        return bool(nc.function("any")(self == item))

    def __repr__(self) -> str:
        if not is_known(self._node):
            return Tensor.__repr__(nc.plain(self))
        return host.array_repr(self.__array__())

    def __str__(self) -> str:
        return str(self.__array__()) if is_known(self._node) else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self.__array__()[()] if not self.shape else self.__array__(), spec)

    def __reduce__(self) -> Any:
        return _rebuilt, (Tensor.__reduce__(nc.plain(self)),)

    def __deepcopy__(self, memo: Any) -> Any:
        return memo.setdefault(id(self), nc.adopt(Tensor.__deepcopy__(nc.plain(self), memo)))

    def __copy__(self) -> Any:
        return self.copy()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        found = nc.adopt(nc.to_tensor(array))
        return found[()] if return_scalar and not found.shape else found

    def __array_namespace__(self, /, *, api_version: Any = None) -> Any:
        return sys.modules["numus.numpy"]


builtin_type = type
_convert.kind_of_arrays.append(ndarray)


def _rebuilt(parts: Any) -> Any:
    return nc.adopt(parts[0](*parts[1]))


_FUNCTIONS = """
    all any argmax argmin argpartition argsort choose cumprod cumsum diagonal
    dot max mean min nonzero prod put ravel repeat round searchsorted squeeze std sum swapaxes take
    trace var
"""
_PARTS = ("real", "imag")
_VIEWS = {"T": "transpose", "mT": "matrix_transpose"}
_BINARY = {
    **{"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide"},
    **{"floordiv": "floor_divide", "mod": "remainder", "pow": "power", "matmul": "matmul"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
    **{"lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod"},
}
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
_COMPARISONS |= {"gt": "greater", "ge": "greater_equal"}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}


def _method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return nc.function(name)(self, *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"ndarray.{name}"
    call.__doc__ = f"As `numpy.{name}` of this array."
    return call


def _part(name: str) -> property:
    def read(self: Any) -> Any:
        return nc.adopt(getattr(nm, name)(nc.shared(self)))

    def write(self: Any, value: Any) -> None:
        if name == "imag" and not self._node.dtype.is_complex:
            raise TypeError("array does not have imaginary part to set")
        read(self)[...] = value

    return property(read, write, doc=f"The {name} part, a view.")


def _operator(name: str, ufunc: str, order: str = "") -> Any:
    def operate(self: Any, other: Any) -> Any:
        if _is_foreign(other):
            if name not in ("eq", "ne"):
                return NotImplemented
            return nc.result(nm.full(self.shape, name == "ne", dtype=nm.bool_))
        pair = (other, self) if order == "r" else (self, other)
        return nc.function(ufunc)(*pair, **({"out": (self,)} if order == "i" else {}))

    operate.__name__ = f"__{order}{name}__"
    return operate


def _is_foreign(x: Any) -> bool:
    """Whether an operand wants to compute for itself."""
    return (
        x is None
        or isinstance(x, (str, bytes, dict, set))
        or (getattr(x, "__array_ufunc__", 0) is None)
    )


def _install() -> None:
    for name in _FUNCTIONS.split():
        setattr(ndarray, name, _method(name))
    for name, of in _VIEWS.items():
        setattr(ndarray, name, property(_method(of)))
    for name in _PARTS:
        setattr(ndarray, name, _part(name))
    for name, of in _UNARY.items():
        setattr(ndarray, f"__{name}__", _method(of))
    for name, of in (_BINARY | _COMPARISONS).items():
        orders = (
            ("",) if name in _COMPARISONS else ("", "r") if name == "divmod" else ("", "r", "i")
        )
        for order in orders:
            setattr(ndarray, f"__{order}{name}__", _operator(name, of, order))
    setattr(ndarray, "__hash__", Tensor.__hash__)  # noqa: B010


_install()

__all__ = ["ndarray"]
