"""Generators that count their draws: NumPy's `Generator` over keys (Threefry-2x32).

A generator is a key and a number of draws: draw i uses `fold_in(key, i)`, so that it can be
pickled, and gives the same numbers on every device. The distributions are those of NumPy, under
its names and parameters; the numbers of a seed are numus's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.functions import api as nm
from numus.random._keys import fold_in, key, split
from numus.tensor import Tensor

__all__ = ["Generator", "default_rng"]

_MASK = (1 << 64) - 1
# Distributions: their parameters with NumPy's defaults ("!" where it has none).
_CONTINUOUS = {
    "beta": "a=! b=!", "chisquare": "df=!", "exponential": "scale=1.0", "f": "dfnum=! dfden=!",
    "gamma": "shape=! scale=1.0", "gumbel": "loc=0.0 scale=1.0", "laplace": "loc=0.0 scale=1.0",
    "logistic": "loc=0.0 scale=1.0", "lognormal": "mean=0.0 sigma=1.0",
    "noncentral_chisquare": "df=! nonc=!", "noncentral_f": "dfnum=! dfden=! nonc=!",
    "normal": "loc=0.0 scale=1.0", "pareto": "a=!", "power": "a=!", "rayleigh": "scale=1.0",
    "standard_t": "df=!", "triangular": "left=! mode=! right=!", "uniform": "low=0.0 high=1.0",
    "vonmises": "mu=! kappa=!", "wald": "mean=! scale=!", "weibull": "a=!",
}  # fmt: skip
_DISCRETE = {
    "binomial": "n=! p=!", "geometric": "p=!", "hypergeometric": "ngood=! nbad=! nsample=!",
    "logseries": "p=!", "negative_binomial": "n=! p=!", "poisson": "lam=1.0", "zipf": "a=!",
}  # fmt: skip


def seed_bits(given: Any) -> int:
    """Sixty-four bits of what NumPy takes as a seed; of the system's, if that is None."""
    if given is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(given, np.random.SeedSequence):
        return int(given.generate_state(1, np.uint64)[0])
    if isinstance(given, (int, np.integer)):
        if given < 0:
            raise ValueError(f"a seed is not negative, as {given} is")
        return int(given) if given <= _MASK else seed_bits(np.random.SeedSequence(int(given)))
    return seed_bits(np.random.SeedSequence(nm.asarray(given).tolist()))


def _engine(name: str) -> Any:
    """A function of `numus.random`, which this is a part of."""
    return getattr(sys.modules["numus.random"], name)


def _size(size: Any) -> Any:
    if size is None or isinstance(size, tuple):
        return size
    if isinstance(size, Tensor):
        size = size.tolist()
    return (int(size),) if hasattr(size, "__index__") else tuple(int(n) for n in size)


class Generator:
    """Draws from a key; each one counts.

    >>> rng = nm.random.default_rng(0)
    >>> rng.normal(size=(2, 3)).shape, rng.integers(10).item() < 10
    ((2, 3), True)
    """

    float_dtype = dt.default_float  # of results that name none

    def __init__(self, seed: Any = None) -> None:
        self._key = key(seed_bits(getattr(seed, "seed_seq", seed)))
        self._drawn = 0

    def _tensor(self, x: Any, dtype: Any = None) -> Tensor:
        """What is given as an array."""
        return nm.asarray(x, dtype=dtype)

    def _result(self, x: Tensor) -> Any:
        """What is given back."""
        return x

    def _dtype(self, given: Any) -> Any:
        return self.float_dtype if given is None or given is float else dt.as_dtype(given)

    def _next(self) -> Tensor:
        self._drawn += 1
        return fold_in(self._key, self._drawn - 1)

    def __reduce__(self) -> Any:
        return _restored, (type(self), self._key.tolist(), self._drawn)

    @property
    def bit_generator(self) -> Generator:
        """The generator itself: a key and a count are its state."""
        return self

    @property
    def state(self) -> dict[str, Any]:
        """The key and the number of draws."""
        return {"bit_generator": "Threefry2x32", "key": self._key.tolist(), "drawn": self._drawn}

    @state.setter
    def state(self, given: dict[str, Any]) -> None:
        self._key = nm.asarray(given["key"], dtype=dt.uint32)
        self._drawn = given["drawn"]

    def spawn(self, n_children: int) -> list[Generator]:
        """Independent generators."""
        keys = split(self._next(), n_children)
        return [_restored(type(self), own.tolist(), 0) for own in keys]

    def _draw(self, name: str, size: Any, parameters: Any, dtype: Any, out: Any = None) -> Any:
        engine: Callable[..., Tensor] = _engine(name)
        numbers = (int, float)
        given = [p if isinstance(p, numbers) else self._float(p) for p in parameters]
        if out is not None:
            size, dtype = out.shape, out._node.dtype
        options = {} if dtype is None else {"dtype": dtype}
        found = engine(_size(size), *given, key=self._next(), **options)
        if out is None:
            return self._result(found)
        out.rebind(found._node, name)
        return out

    def _float(self, x: Any) -> Tensor:
        return nm.astype(self._tensor(x), self.float_dtype)

    # -- methods that are not in the tables -------------------------------------------------------

    def random(self, size: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Uniform numbers in [0, 1)."""
        return self._draw("uniform", size, [0.0, 1.0], self._dtype(dtype), out)

    def standard_normal(self, size: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Normal numbers of mean 0 and variance 1."""
        return self._draw("normal", size, [0.0, 1.0], self._dtype(dtype), out)

    def standard_exponential(
        self, size: Any = None, dtype: Any = None, method: str = "zig", out: Any = None
    ) -> Any:
        """Exponential numbers of mean 1."""
        return self._draw("exponential", size, [1.0], self._dtype(dtype), out)

    def standard_gamma(
        self, shape: Any, size: Any = None, dtype: Any = None, out: Any = None
    ) -> Any:
        """Gamma numbers of scale 1."""
        return self._draw("gamma", size, [shape, 1.0], self._dtype(dtype), out)

    def standard_cauchy(self, size: Any = None) -> Any:
        """Cauchy numbers: Student's t of one degree of freedom."""
        return self._draw("standard_t", size, [1.0], self.float_dtype)

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Any:
        """Integers of a range, or of ranges that broadcast."""
        low, high = (0, low) if high is None else (low, high)
        wanted = dt.as_dtype(np.dtype(dtype) if dtype in (int, bool) else dtype)
        if not (np.ndim(low) or np.ndim(high)):
            # Python's integers hold the ends of all dtypes, uint64 too
            start, stop = int(low), int(high) + endpoint
            if start >= stop:
                raise ValueError("low >= high")
            shape = () if size is None else _size(size)
            wide = dt.int64 if wanted is dt.bool_ else wanted
            found = _engine("integers")(start, stop, shape, dtype=wide, key=self._next())
        else:
            first, last = (nm.astype(self._tensor(x), dt.int64) for x in (low, high))
            last = last + 1 if endpoint else last
            if bool(nm.any(first >= last)):
                raise ValueError("low >= high in some elements")
            first, last = nm.broadcast_arrays(first, last)
            shape = first.shape if size is None else _size(size)
            part = _engine("uniform")(shape, dtype=dt.float64, key=self._next())
            span = nm.astype(last - first, dt.float64)
            found = nm.astype(nm.floor(part * span), dt.int64) + first
        return self._result(nm.astype(found, wanted))

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """Elements of an array, or numbers below a number."""
        weights = None if p is None else self._float(p)
        shape = () if size is None else _size(size)
        pool = self._pool(a)
        return self._result(
            _engine("choice")(pool, shape, replace, weights, axis, key=self._next())
        )

    def _pool(self, x: Any) -> Any:
        return int(x) if hasattr(x, "__index__") and not getattr(x, "ndim", 0) else self._tensor(x)

    def permutation(self, x: Any, axis: int = 0) -> Any:
        """Numbers below a number, or the parts of an array, in random order."""
        return self._result(_engine("permutation")(self._pool(x), axis, key=self._next()))

    def permuted(self, x: Any, *, axis: int | None = None, out: Any = None) -> Any:
        """Each line along an axis in an order of its own."""
        given = self._tensor(x)
        if axis is None:
            flat = _engine("permutation")(nm.reshape(given, -1), key=self._next())
            found = nm.reshape(flat, given.shape)
        else:
            found = _engine("permuted")(given, axis, key=self._next())
        if out is None:
            return self._result(found)
        out.rebind(nm.astype(found, out._node.dtype)._node, "permuted")
        return out

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """The parts of an array or a list in random order, in place."""
        if isinstance(x, list):
            order = _engine("permutation")(len(x), key=self._next()).tolist()
            x[:] = [x[i] for i in order]
            return
        x.rebind(_engine("permutation")(Tensor(x._node), axis, key=self._next())._node, "shuffle")

    def bytes(self, length: int) -> bytes:
        """Random bytes."""
        return _engine("bits")((length,), dtype=dt.uint8, key=self._next()).numpy().tobytes()

    def multinomial(self, n: Any, pvals: Any, size: Any = None) -> Any:
        """Counts of n trials of several outcomes."""
        found = _engine("multinomial")(_size(size), n, self._float(pvals), key=self._next())
        return self._result(nm.astype(found, dt.int64))

    def dirichlet(self, alpha: Any, size: Any = None) -> Any:
        """Probabilities of several outcomes."""
        return self._result(_engine("dirichlet")(_size(size), self._float(alpha), key=self._next()))

    def multivariate_normal(self, mean: Any, cov: Any, size: Any = None, **options: Any) -> Any:
        """Normal vectors."""
        pair = (self._float(mean), self._float(cov))
        return self._result(_engine("multivariate_normal")(_size(size), *pair, key=self._next()))

    def multivariate_hypergeometric(
        self, colors: Any, nsample: int, size: Any = None, method: str = "marginals"
    ) -> Any:
        """Counts of colours drawn without replacement."""
        draw = _engine("multivariate_hypergeometric")
        return self._result(draw(_size(size), self._tensor(colors), nsample, key=self._next()))


def _restored(kind: type[Generator], own: list[int], drawn: int) -> Generator:
    made = kind.__new__(kind)
    made.state = {"key": own, "drawn": drawn}
    return made


def _distribution(name: str, spec: str, is_discrete: bool) -> Any:
    parameters = [item.split("=") for item in spec.split()]

    def draw(self: Generator, *args: Any, size: Any = None, **kwargs: Any) -> Any:
        given = dict(zip([*(n for n, _ in parameters), "size"], args, strict=False)) | kwargs
        size = given.pop("size", size)
        missing = [n for n, default in parameters if default == "!" and n not in given]
        unknown = set(given) - {n for n, _ in parameters}
        if missing or unknown or len(args) > len(parameters) + 1:
            raise TypeError(f"{name}() takes {', '.join(n for n, _ in parameters)} and size")
        values = [given[n] if d == "!" else given.get(n, float(d)) for n, d in parameters]
        found = self._draw(name, size, values, None if is_discrete else self.float_dtype)
        return found.astype(np.int64) if is_discrete else found

    draw.__name__, draw.__qualname__ = name, f"Generator.{name}"
    draw.__doc__ = f"As `numpy.random.Generator.{name}`."
    return draw


for _name, _spec in (_CONTINUOUS | _DISCRETE).items():
    setattr(Generator, _name, _distribution(_name, _spec, _name in _DISCRETE))


def default_rng(seed: Any = None) -> Generator:
    """A generator of a seed; a generator is returned as it is.

    >>> nm.random.default_rng(1).random() == nm.random.default_rng(1).random()
    tensor(True)
    """
    return seed if isinstance(seed, Generator) else Generator(seed)


class LegacyNames(Generator):
    """A generator with the names of NumPy's older one, RandomState."""

    def seed(self, seed: Any = None) -> None:
        """Start anew."""
        Generator.__init__(self, seed)

    def rand(self, *shape: int) -> Any:
        """Uniform numbers in [0, 1)."""
        return self.random(shape or None)

    def randn(self, *shape: int) -> Any:
        """Normal numbers of mean 0 and variance 1."""
        return self.standard_normal(shape or None)

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Integers of a range."""
        return self.integers(low, high, size, dtype)

    def random_integers(self, low: Any, high: Any = None, size: Any = None) -> Any:
        """Integers from low (1) to high, both included."""
        first, last = (1, low) if high is None else (low, high)
        return self.integers(first, last, size, endpoint=True)

    def get_state(self, legacy: bool = True) -> Any:
        """The state, for set_state."""
        return self.state

    def set_state(self, state: Any) -> None:
        """Go on from a state."""
        self.state = state

    random_sample = ranf = sample = tomaxint = Generator.random
