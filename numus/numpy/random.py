"""NumPy's random numbers over numus's counter-based generator (Threefry-2x32).

A `Generator` is a key and a count of draws: draw i uses `fold_in(key, i)`. The distributions are
NumPy's; the numbers of a seed are numus's own, the same on every device.
"""

from __future__ import annotations

import os

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy import _array
from numus.numpy._array import adopt, result
from numus.numpy._convert import cast, engine_dtype, plain, to_tensor
from numus.tensor import Tensor

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


def _seed(given):
    """Sixty-four bits of what NumPy takes as a seed."""
    if given is None:
        return int.from_bytes(os.urandom(8), "little")
    if isinstance(given, host.random.SeedSequence):
        return int(given.generate_state(1, host.uint64)[0])
    if isinstance(given, (int, host.integer)):
        if given < 0:
            raise ValueError("expected non-negative integer")
        return int(given) if given <= _MASK else _seed(host.random.SeedSequence(int(given)))
    words = to_tensor(given).tolist()
    return _seed(host.random.SeedSequence(words))


def _size(size):
    if size is None or isinstance(size, tuple):
        return size
    if isinstance(size, Tensor):
        size = size.tolist()
    return (int(size),) if hasattr(size, "__index__") else tuple(int(n) for n in size)


class Generator:
    """Draws from a key; each one counts."""

    def __init__(self, seed=None):
        self._key = nm.random.key(_seed(getattr(seed, "seed_seq", seed)))
        self._drawn = 0

    def _next(self):
        self._drawn += 1
        return nm.random.fold_in(self._key, self._drawn - 1)

    def __reduce__(self):
        return _restored, (type(self), self._key.tolist(), self._drawn)

    @property
    def bit_generator(self):
        """The generator itself: a key and a count are its state."""
        return self

    @property
    def state(self):
        """The key and the number of draws."""
        return {"bit_generator": "Threefry2x32", "key": self._key.tolist(), "drawn": self._drawn}

    @state.setter
    def state(self, given):
        self._key = nm.asarray(given["key"], dtype=dt.uint32)
        self._drawn = given["drawn"]

    def spawn(self, n_children):
        """Independent generators."""
        return [
            _restored(type(self), key.tolist(), 0)
            for key in nm.random.split(self._next(), n_children)
        ]

    def _draw(self, name, size, parameters, dtype, out=None):
        engine = getattr(nm.random, name)
        given = [to_tensor(p) if not isinstance(p, (int, float)) else p for p in parameters]
        given = [
            cast(p, dt.float64) if isinstance(p, Tensor) and p.dtype is not dt.float64 else p
            for p in given
        ]
        if out is not None:
            size, dtype = out.shape, out._node.dtype
        options = {"dtype": dtype} if dtype is not None else {}
        found = engine(_size(size), *given, key=self._next(), **options)
        if out is not None:
            out.rebind(found._node, name)
            return out
        return result(found)

    # -- NumPy's methods that are not in the tables -----------------------------------------------

    def random(self, size=None, dtype=float, out=None):
        """Uniform numbers in [0, 1)."""
        return self._draw("uniform", size, [0.0, 1.0], engine_dtype(dtype), out)

    def standard_normal(self, size=None, dtype=float, out=None):
        """Normal numbers of mean 0 and variance 1."""
        return self._draw("normal", size, [0.0, 1.0], engine_dtype(dtype), out)

    def standard_exponential(self, size=None, dtype=float, method="zig", out=None):
        """Exponential numbers of mean 1."""
        return self._draw("exponential", size, [1.0], engine_dtype(dtype), out)

    def standard_gamma(self, shape, size=None, dtype=float, out=None):
        """Gamma numbers of scale 1."""
        return self._draw("gamma", size, [shape, 1.0], engine_dtype(dtype), out)

    def standard_cauchy(self, size=None):
        """Cauchy numbers: Student's t of one degree of freedom."""
        return self._draw("standard_t", size, [1.0], dt.float64)

    def integers(self, low, high=None, size=None, dtype=host.int64, endpoint=False):
        """Integers of a range."""
        if high is None:
            low, high = 0, low
        wanted = engine_dtype(dtype)
        bounds = host.broadcast_arrays(_host(low), host.asarray(_host(high)) + endpoint)
        if not all(b.size for b in bounds) or (bounds[0] >= bounds[1]).any():
            raise ValueError(
                "low >= high" if host.ndim(_host(low)) == 0 else "low >= high in some elements"
            )
        if bounds[0].ndim == 0:
            shape = () if size is None else _size(size)
            wide = dt.int64 if wanted is dt.bool_ else wanted
            found = nm.random.integers(
                int(bounds[0]), int(bounds[1]), shape, dtype=wide, key=self._next()
            )
        else:
            shape = bounds[0].shape if size is None else _size(size)
            span, start = (
                nm.asarray(host.ascontiguousarray(b)) for b in (bounds[1] - bounds[0], bounds[0])
            )
            found = nm.random.uniform(shape, 0.0, 1.0, dtype=dt.float64, key=self._next())
            found = nm.astype(nm.floor(found * nm.astype(span, dt.float64)), dt.int64) + start
        return result(cast(found, wanted))

    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
        """Elements of an array, or numbers below a number."""
        pool = int(a) if host.ndim(_host(a)) == 0 else to_tensor(a)
        weights = None if p is None else cast(to_tensor(p), dt.float64)
        shape = () if size is None else _size(size)
        return result(nm.random.choice(pool, shape, replace, weights, axis, key=self._next()))

    def permutation(self, x, axis=0):
        """Numbers below a number, or the parts of an array, in random order."""
        pool = int(x) if host.ndim(_host(x)) == 0 else to_tensor(x)
        return adopt(nm.random.permutation(pool, axis, key=self._next()))

    def permuted(self, x, *, axis=None, out=None):
        """Each line along an axis in an order of its own."""
        given = to_tensor(x)
        if axis is None:
            found = nm.reshape(
                nm.random.permutation(nm.reshape(given, -1), key=self._next()), given.shape
            )
        else:
            found = nm.random.permuted(given, axis, key=self._next())
        return _array.write_out(found, out, "permuted")

    def shuffle(self, x, axis=0):
        """The parts of an array in random order, in place."""
        if isinstance(x, list):
            order = self.permutation(len(x)).tolist()
            x[:] = [x[i] for i in order]
            return
        x.rebind(nm.random.permutation(plain(x), axis, key=self._next())._node, "shuffle")

    def bytes(self, length):
        """Random bytes."""
        return nm.random.bits((length,), dtype=dt.uint8, key=self._next()).numpy().tobytes()

    def multinomial(self, n, pvals, size=None):
        """Counts of n trials of several outcomes."""
        found = nm.random.multinomial(
            _size(size), n, cast(to_tensor(pvals), dt.float64), key=self._next()
        )
        return adopt(cast(found, dt.int64))

    def dirichlet(self, alpha, size=None):
        """Probabilities of several outcomes."""
        return adopt(
            nm.random.dirichlet(_size(size), cast(to_tensor(alpha), dt.float64), key=self._next())
        )

    def multivariate_normal(self, mean, cov, size=None, check_valid="warn", tol=1e-8, **method):
        """Normal vectors."""
        pair = (cast(to_tensor(v), dt.float64) for v in (mean, cov))
        return adopt(nm.random.multivariate_normal(_size(size), *pair, key=self._next()))

    def multivariate_hypergeometric(self, colors, nsample, size=None, method="marginals"):
        """Counts of colours drawn without replacement."""
        shape, given = _size(size), to_tensor(colors)
        return adopt(nm.random.multivariate_hypergeometric(shape, given, nsample, key=self._next()))


def _host(x):
    return x.__array__() if isinstance(x, Tensor) else x


def _restored(kind, key, drawn):
    made = kind.__new__(kind)
    made.state = {"key": key, "drawn": drawn}
    return made


def _distribution(name, spec, dtype):
    parameters = [item.split("=") for item in spec.split()]

    def draw(self, *args, size=None, **kwargs):
        given = dict(zip([*(n for n, _ in parameters), "size"], args, strict=False)) | kwargs
        size = given.pop("size", size)
        missing = [n for n, default in parameters if default == "!" and n not in given]
        unknown = set(given) - {n for n, _ in parameters}
        if missing or unknown or len(args) > len(parameters) + 1:
            raise TypeError(f"{name}() takes {', '.join(n for n, _ in parameters)} and size")
        values = [given.get(n, None if d == "!" else d) for n, d in parameters]
        values = [float(v) if isinstance(v, str) else v for v in values]
        found = self._draw(name, size, values, dtype)
        return found.astype(host.int64) if dtype is None else found

    draw.__name__, draw.__qualname__ = name, f"Generator.{name}"
    draw.__doc__ = f"As `numpy.random.Generator.{name}`."
    return draw


for _name, _spec in _CONTINUOUS.items():
    setattr(Generator, _name, _distribution(_name, _spec, dt.float64))
for _name, _spec in _DISCRETE.items():
    setattr(Generator, _name, _distribution(_name, _spec, None))


class RandomState(Generator):
    """NumPy's older generator, with its names."""

    def seed(self, seed=None):
        """Start anew."""
        Generator.__init__(self, seed)

    def rand(self, *shape):
        """Uniform numbers in [0, 1)."""
        return self.random(shape or None)

    def randn(self, *shape):
        """Normal numbers of mean 0 and variance 1."""
        return self.standard_normal(shape or None)

    def randint(self, low, high=None, size=None, dtype=int):
        """Integers of a range."""
        return self.integers(low, high, size, dtype)

    def random_integers(self, low, high=None, size=None):
        """Integers from low (1) to high, both included."""
        return self.integers(*((1, low) if high is None else (low, high)), size, endpoint=True)

    def random_sample(self, size=None):
        """Uniform numbers in [0, 1)."""
        return self.random(size)

    def get_state(self, legacy=True):
        """The state, for set_state."""
        return self.state

    def set_state(self, state):
        """Go on from a state."""
        self.state = state

    ranf = sample = tomaxint = random_sample


def default_rng(seed=None):
    """A generator of a seed; a generator is returned as it is."""
    return seed if isinstance(seed, Generator) else Generator(seed)


_global = RandomState()
SeedSequence = host.random.SeedSequence
BitGenerator = PCG64 = PCG64DXSM = MT19937 = Philox = SFC64 = Generator

_FUNCTIONS = """
    beta binomial bytes chisquare choice dirichlet exponential f gamma geometric get_state gumbel
    hypergeometric laplace logistic lognormal logseries multinomial multivariate_normal
    negative_binomial noncentral_chisquare noncentral_f normal pareto permutation poisson power
    rand randint randn random random_integers random_sample ranf rayleigh sample seed set_state
    shuffle standard_cauchy standard_exponential standard_gamma standard_normal standard_t
    triangular uniform vonmises wald weibull zipf
""".split()
globals().update({name: getattr(_global, name) for name in _FUNCTIONS})

__all__ = [
    "BitGenerator", "Generator", "MT19937", "PCG64", "PCG64DXSM", "Philox", "RandomState", "SFC64",
    "SeedSequence", "default_rng", *_FUNCTIONS,
]  # fmt: skip
