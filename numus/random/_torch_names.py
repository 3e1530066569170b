"""Random tensors under PyTorch's names at the top of numus: rand_like, randint, multinomial, ..."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import operand
from numus.random._distributions import gumbel
from numus.random._keys import seed
from numus.random._permutation import permutation
from numus.random._sampling import bernoulli as _bernoulli
from numus.random._sampling import integers, rand, randn, uniform
from numus.random._sampling import normal as _normal
from numus.shapes import as_int, is_sequence
from numus.tensor import Tensor, method

__all__ = [
    "bernoulli", "manual_seed", "multinomial", "normal", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm",
]  # fmt: skip


def manual_seed(seed_: int, /) -> None:
    """Start the generator of this process anew: `nm.random.seed`."""
    seed(seed_)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = dt.int64,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Integers from low up to but without high; from 0, where one number is given.

    >>> nm.randint(3, (2, 5)).shape
    (2, 5)
    """
    if is_sequence(high):  # PyTorch's randint(high, size)
        low, high, size = 0, low, high
    shape = () if size is None else size
    return integers(low, high, shape, dtype=dtype, device=device, key=key)


def randperm(n: int, /, *, device: Any = None, key: Tensor | None = None) -> Tensor:
    """The integers 0 … n - 1 in random order.

    >>> nm.sort(nm.randperm(4)).tolist()
    [0, 1, 2, 3]
    """
    found = permutation(as_int(n, "n", "randperm"), key=key)
    return found if device is None else found.to_device(device)


def _like(op: str, x: Any, dtype: Any, device: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    given = operand(op, x)
    own = given.dtype if given.dtype.is_floating else dt.default_float
    home = {"dtype": own if dtype is None else dtype}
    return given.shape, {**home, "device": given.device if device is None else device}


def rand_like(
    x: Tensor, /, *, dtype: Any = None, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Numbers from [0, 1) in the shape, dtype and device of x."""
    shape, home = _like("rand_like", x, dtype, device)
    return uniform(shape, key=key, **home)


def randn_like(
    x: Tensor, /, *, dtype: Any = None, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Normal numbers in the shape, dtype and device of x."""
    shape, home = _like("randn_like", x, dtype, device)
    return _normal(shape, key=key, **home)


def randint_like(
    x: Tensor,
    low: int,
    high: int | None = None,
    /,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Integers from low up to but without high in the shape, dtype and device of x."""
    given = operand("randint_like", x)
    wanted = given.dtype if dtype is None else dt.as_dtype(dtype)
    place = given.device if device is None else device
    drawn = integers(low, high, given.shape, dtype=dt.int64, device=place, key=key)
    return nm.astype(drawn, wanted)


@method("bernoulli")
def bernoulli(x: Tensor, /, p: Any = None, *, key: Tensor | None = None) -> Tensor:
    """Zeros and ones in the dtype of x: ones with the probabilities that x says, or with p.

    >>> nm.bernoulli(nm.asarray([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    given = operand("bernoulli", x)
    if p is None:
        return nm.astype(_bernoulli(given, key=key), given.dtype)
    return nm.astype(_bernoulli(p, given.shape, device=given.device, key=key), given.dtype)


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Normal numbers of these means and deviations, numbers or tensors, which broadcast.

    >>> nm.normal(0.0, 1.0, (2, 3)).shape
    (2, 3)
    """
    spread = nm.broadcast_arrays(nm.asarray(mean), nm.asarray(std))[0]
    shape = spread.shape if size is None else size
    place = spread.device if device is None and isinstance(mean, Tensor) else device
    wanted = spread.dtype if dtype is None and spread.dtype.is_floating else dtype
    return _normal(shape, mean, std, dtype=wanted, device=place, key=key)


@method("multinomial")
def multinomial(
    x: Tensor, /, num_samples: int, replacement: bool = False, *, key: Tensor | None = None
) -> Tensor:
    """Indices drawn with probabilities in proportion to the weights of each row, with replacement
    or without (by Gumbel's largest k).

    >>> nm.multinomial(nm.asarray([0.0, 1.0, 0.0]), 2, replacement=True).tolist()
    [1, 1]
    """
    op = "multinomial"
    given = operand(op, x)
    count = as_int(num_samples, "num_samples", op)
    if given.ndim not in (1, 2) or not given.dtype.is_floating:
        raise ShapeError(f"{op}: takes a vector or a matrix of float weights, not {given.shape}")
    if not replacement and count > given.shape[-1]:
        raise ShapeError(
            f"{op}: without replacement at most {given.shape[-1]} indices can be drawn, not {count}"
        )
    weights = nm.log(nm.astype(given, dt.compute_dtype(given.dtype)))
    if replacement:
        shape = (*given.shape[:-1], count, given.shape[-1])
        noise = gumbel(shape, dtype=weights.dtype, device=given.device, key=key)
        return nm.argmax(nm.expand_dims(weights, -2) + noise, -1)
    noise = gumbel(given.shape, dtype=weights.dtype, device=given.device, key=key)
    return nm.topk(weights + noise, count).indices


# -- methods --------------------------------------------------------------------------------------


@method()
def random_(
    self: Tensor, low: int = 0, high: int | None = None, *, key: Tensor | None = None
) -> Tensor:
    """Integers from low up to but without high, in place; one number is high, none is 2**23."""
    first, last = (0, low or 1 << 23) if high is None else (low, high)
    return self.assign(randint_like(self, first, last, key=key))


@method()
def log_normal_(
    self: Tensor, mean: float = 1.0, std: float = 2.0, *, key: Tensor | None = None
) -> Tensor:
    """Numbers whose logarithms are normal, in place."""
    return self.assign(nm.exp(_normal(self.shape, mean, std, **_home(self), key=key)))


@method()
def cauchy_(
    self: Tensor, median: float = 0.0, sigma: float = 1.0, *, key: Tensor | None = None
) -> Tensor:
    """Numbers of Cauchy's distribution, in place."""
    u = uniform(self.shape, **_home(self), key=key)
    return self.assign(median + sigma * nm.tan(math.pi * (u - 0.5)))


@method()
def geometric_(self: Tensor, p: float, *, key: Tensor | None = None) -> Tensor:
    """The number of trials up to the first success of probability p, in place."""
    u = 1 - uniform(self.shape, device=self.device, key=key)
    return self.assign(nm.astype(nm.ceil(nm.log(u) / math.log1p(-p)), self.dtype))


def _home(x: Tensor) -> dict[str, Any]:
    return {"dtype": x.dtype, "device": x.device}
