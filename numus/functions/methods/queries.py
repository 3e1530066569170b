"""Methods of PyTorch's and NumPy's tensors that ask: sizes, kinds, devices."""

from __future__ import annotations

from typing import Any

from numus.functions import api as nm
from numus.functions import synchronization
from numus.functions._base import method
from numus.functions.creation import more_creation as queries
from numus.runtime.devices import Device
from numus.shapes import normal_axis
from numus.tensor import Tensor, attribute

__all__: list[str] = []

for _name in ("is_complex", "is_floating_point", "is_nonzero", "is_signed", "numel", "t"):
    method(_name)(getattr(queries, _name))
method("nelement")(queries.numel)


@method("dim", "ndimension")
def dim(self: Tensor) -> int:
    """The number of axes."""
    return self.ndim


@method()
def block_until_ready(self: Tensor) -> Tensor:
    """The tensor, computed (JAX's name)."""
    synchronization.eval(self)
    synchronization.synchronize()
    return self


@method()
def element_size(self: Tensor) -> int:
    """Bytes per element."""
    return self.itemsize


@method()
def stride(self: Tensor, dim: int | None = None) -> Any:
    """The stride of each axis, or of one, in elements. Evaluates the tensor."""
    return self.strides if dim is None else self.strides[normal_axis(dim, self.ndim, "stride")]


@method()
def storage_offset(self: Tensor) -> int:
    """The offset of the first element in its storage, in elements. Evaluates the tensor."""
    return self.offset


@method()
def is_same_size(self: Tensor, other: Tensor) -> bool:
    """True if both have one shape."""
    return self.shape == other.shape


@method()
def get_device(self: Tensor) -> int:
    """The number of its GPU; -1 on the CPU."""
    return self.device.index if self.device.kind == "cuda" else -1


def _is_cpu(self: Tensor) -> bool:
    return self.device.kind == "cpu"


def _is_cuda(self: Tensor) -> bool:
    return self.device.kind == "cuda"


attribute("is_cpu", _is_cpu, "True if it is on the CPU.")
attribute("is_cuda", _is_cuda, "True if it is on an NVIDIA GPU.")


def _retains(self: Tensor) -> bool:
    slot = self._node.grad_slot
    return slot is not None and slot.retains and not slot.leaf


attribute("retains_grad", _retains, "True if `retain_grad` was asked for.")


@method()
def cuda(self: Tensor, device: Any = None) -> Tensor:
    """The tensor on an NVIDIA GPU."""
    index = device if isinstance(device, int) else 0
    target = device if isinstance(device, (str, Device)) else f"cuda:{index}"
    return self.to_device("cuda" if target == "cuda:0" else target)


@method()
def tobytes(self: Tensor) -> bytes:
    """The elements in row-major order as bytes. Evaluates the tensor."""
    return self.numpy().tobytes()


@method()
def tofile(self: Tensor, fid: Any, sep: str = "", format: str = "%s") -> None:
    """Write the elements to a file, as bytes or, with a separator, as text."""
    self.numpy().tofile(fid, sep, format)


@method()
def type(self: Tensor, dtype: Any = None) -> Any:
    """The name of the dtype; with an argument, the tensor in another one."""
    return self.dtype.name if dtype is None else nm.astype(self, dtype)
