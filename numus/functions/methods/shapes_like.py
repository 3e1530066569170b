"""Methods that take shape, dtype and device from a tensor: new_zeros, view_as, type_as, ..."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import method
from numus.shapes import is_sequence
from numus.tensor import Tensor, attribute

__all__: list[str] = []


def _shape(given: tuple[Any, ...]) -> Any:
    return given[0] if len(given) == 1 and is_sequence(given[0]) else given


def _home(self: Tensor, dtype: Any, device: Any) -> dict[str, Any]:
    return {
        "dtype": self.dtype if dtype is None else dtype,
        "device": self.device if device is None else device,
    }


@method()
def new_zeros(
    self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Zeros of a shape, with this tensor's dtype and device.

    >>> nm.ones(1, dtype=nm.float64).new_zeros(2).dtype.name
    'float64'
    """
    return nm.zeros(_shape(size), requires_grad=requires_grad, **_home(self, dtype, device))


@method()
def new_ones(
    self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Ones of a shape, with this tensor's dtype and device."""
    return nm.ones(_shape(size), requires_grad=requires_grad, **_home(self, dtype, device))


@method()
def new_empty(
    self: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Elements that do not matter, with this tensor's dtype and device."""
    return nm.empty(_shape(size), requires_grad=requires_grad, **_home(self, dtype, device))


@method()
def new_full(
    self: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """One value in a shape, with this tensor's dtype and device."""
    return nm.full(size, fill_value, requires_grad=requires_grad, **_home(self, dtype, device))


@method()
def new_tensor(
    self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A copy of data, with this tensor's dtype and device."""
    home = _home(self, dtype, device)
    given = data.detach() if isinstance(data, Tensor) else data
    return nm.asarray(given, copy=True, requires_grad=requires_grad, **home)


@method()
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in another one's dtype, on its device."""
    return nm.astype(self, other.dtype).to_device(other.device)


@method("view_as", "reshape_as")
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """The elements in another tensor's shape."""
    return nm.reshape(self, other.shape)


@method()
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Broadcast to another tensor's shape."""
    return nm.broadcast_to(self, other.shape)


@method()
def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """The sum over the axes that broadcasting from a shape would add or stretch.

    >>> nm.ones((2, 3)).sum_to_size(1, 3).tolist()
    [[2.0, 2.0, 2.0]]
    """
    shape = tuple(_shape(size))
    extra = self.ndim - len(shape)
    fits = extra >= 0 and all(
        n in (1, m) for n, m in zip(shape, self.shape[max(extra, 0) :], strict=False)
    )
    if not fits:
        raise ShapeError(f"sum_to_size: {shape} does not broadcast to {self.shape}")
    lead = tuple(range(extra))
    stretched = tuple(
        extra + i for i, n in enumerate(shape) if n == 1 and self.shape[extra + i] != 1
    )
    return nm.reshape(nm.sum(self, lead + stretched, dtype=self.dtype), shape)


def _adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose of the last two axes."""
    y = nm.matrix_transpose(x)
    return nm.conj(y) if y.dtype.is_complex else y


method("adjoint")(_adjoint)
attribute("H", _adjoint, "The conjugate transpose of a matrix.")
attribute("mH", _adjoint, "The conjugate transpose of the last two axes.")

_CASTS = {
    **{"byte": dt.uint8, "char": dt.int8, "short": dt.int16},
    **{"cfloat": dt.complex64, "cdouble": dt.complex128},
}


def _install_cast(name: str, dtype: dt.DType) -> None:
    def cast(self: Tensor) -> Tensor:
        return nm.astype(self, dtype)

    cast.__name__ = cast.__qualname__ = name
    cast.__doc__ = f"The tensor in {dtype.name}."
    method(name)(cast)


for _name, _dtype in _CASTS.items():
    _install_cast(_name, _dtype)
