"""Tensors from other people's arrays, sequences and buffers, and back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType, as_dtype
from numus.errors import DTypeError, ShapeError
from numus.evaluation.evaluate import evaluate, from_host
from numus.functions._base import moved, owned, wrap
from numus.functions.creation.dtype_functions import convert
from numus.functions.nesting import SEQUENCES, leaf_types
from numus.graph import Node, Storage, View
from numus.primitives import elementwise as ew
from numus.primitives.source import value
from numus.primitives.structure import concat
from numus.primitives.structure import copy as copied
from numus.primitives.views import reshape
from numus.runtime import dlpack_abi, get
from numus.runtime.devices import Device, of_dlpack
from numus.runtime.devices import device as as_device
from numus.shapes import row_major
from numus.tensor import Tensor, detached, registered, scalar_node

__all__ = ["array", "asarray", "from_dlpack", "from_numpy", "frombuffer", "tensor"]

Array = np.ndarray[Any, Any]
DeviceLike = Device | str | None


def asarray(
    obj: Any,
    /,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor from a tensor, a number, nested sequences, a NumPy array, or any object with
    DLPack, `__array__` or the buffer protocol.

    Python numbers become float32, int64, bool or complex64; arrays keep their dtype, and
    their device unless another is named.

    Args:
        copy: True never shares memory; False raises where it cannot be shared; None shares with
            tensors only, because others may change their arrays before the tensor is used.

    >>> nm.asarray([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Tensor):
        out = _from_tensor(obj, wanted, device, copy)
    elif (where := _device_of(obj)) is not None:
        shared = False if copy is False else None
        out = _from_tensor(_imported(obj, where, copy), wanted, device, shared)
    else:
        out = wrap(_node_from(obj, wanted, as_device(device), copy))
    if requires_grad and not (out is obj and out.requires_grad):
        out = wrap(detached(out._node, sees_writes=False))  # a leaf of its own
        out.requires_grad = True
    return out


dt.make_tensor = asarray


def tensor(
    obj: Any, /, dtype: Any = None, *, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A new tensor with a copy of the data: see asarray."""
    return asarray(obj, dtype=dtype, device=device, copy=True, requires_grad=requires_grad)


def array(
    obj: Any,
    /,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    copy: bool = True,
    requires_grad: bool = False,
) -> Tensor:
    """A new tensor with a copy of the data: see asarray."""
    return asarray(obj, dtype=dtype, device=device, copy=copy, requires_grad=requires_grad)


def from_numpy(array: Array, /) -> Tensor:
    """A tensor with a copy of a NumPy array; asarray(array, copy=False) shares its memory."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, not {type(array).__name__}")
    return asarray(array)


def frombuffer(buffer: Any, /, dtype: Any = dt.default_float, *, count: int = -1) -> Tensor:
    """A one-dimensional tensor with a copy of the bytes of an object.

    >>> nm.frombuffer(bytes((1, 0, 2, 0)), dtype=nm.int16).tolist()
    [1, 2]
    """
    return asarray(np.frombuffer(buffer, as_dtype(dtype).np, count))


def _refuse_copy(reason: str) -> ValueError:
    return ValueError(f"asarray: copy=False, but {reason}; use copy=None or copy=True")


def _from_tensor(x: Tensor, dtype: DType | None, device: DeviceLike, copy: bool | None) -> Tensor:
    node = x._node
    dev = x.device if device is None else as_device(device)
    unchanged = (dtype is None or node.dtype is dtype) and x.device is dev
    if unchanged and not copy:
        # what another interface makes of tensors (numus.numpy's ndarray) becomes a tensor again
        return x if type(x).__getitem__ is Tensor.__getitem__ else registered(x, node, ())
    if copy is False:
        raise _refuse_copy("the dtype or device changes")
    return wrap(owned(moved(convert(node, dtype or node.dtype, "asarray"), dev), node))


def _node_from(obj: Any, dtype: DType | None, dev: Device, copy: bool | None) -> Node:
    if copy is False and isinstance(obj, np.ndarray):
        return _shared(obj, dtype, dev)
    # NumPy's scalars keep their dtype where they are converted for their own sake
    is_number = dt.scalar_kind(obj) is not None and not isinstance(obj, np.generic)
    if is_number or isinstance(obj, SEQUENCES):
        if copy is False:
            raise _refuse_copy(f"a {'number' if is_number else 'sequence'} has no memory to share")
        if not is_number:
            return _from_sequence(obj, dtype, dev)
        node = scalar_node(obj, dtype or dt.scalar_dtype(obj))
        node.device = dev
        return node
    host = _host_array(obj)
    if copy is False:
        return _shared(host, dtype, dev)
    found = as_dtype(host.dtype)
    return convert(from_host(host, found, dev), dtype or found, "asarray")


def _host_array(obj: Any) -> Array:
    """A NumPy view of an object's memory, where it has one."""
    if isinstance(obj, (np.ndarray, np.generic)):
        return np.asarray(obj)
    if hasattr(obj, "__dlpack__"):
        return _dlpack_array(obj)
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        return np.asarray(obj)
    try:
        return np.asarray(memoryview(obj))
    except TypeError:
        raise TypeError(
            f"asarray: cannot make a tensor from {type(obj).__name__}; it takes numbers, nested "
            "sequences of them, arrays, and objects with DLPack, __array__ or the buffer protocol"
        ) from None


def _shared(host: Array, dtype: DType | None, dev: Device) -> Node:
    """A node on the array's own memory."""
    found = as_dtype(host.dtype)
    if dtype is not None and dtype is not found:
        raise _refuse_copy(f"{found.name} is not {dtype.name}")
    share = getattr(dev.runtime, "wrap", None)
    if share is None:
        raise _refuse_copy(f"{dev} has memory of its own")
    if not host.flags.c_contiguous or not host.flags.aligned or not host.dtype.isnative:
        raise _refuse_copy("the array is not contiguous, aligned and in the machine's byte order")
    view = View(Storage(share(host)), 0, row_major(host.shape))
    return value(view, host.shape, found, dev)


_DEFAULTS = {"float": dt.default_float, "complex": dt.default_complex}
_WEAK_DTYPES = {"bool": dt.bool_, "int": dt.default_int, **_DEFAULTS}  # the widest last


def _from_sequence(obj: Any, dtype: DType | None, dev: Device) -> Node:
    types = leaf_types(obj, "asarray")
    if any(issubclass(t, (Tensor, dt.Weak)) for t in types):
        node = _stacked(obj, dev)
        return moved(convert(node, dtype or node.dtype, "asarray"), dev)
    host = _numbers(obj, types)
    found = as_dtype(host.dtype)
    if not types <= {bool, int, float, complex}:
        return convert(from_host(host, found, dev), dtype or found, "asarray")
    # Python's numbers have no width of their own: they are written in the target dtype
    target = dtype or _DEFAULTS.get(found.kind, found)
    if target.is_integer and found.is_integer and host.size:
        low, high = dt.int_range(target)
        if int(host.min()) < low or int(host.max()) > high:
            raise OverflowError(
                f"asarray: integers from {host.min()} to {host.max()} do not fit {target.name}"
            )
    if dt.kind_rank(found) <= dt.kind_rank(target):
        with np.errstate(over="ignore"):
            return from_host(host.astype(target.np), target, dev)
    return convert(from_host(host, found, dev), target, "asarray")


def _numbers(obj: Any, types: set[type]) -> Array:
    """Nested sequences of numbers as an array."""
    try:
        host = np.asarray(obj)
    except ValueError as error:
        raise ShapeError(f"asarray: the nested sequences have unequal lengths: {error}") from None
    if host.dtype == object or host.dtype.kind in "SUmM":
        names = ", ".join(sorted(t.__name__ for t in types))
        raise DTypeError(f"asarray: elements of {names} are not numbers that a dtype holds")
    return host


def _stacked(obj: Any, dev: Device) -> Node:
    """Nested sequences with tensors among them, joined in the graph: gradients flow through."""
    dtype = _common_dtype(obj)

    def build(item: Any) -> Node:
        if isinstance(item, Tensor):
            return ew.cast(moved(item._node, dev), dtype)
        if isinstance(item, SEQUENCES):
            parts = [build(i) for i in item]
            shapes = {p.shape for p in parts}
            if len(shapes) > 1:
                raise ShapeError(
                    f"asarray: elements of shapes {', '.join(map(str, sorted(shapes)))} do not "
                    "stack to one tensor"
                )
            if not parts:
                return from_host(np.empty((0,), dtype.np), dtype, dev)
            return concat(tuple(reshape(p, (1, *p.shape)) for p in parts), 0)
        if dt.scalar_kind(item) is not None:
            return scalar_node(item, dtype)
        return convert(_node_from(item, None, dev, None), dtype, "asarray")

    return build(obj)


def _common_dtype(obj: Any) -> DType:
    """The common dtype of nested tensors, arrays and weak numbers."""
    strong: DType | None = None
    kinds: set[str] = set()
    items = list(obj)
    for item in items:
        kind = dt.scalar_kind(item)
        if kind is not None:
            kinds.add(kind)
        elif isinstance(item, SEQUENCES):
            items.extend(item)
        else:
            own = item.dtype if isinstance(item, Tensor) else as_dtype(_host_array(item).dtype)
            strong = own if strong is None else dt.promote(strong, own)
    if strong is None:  # numbers that are not known yet, and others
        return _WEAK_DTYPES[max(kinds, key=list(_WEAK_DTYPES).index)]
    return functools.reduce(dt.promote_scalar, kinds, strong)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """A tensor from any object with DLPack (torch, jax, cupy, …), on its device.

    Args:
        device: another device to bring it to.
        copy: False shares the memory or raises; otherwise the data is copied, because its owner
            may change it before the tensor is used.
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(x).__name__} has no __dlpack__; use nm.asarray")
    where = _device_of(x)
    if where is not None:
        found = _imported(x, where, copy)
        return found if device is None else wrap(moved(found._node, as_device(device)))
    host = _dlpack_array(x)
    dev = as_device(device)
    if device is None and not dev.on_host:
        dev = as_device("cpu")
    if copy is False:
        return wrap(_shared(host, None, dev))
    return wrap(from_host(host, as_dtype(host.dtype), dev))


def _device_of(x: Any) -> Device | None:
    """The device of another library's array; None for the host, and for other objects."""
    if isinstance(x, np.ndarray) or not hasattr(x, "__dlpack_device__"):
        return None
    return of_dlpack(*map(int, x.__dlpack_device__()))


def _imported(x: Any, where: Device, copy: bool | None) -> Tensor:
    """Another library's array on a device: a copy of it, or, if `copy` is False, itself."""
    memory, offset, shape, strides, dtype = get(where.name).import_dlpack(x)
    node = value(View(Storage(memory), offset, strides), shape, dtype, where)
    if copy is not False:
        node = copied(node)
        evaluate((node,))
    return wrap(node)


class _Renamed:
    """A producer whose extension floats are renamed to unsigned integers, which NumPy knows."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.dtype: DType | None = None

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self.source.__dlpack__(**options)
        except TypeError:  # a producer from before these options
            capsule = self.source.__dlpack__()
        tensor = dlpack_abi.unpack(capsule)[1].tensor
        found = dlpack_abi.BY_CODE.get((tensor.code, tensor.bits))
        if found in dlpack_abi.EXTENSION_FLOATS:
            self.dtype = found
            tensor.code = dlpack_abi.UINT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.source.__dlpack_device__()


def _dlpack_array(x: Any) -> Array:
    if x.__dlpack_device__()[0] not in dlpack_abi.HOST_DEVICES:
        raise ValueError(
            f"from_dlpack: the {type(x).__name__} is not in the host's memory; bring it there first"
        )
    producer = _Renamed(x)
    host = np.from_dlpack(producer)
    return host if producer.dtype is None else host.view(producer.dtype.np)


# NumPy 2.0 knows neither versioned capsules nor, therefore, read-only ones
_VERSIONED = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


def to_dlpack(host: Array, dtype: DType, max_version: tuple[int, int] | None, owned: bool) -> Any:
    """The capsule of a NumPy array, under numus's dtype; read-only unless the consumer owns it."""
    options: dict[str, Any] = {}
    if _VERSIONED and max_version is not None and max_version[0] >= 1:
        options["max_version"] = max_version
        host.flags.writeable = owned
    if dtype not in dlpack_abi.EXTENSION_FLOATS:
        return host.__dlpack__(**options)
    capsule = host.view(f"u{dtype.itemsize}").__dlpack__(**options)
    dlpack_abi.unpack(capsule)[1].tensor.code = dlpack_abi.code(dtype)
    return capsule
