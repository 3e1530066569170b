"""How tensors look in print: as NumPy's arrays do, with what is not obvious beside the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.evaluation.evaluate import host_array, is_known
from numus.functions._base import method
from numus.tensor import Tensor

_PLAIN = (dt.default_float, dt.default_int, dt.default_complex, dt.bool_)


def _printable(x: Tensor) -> tuple[np.ndarray[Any, Any], int | None]:
    """The elements in a dtype that NumPy prints, and how many digits say all of them."""
    array = host_array(x._node)
    if x.dtype.is_narrow_float and x.dtype is not dt.float16:
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
        array, digits = _printable(self)
        body = np.array2string(array, separator=", ", prefix="tensor(", precision=digits)
        if self.size == 0 and self.ndim != 1:
            notes.append(f"shape={self.shape}")
        if self.dtype not in _PLAIN or (self.size == 0 and self.dtype is not dt.default_float):
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
    array, digits = _printable(self)
    return np.array2string(array, precision=digits)


@method("__format__")
def format_(self: Tensor, spec: str) -> str:
    """A tensor of one element is formatted as its number."""
    if not spec:
        return str(self)
    if self.ndim:
        raise TypeError(f"only tensors without axes take a format such as {spec!r}")
    return format(self.item(), spec)
