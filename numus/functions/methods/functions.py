"""Functions that are loaded at the start as methods, under NumPy's and PyTorch's names."""

from __future__ import annotations

from typing import Any

from numus.functions import api as nm
from numus.functions._base import method
from numus.functions.elementwise.torch_names import take_along_dim
from numus.tensor import Tensor

__all__: list[str] = []

NAMES = """
    absolute allclose angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh argwhere
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor deg2rad
    float_power fmax fmin greater greater_equal heaviside histogram isclose isneginf isposinf less
    less_equal logaddexp logical_and logical_not logical_or logical_xor nextafter not_equal put
    rad2deg searchsorted sinc true_divide
""".split()

for _name in NAMES:
    method(_name)(getattr(nm, _name))
method("conjugate")(nm.conj)
method("fix")(nm.trunc)
method("narrow_copy")(nm.narrow)
method("take_along_dim")(take_along_dim)


@method()
def equal(self: Tensor, other: Tensor) -> bool:
    """True if both have one shape and the same elements, as PyTorch's method. Evaluates them."""
    return self.shape == other.shape and bool(nm.all(self == other))


@method()
def where(self: Tensor, condition: Any, other: Any) -> Tensor:
    """This tensor's elements where a condition holds, the other's elsewhere."""
    return nm.where(condition, self, other)


@method()
def index(self: Tensor, indices: Any) -> Tensor:
    """x[indices]."""
    return self[tuple(indices)]
