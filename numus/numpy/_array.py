"""NumPy's ndarray: a tensor with NumPy's dtypes, scalars and methods.

An `ndarray` is a handle on a node like any tensor, so it is lazy, differentiable and on any device;
views see writes as they do in `numus`. What differs from `nm.Tensor` are NumPy's rules: float64 is
the default, `x.dtype` is a `numpy.dtype`, dtypes promote by NEP 50, and a result without axes is a
NumPy scalar, unless it is traced or differentiated, where a number would lose its history.
"""

from __future__ import annotations

import operator
import pickle
import sys

import numpy as host

import numus as nm
from numus import aliases
from numus import dtypes as dt
from numus.evaluation.evaluate import elements, is_known
from numus.numpy._convert import (
    cast,
    engine_dtype,
    engine_index,
    function,
    is_concrete,
    plain,
    raise_as_numpy,
    shared,
    to_tensor,
)
from numus.numpy._flat import Flags, flatiter
from numus.shapes import row_major
from numus.tensor import Tensor


def adopt(x):
    """A new tensor of the engine as an ndarray, the same object."""
    if x.__class__ is not ndarray:
        x.__class__ = ndarray
    return x


def result(x):
    """Results of the engine as NumPy returns them: arrays, and scalars where there are no axes."""
    if isinstance(x, Tensor):
        return scalar(x) if not x._node.shape else adopt(x)
    if isinstance(x, tuple):
        fields = getattr(x, "_fields", None)
        return type(x)(*map(result, x)) if fields else tuple(map(result, x))
    return [result(i) for i in x] if isinstance(x, list) else x


def scalar(x):
    """A tensor without axes as a NumPy scalar where its number may be read."""
    return elements(x._node)[()] if is_concrete(x) else adopt(x)


def array_result(x):
    """Results as arrays, with or without axes."""
    if isinstance(x, Tensor):
        return adopt(x)
    if isinstance(x, (tuple, list)):
        fields = getattr(x, "_fields", None)
        return type(x)(*map(array_result, x)) if fields else type(x)(map(array_result, x))
    return x


def write_out(x, out, op, casting="same_kind"):
    """Give `out` the elements of a result and return it; without one, the result."""
    if isinstance(out, tuple) and len(out) == 1:
        (out,) = out
    if out is None:
        return result(x)
    if isinstance(out, host.ndarray):
        host.copyto(out, plain(x).numpy() if isinstance(x, Tensor) else x, casting=casting)
        return out
    if not isinstance(out, Tensor):
        raise TypeError(f"{op}: return arrays must be of ArrayType, not {type(out).__name__}")
    value = plain(x) if isinstance(x, Tensor) else to_tensor(x)
    into = out._node.dtype
    if not host.can_cast(value.dtype.np, into.np, casting):
        ufunc = getattr(host, op, None)
        if isinstance(ufunc, host.ufunc):
            error = host._core._exceptions._UFuncOutputCastingError
            raise error(ufunc, casting, value.dtype.np, into.np, 0)
        text = f"Cannot cast {op} output from {value.dtype.np!r} to {into.np!r} with casting rule"
        raise TypeError(f"{text} {casting!r}")
    if host.broadcast_shapes(value.shape, out.shape) != out.shape:
        raise ValueError(
            f"{op}: non-broadcastable output operand with shape {out.shape} does not match the "
            f"broadcast shape {value.shape}"
        )
    out.rebind(nm.copy(nm.broadcast_to(cast(value, into), out.shape))._node, op)
    return out


class ndarray(Tensor):  # noqa: N801
    """NumPy's array over numus's engine."""

    __slots__ = ()

    def __new__(cls, shape, dtype=float, buffer=None, offset=0, strides=None, order=None):
        if buffer is None:
            return adopt(nm.zeros(_shape_of(shape), dtype=engine_dtype(dtype)))
        memory = buffer.__array__() if isinstance(buffer, Tensor) else buffer
        return adopt(to_tensor(host.ndarray(shape, dtype, memory, offset, strides, order)))

    def __init__(self, *args, **kwargs):
        """Everything is done by `__new__`."""

    # -- attributes -------------------------------------------------------------------------------

    @property
    def dtype(self):
        """The type of the elements, a `numpy.dtype`."""
        return self._node.dtype.np

    @property
    def shape(self):
        """The extents of the axes; assigning reshapes the array itself."""
        return self._node.shape

    @shape.setter
    def shape(self, given):
        view = nm.reshape(shared(self), given)
        if aliases.is_shared(self):
            own = view._alias
            assert own is not None
            if own[0].root() is self:
                own[0].root = _nothing  # its views stay related, through a root that is gone
            self._alias = own
            own[0].append(aliases._ref(self))
        self._bind(view._node)

    @property
    def strides(self):
        """The bytes from one element to the next along each axis, as NumPy would have them."""
        found = aliases.layout(self) or row_major(self.shape)
        return tuple(n * self.itemsize for n in found)

    @property
    def flags(self):
        """How NumPy's array would lie in memory."""
        like = host.lib.stride_tricks.as_strided(host.empty(1, "b"), self.shape, self._unit())
        c, f = like.flags.c_contiguous, like.flags.f_contiguous
        known = {"c_contiguous": c, "f_contiguous": f, "contiguous": c, "fortran": f and not c}
        known |= {"forc": c or f, "fnc": f and not c, "owndata": self.base is None}
        return Flags(**known, writeable=True, aligned=True, behaved=True, carray=c, farray=f)

    def _unit(self):
        return tuple(n // max(self.itemsize, 1) for n in self.strides)

    @property
    def base(self):
        """The array that this one is a view of."""
        own = self._alias
        return own[0].root() if own is not None and own[1] else None

    @property
    def flat(self):
        """The elements one after the other, to read and to write."""
        return flatiter(self)

    @flat.setter
    def flat(self, value):
        flatiter(self)[:] = value

    @property
    def T(self):
        """The axes in reverse order."""
        return adopt(nm.transpose(shared(self)))

    @property
    def mT(self):
        """The last two axes swapped."""
        return adopt(nm.matrix_transpose(shared(self)))

    @property
    def real(self):
        """The real part, a view."""
        return adopt(nm.real(shared(self)))

    @real.setter
    def real(self, value):
        self.real[...] = value

    @property
    def imag(self):
        """The imaginary part, a view of a complex array."""
        return adopt(nm.imag(shared(self)))

    @imag.setter
    def imag(self, value):
        if not self._node.dtype.is_complex:
            raise TypeError("array does not have imaginary part to set")
        self.imag[...] = value

    # -- elements ---------------------------------------------------------------------------------

    def __getitem__(self, index):
        given = index if type(index) is tuple else (index,)
        if len(given) == len(self._node.shape) and is_concrete(self):
            kinds = {type(i) for i in given}
            if kinds <= {int, host.int64}:  # one element
                return elements(self._node)[index].copy()
        try:
            found = Tensor.__getitem__(self, engine_index(index))
        except (TypeError, ValueError, IndexError) as error:
            raise_as_numpy(self.shape, index)
            raise IndexError(str(error)) from None
        if found.shape or any(i is Ellipsis for i in given):
            return adopt(found)
        return scalar(found)

    def __setitem__(self, index, value):
        dtype = self._node.dtype
        if type(value) not in (int, float, bool) or not host.can_cast(type(value), dtype.np):
            if isinstance(value, int) and dtype.is_integer:
                host.array(value, dtype.np)  # out of range is an error
            found = to_tensor(value)
            value = cast(found, dtype)
        try:
            Tensor.__setitem__(self, engine_index(index), value)
        except (TypeError, ValueError, IndexError):
            raise_as_numpy(self.shape, index, value)
            raise

    def __delitem__(self, index):
        raise ValueError("cannot delete array elements")

    def __iter__(self):
        if not self._node.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self._node.shape[0]))

    def item(self, *args):
        """An element as Python's number."""
        nm.evaluation.host_reads.check_readable(self._node, "item()")
        return self.__array__().item(*args)

    def tolist(self):
        """Nested lists of Python's numbers."""
        return self.__array__().tolist()

    def tobytes(self, order="C"):
        """The elements' bytes."""
        return self.__array__().tobytes(order)

    def dumps(self):
        """The array pickled."""
        return pickle.dumps(self)

    def dump(self, file):
        """The array pickled, to a file."""
        if hasattr(file, "write"):
            pickle.dump(self, file)
            return
        with open(file, "wb") as opened:
            pickle.dump(self, opened)

    def astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
        """The array in another dtype."""
        wanted = engine_dtype(dtype)
        assert wanted is not None
        if not host.can_cast(self.dtype, wanted.np, casting):
            text = (
                f"Cannot cast array data from {self.dtype!r} to {wanted.np!r} according to the rule"
            )
            raise TypeError(f"{text} {casting!r}")
        if wanted is self._node.dtype and not copy:
            return self
        found = cast(plain(self), wanted)
        return adopt(nm.copy(found) if wanted is self._node.dtype else found)

    def copy(self, order="C"):
        """The array in memory of its own."""
        return adopt(nm.copy(plain(self)))

    def view(self, dtype=None, type=None):
        """A view, of another dtype if asked for: the same bytes."""
        if dtype is None or (isinstance(dtype, builtin_type) and issubclass(dtype, Tensor)):
            return adopt(shared(self))
        wanted = engine_dtype(dtype)
        assert wanted is not None
        if wanted is self._node.dtype:
            return adopt(shared(self))
        return adopt(to_tensor(self.__array__().view(wanted.np)))

    def reshape(self, *shape, order="C", copy=None):
        """The elements in another shape."""
        given = shape[0] if len(shape) == 1 else shape
        found: ndarray = function("reshape")(self, given, order=order, copy=copy)
        return found

    def transpose(self, *axes):
        """The axes in another order."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        found: ndarray = function("transpose")(self, given or None)
        return found

    def flatten(self, order="C"):
        """A copy with one axis."""
        return adopt(nm.copy(plain(function("ravel")(self, order))))

    def fill(self, value):
        """One value everywhere."""
        self[...] = value

    def sort(self, axis=-1, kind=None, order=None, *, stable=None):
        """Sort in place."""
        self.rebind(function("sort")(self, axis, kind, order, stable=stable)._node, "sort")

    def partition(self, kth, axis=-1, kind="", order=None):
        """Partition in place."""
        self.rebind(function("partition")(self, kth, axis)._node, "partition")

    def put(self, indices, values, mode="raise"):
        """Write at flat indices."""
        function("put")(self, indices, values, mode)

    def resize(self, *shape, refcheck=True):
        """Another shape, in place: elements fall off, or zeros are added."""
        new = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        flat = nm.reshape(plain(self), -1)
        wanted = int(host.prod(new, dtype=int))
        flat = (
            flat[:wanted] if wanted <= flat.shape[0] else nm.pad(flat, (0, wanted - flat.shape[0]))
        )
        self._alias = None
        self._bind(nm.reshape(nm.copy(flat), new)._node)

    def setflags(self, write=None, align=None, uic=None):
        """Arrays are writeable and aligned."""
        if write is False:
            raise ValueError("numus.numpy: arrays are always writeable")

    def byteswap(self, inplace=False):
        """The bytes of each element in reverse order."""
        found = adopt(to_tensor(self.__array__().byteswap()))
        return function("copyto")(self, found) or self if inplace else found

    # -- Python's protocols -----------------------------------------------------------------------

    def __len__(self):
        if not self._node.shape:
            raise TypeError("len() of unsized object")
        return self._node.shape[0]

    def __bool__(self):
        if self.size != 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous. "
                "Use a.any() or a.all()"
                if self.size
                else "The truth value of an empty array is ambiguous."
            )
        return bool(self._item())

    def __int__(self):
        return int(self._number())

    def __float__(self):
        return float(self._number())

    def __complex__(self):
        return complex(self._number())

    def _number(self):
        if self.size != 1:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        nm.evaluation.host_reads.check_readable(self._node, "float()")
        return elements(self._node).reshape(-1)[0]

    def __index__(self):
        if self.shape or not self._node.dtype.is_integer:
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return operator.index(self._item())

    def __contains__(self, item):
        return bool(function("any")(self == item))

    def __repr__(self):
        if not is_known(self._node):
            return Tensor.__repr__(plain(self))
        return host.array_repr(self.__array__())

    def __str__(self):
        return str(self.__array__()) if is_known(self._node) else repr(self)

    def __format__(self, spec):
        return format(self.__array__()[()] if not self.shape else self.__array__(), spec)

    def __reduce__(self):
        return _rebuilt, (Tensor.__reduce__(plain(self)),)

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), adopt(Tensor.__deepcopy__(plain(self), memo)))

    def __copy__(self):
        return self.copy()

    def __array_namespace__(self, /, *, api_version=None):
        return sys.modules["numus.numpy"]


builtin_type = type


def _shape_of(shape):
    return int(shape) if hasattr(shape, "__index__") else tuple(map(int, shape))


def _nothing():
    """A weak reference to what is gone."""


def _rebuilt(parts):
    return adopt(parts[0](*parts[1]))


def _method(name):
    def call(self, *args, **kwargs):
        return function(name)(self, *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"ndarray.{name}"
    call.__doc__ = f"As `numpy.{name}` of this array."
    return call


for _name in """
    all any argmax argmin argpartition argsort choose clip conj conjugate cumprod cumsum diagonal
    dot max mean min nonzero prod ravel repeat round searchsorted squeeze std sum swapaxes take
    trace var
""".split():
    setattr(ndarray, _name, _method(_name))


def _compress(self, condition, axis=None, out=None):
    return function("compress")(condition, self, axis, out)


setattr(ndarray, "compress", _compress)  # noqa: B010

_OPERATORS = {
    **{"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide"},
    **{"floordiv": "floor_divide", "mod": "remainder", "pow": "power", "matmul": "matmul"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
    **{"lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod"},
}
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
_COMPARISONS |= {"gt": "greater", "ge": "greater_equal"}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}


def _is_foreign(x):
    """Whether an operand wants to compute for itself."""
    return (
        x is None
        or isinstance(x, (str, bytes, dict, set))
        or (getattr(x, "__array_ufunc__", 0) is None)
    )


def _install_operators():
    def install(name, of, ufunc):
        def operate(self, other):
            return NotImplemented if _is_foreign(other) else of(function(ufunc), self, other)

        operate.__name__ = f"__{name}__"
        setattr(ndarray, f"__{name}__", operate)

    for name, ufunc in _OPERATORS.items():
        install(name, lambda f, x, y: f(x, y), ufunc)
        install(f"r{name}", lambda f, x, y: f(y, x), ufunc)
        if name != "divmod":
            install(f"i{name}", lambda f, x, y: f(x, y, out=(x,)), ufunc)
    for name, ufunc in _COMPARISONS.items():
        setattr(ndarray, f"__{name}__", _comparison(name, ufunc))
    for name, ufunc in _UNARY.items():
        setattr(ndarray, f"__{name}__", lambda self, u=ufunc: function(u)(self))
    ndarray.__hash__ = Tensor.__hash__


def _comparison(name, ufunc):
    def compare(self, other):
        if _is_foreign(other):
            if name not in ("eq", "ne"):
                return NotImplemented
            return adopt(nm.full(self.shape, name == "ne", dtype=dt.bool_))
        return function(ufunc)(self, other)

    compare.__name__ = f"__{name}__"
    return compare


_install_operators()
