"""PyTorch's in-place methods that are rarely used; `functions.in_place` has the others."""

from __future__ import annotations

from typing import Any

from numus.functions import api as nm
from numus.functions._base import method
from numus.functions.in_place import install
from numus.functions.indexing.writes import fill_diagonal
from numus.tensor import Tensor

__all__: list[str] = []

# Methods that return a tensor of the same shape and dtype.
NAMES = """
    absolute addbmm addmm addmv addr arccos arccosh arcsin arcsinh arctan arctan2 arctanh baddbmm
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor clamp_max
    clamp_min conj_physical cumprod cumsum deg2rad div divide erfc fix float_power frac gcd
    heaviside index_copy index_fill index_reduce lcm ldexp logit multiply negative nextafter rad2deg
    renorm sgn sinc subtract true_divide xlogy
""".split()
# Methods that return booleans, which are written as 0 and 1.
PREDICATES = """
    eq ge greater greater_equal gt le less less_equal logical_and logical_not logical_or
    logical_xor lt ne not_equal
""".split()

for _name in NAMES:
    install(_name)


def _install_predicate(name: str) -> None:
    def in_place(self: Tensor, *args: Any) -> Tensor:
        found = getattr(self, name)(*args)
        return self.rebind(nm.astype(found, self.dtype)._node, f"{name}_")

    in_place.__name__ = in_place.__qualname__ = f"{name}_"
    in_place.__doc__ = f"`{name}`, in place, as zeros and ones."
    method(f"{name}_")(in_place)


for _name in PREDICATES:
    _install_predicate(_name)


@method()
def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """One value on the main diagonal, in place."""
    return fill_diagonal(self, fill_value, wrap)


@method()
def put_(self: Tensor, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """Values at indices into the tensor taken as one long axis, in place."""
    if not accumulate:
        return nm.put(self, index, source)
    at = nm.reshape(nm.asarray(index), -1)
    given = nm.reshape(nm.asarray(source, dtype=self.dtype), -1)
    flat = nm.index_put(nm.reshape(self, -1), (at,), given, accumulate=True)
    return self.rebind(nm.reshape(flat, self.shape)._node, "put_")
