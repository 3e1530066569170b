"""Protocols of Python and other libraries: print, NumPy, DLPack, buffers, copies, pickles."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.evaluation.evaluate import check_known, evaluate, host_array, is_known
from numus.evaluation.host_reads import check_readable
from numus.functions._base import method, owned
from numus.functions.creation.conversion import asarray, to_dlpack
from numus.functions.elementwise.transcendental import imag, real
from numus.functions.interop.host_access import lend, lend_memory, prepare_write
from numus.primitives.structure import copy as copied
from numus.runtime import get
from numus.tensor import Tensor, attribute, detached

Array = np.ndarray[Any, Any]

_DEFAULT_DTYPES = (dt.default_float, dt.default_int, dt.default_complex, dt.bool_)
_HOST = (1, 0)  # kDLCPU
_WRITABLE = 1  # PyBUF_WRITABLE


def _shared(x: Tensor, what: str) -> Array:
    """The elements in host memory, without a copy where they are already there."""
    check_known(x._node, what)
    return host_array(x._node)


@method("__array__")
def array_(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """numpy.asarray(x): a read-only view where it can be one, else a copy, which is writable."""
    check_readable(self._node, "numpy.asarray()")
    on_host = self.device.on_host
    if copy is False and not on_host:
        raise ValueError(f"numpy.asarray: elements on {self.device} need a copy")
    array = _shared(self, "numpy.asarray()")
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    if copy or (wanted != array.dtype and copy is None):
        return array.astype(wanted, copy=True)
    if wanted != array.dtype:
        raise ValueError(f"numpy.asarray: {self.dtype.name} to {wanted} needs a copy")
    if not on_host:
        return array if array.flags.forc else array.copy()  # elements may share their memory
    array.flags.writeable = False
    return array


@method("__array_ufunc__")
def array_ufunc(self: Tensor, ufunc: Any, how: str, /, *inputs: Any, **kwargs: Any) -> Any:
    """NumPy's ufuncs of tensors: see `numpy_dispatch`, which is imported when one is called."""
    from numus.functions.interop import numpy_dispatch

    return numpy_dispatch.apply_ufunc(ufunc, how, inputs, kwargs)


@method("__array_function__")
def array_function(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy's functions of tensors."""
    from numus.functions.interop import numpy_dispatch

    return numpy_dispatch.apply_function(function, args, kwargs)


@method("__array_namespace__")
def array_namespace(self: Tensor, /, *, api_version: str | None = None) -> Any:
    """The module whose functions take this tensor."""
    import numus

    if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"numus follows the array API 2024.12, not {api_version}")
    return numus


@method("__dlpack__")
def dlpack(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule: the tensor's own memory, unless a copy is asked for.

    Consumers that take DLPack 1.0 are told that it is not to be written to. What others write all
    the same is seen by the tensor and its views, and by nothing computed from them before.
    """
    check_readable(self._node, "DLPack export")
    dev = self.device
    wanted = dev.dlpack if dl_device is None else tuple(dl_device)
    if wanted == dev.dlpack != _HOST:
        return _on_device(self, stream, max_version, bool(copy))
    if stream is not None:
        raise ValueError("__dlpack__: memory on the host has no stream; leave stream at None")
    if dl_device is not None and tuple(dl_device) != _HOST:
        raise BufferError(f"__dlpack__: cannot export to device {dl_device}, only to the host")
    if copy:
        return to_dlpack(_shared(self, "DLPack export").copy(), self.dtype, max_version, owned=True)
    check_known(self._node, "DLPack export")
    return to_dlpack(lend(self), self.dtype, max_version, owned=False)


def _on_device(x: Tensor, stream: Any, max_version: Any, copy: bool) -> Any:
    """The capsule of memory on a device that DLPack knows."""
    check_known(x._node, "DLPack export")
    if copy:
        x = Tensor(copied(x._node))
    evaluate((x._node,))
    if not copy:  # whoever gets the memory may write to it, whatever it is told
        storage = prepare_write(x)
        storage.host = None
        lend_memory(storage.memory, storage.memory)
    view = x._node.view
    assert view is not None
    versioned = max_version is not None and max_version[0] >= 1
    return get(x.device.name).export_dlpack(
        *(view.storage.memory, view.offset, x.shape, view.strides, x.dtype),
        *(stream, versioned, not copy),
    )


@method("__dlpack_device__")
def dlpack_device(self: Tensor) -> tuple[int, int]:
    """Where DLPack finds the memory: on its device, or on the host."""
    return self.device.dlpack


@method("__buffer__")
def buffer(self: Tensor, flags: int, /) -> memoryview:
    """memoryview(x), read-only (Python 3.12 and later). NumPy asks here before `__array__`."""
    if flags & _WRITABLE:
        raise BufferError("a tensor's buffer is read-only; write with x.data_write()")
    if not self.device.on_host:
        raise BufferError(f"elements on {self.device} are in no memory of the host; take x.numpy()")
    check_readable(self._node, "the buffer protocol")
    array = _shared(self, "the buffer protocol")
    array.flags.writeable = False
    return array.data


@method("__reduce__")
def reduce(self: Tensor) -> Any:
    """Pickled by value: bytes, dtype, shape, and whether it is a leaf that requires gradients."""
    check_readable(self._node, "pickling")
    data = np.ascontiguousarray(_shared(self, "pickling")).tobytes()
    leaf = self.requires_grad and self.is_leaf
    return _rebuilt, (data, self.dtype.name, self.shape, leaf)


def _rebuilt(data: bytes, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    array = np.frombuffer(data, dt.as_dtype(dtype).np).reshape(shape)
    return asarray(array, requires_grad=requires_grad)


@method("__deepcopy__")
def deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """A tensor of its own, with the same values; a leaf stays one, and takes its gradient along."""
    check_readable(self._node, "deepcopy()")
    out = Tensor(detached(owned(self._node, self._node), sees_writes=False))
    if self.requires_grad and self.is_leaf:
        out.requires_grad = True
        if self.grad is not None:
            out.grad = deepcopy(self.grad, memo)
    memo[id(self)] = out
    return out


@method("__copy__")
def copy_(self: Tensor) -> Tensor:
    """As a deep copy: tensors hold nothing but numbers."""
    return deepcopy(self, {})


def printable(x: Tensor) -> tuple[Array, int | None]:
    """The elements in a dtype that NumPy prints, and the number of significant digits."""
    array = host_array(x._node)
    if x.dtype.is_low_precision and x.dtype is not dt.float16:
        return array.astype(np.float32), 4
    return array, None


@method("__repr__")
def repr_(self: Tensor) -> str:
    """tensor([1., 2.]), with the dtype where it is not a default, and the device likewise."""
    notes = []
    if not is_known(self._node):
        body = getattr(self._node.abstract, "word", "traced")
        notes += [f"shape={self.shape}", f"dtype={self.dtype.name}"]
    else:
        array, digits = printable(self)
        body = np.array2string(array, separator=", ", prefix="tensor(", precision=digits)
        if self.size == 0 and self.ndim != 1:
            notes.append(f"shape={self.shape}")
        implied = _DEFAULT_DTYPES if self.size else (dt.default_float,)
        if self.dtype not in implied:
            notes.append(f"dtype={self.dtype.name}")
    if self.device.kind not in ("cpu", "reference"):
        notes.append(f"device='{self.device}'")
    if self.requires_grad:
        notes.append("requires_grad=True")
    return f"tensor({', '.join([body, *notes])})"


@method("__str__")
def str_(self: Tensor) -> str:
    """The numbers alone."""
    if not is_known(self._node):
        return repr_(self)
    array, digits = printable(self)
    return np.array2string(array, precision=digits)


@method("__format__")
def format_(self: Tensor, spec: str) -> str:
    """A tensor of one element is formatted as its number."""
    if not spec:
        return str(self)
    if self.ndim:
        raise TypeError(f"only tensors without axes take a format such as {spec!r}")
    return format(self._item(), spec)


attribute("real", real, "The real part.")
attribute("imag", imag, "The imaginary part.")
