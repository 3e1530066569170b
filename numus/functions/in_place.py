"""In-place methods under PyTorch's names: x.add_(y), x.clamp_(0), x.zero_().

Each is its function, whose result the tensor is then bound to; views see it (`numus.aliases`).
"""

from __future__ import annotations

from typing import Any

from numus.functions._base import method
from numus.tensor import Tensor

# Methods that return a tensor of the same shape.
NAMES = """
    abs acos acosh asin asinh atan atan2 atanh ceil clamp clip conj copysign cos cosh digamma
    erf erfinv exp exp2 expm1 floor floor_divide fmod hypot index_add index_put lerp lgamma log
    log10 log1p log2 masked_fill masked_scatter mul nan_to_num neg pow reciprocal relu remainder
    round rsqrt scatter scatter_add scatter_reduce sigmoid sign sin sinh sqrt square tan tanh tril
    triu trunc
""".split()


def install(name: str) -> None:
    """Add the in-place form of a method that returns a tensor of the same shape and dtype."""
    function = getattr(Tensor, name)

    def in_place(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.rebind(function(self, *args, **kwargs)._node, f"{name}_")

    in_place.__doc__ = f"`{name}`, in place."
    in_place.__name__ = f"{name}_"
    in_place.__qualname__ = f"Tensor.{name}_"
    setattr(Tensor, f"{name}_", in_place)


for _name in NAMES:
    install(_name)


@method()
def add_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """self + alpha * other, in place."""
    return self.rebind((self + (other if alpha == 1 else other * alpha))._node, "add_")


@method()
def sub_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """self - alpha * other, in place."""
    return self.rebind((self - (other if alpha == 1 else other * alpha))._node, "sub_")


@method()
def addcmul_(self: Tensor, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """self + value * tensor1 * tensor2, in place."""
    return self.rebind((self + value * tensor1 * tensor2)._node, "addcmul_")


@method()
def addcdiv_(self: Tensor, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    """self + value * tensor1 / tensor2, in place."""
    return self.rebind((self + value * tensor1 / tensor2)._node, "addcdiv_")


@method()
def copy_(self: Tensor, src: Any) -> Tensor:
    """The values of another tensor, broadcast and cast, in place."""
    value = src.astype(self.dtype) if isinstance(src, Tensor) else src
    return self.assign(value)


@method()
def fill_(self: Tensor, value: Any) -> Tensor:
    """One value everywhere, in place."""
    return self.assign(value)


@method()
def zero_(self: Tensor) -> Tensor:
    """Zeros, in place."""
    return self.assign(0)
