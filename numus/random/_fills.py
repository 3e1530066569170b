"""Random values in place, under PyTorch's names: w.normal_(), w.data.uniform_(-1, 1)."""

from __future__ import annotations

from typing import Any

from numus.random._distributions import exponential
from numus.random._sampling import bernoulli, normal, uniform
from numus.tensor import Tensor, method


@method()
def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, key: Any = None) -> Tensor:
    """Normal numbers, in place."""
    return self.assign(normal(self.shape, mean, std, dtype=self.dtype, device=self.device, key=key))


@method()
def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0, *, key: Any = None) -> Tensor:
    """Numbers from [a, b), in place."""
    return self.assign(uniform(self.shape, a, b, dtype=self.dtype, device=self.device, key=key))


@method()
def exponential_(self: Tensor, lambd: float = 1.0, *, key: Any = None) -> Tensor:
    """Waiting times of rate `lambd`, in place."""
    return self.assign(
        exponential(self.shape, 1 / lambd, dtype=self.dtype, device=self.device, key=key)
    )


@method()
def bernoulli_(self: Tensor, p: Any = 0.5, *, key: Any = None) -> Tensor:
    """Ones with probability p, else zeros, in place."""
    return self.assign(bernoulli(p, self.shape, device=self.device, key=key).astype(self.dtype))
