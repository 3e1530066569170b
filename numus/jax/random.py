"""`jax.random`: every function takes a key.

Keys and splits are JAX's (Threefry); draws have the same distributions, not the same numbers.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.dtypes import real_of
from numus.jax._adapt import canonical_dtype, to_tensor
from numus.random import _geometry, fold_in, key
from numus.random import split as _split
from numus.tensor import Tensor

PRNGKey = key

__all__ = ["PRNGKey", "fold_in", "key"]  # and what follows


def split(key: Tensor, num: int | tuple[int, ...] = 2) -> Tensor:
    """New keys."""
    return _split(key, num)


def clone(key: Tensor) -> Tensor:
    """The same key."""
    return key


def key_data(keys: Tensor) -> Tensor:
    """The words of a key: keys are their words."""
    return keys


wrap_key_data = key_data


def _shape(shape: Any) -> Any:
    return (shape,) if isinstance(shape, int) else None if shape is None else tuple(shape)


def _draw(name: str, key: Any, shape: Any, dtype: Any, *args: Any, **kwargs: Any) -> Tensor:
    """A draw of nm.random in a dtype of JAX's."""
    draw = getattr(nm.random, name)
    return draw(_shape(shape), *args, dtype=canonical_dtype(dtype), key=key, **kwargs)


def normal(key: Any, shape: Any = (), dtype: Any = float, **hints: Any) -> Tensor:
    """Standard normal numbers; complex ones have unit variance."""
    wanted = canonical_dtype(dtype)
    if wanted.kind != "complex":
        return _draw("normal", key, shape, wanted)
    real, imaginary = (
        _draw("normal", k, shape, real_of(wanted), scale=2**-0.5) for k in split(key)
    )
    return nm.complex(real, imaginary)


def uniform(
    key: Any,
    shape: Any = (),
    dtype: Any = float,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    **hints: Any,
) -> Tensor:
    """Uniform numbers."""
    return _draw("uniform", key, shape, dtype, minval, maxval)


def bits(key: Any, shape: Any = (), dtype: Any = "uint32", **hints: Any) -> Tensor:
    """Random words."""
    return nm.random.bits(_shape(shape), dtype=canonical_dtype(dtype), key=key)


def randint(
    key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = int, **hints: Any
) -> Tensor:
    """Integers from minval up to, and without, maxval."""
    wanted = canonical_dtype(dtype)
    if isinstance(minval, int) and isinstance(maxval, int):
        return nm.random.randint(minval, maxval, _shape(shape), dtype=wanted, key=key)
    low, high = to_tensor(minval), to_tensor(maxval)
    u = nm.random.uniform(_shape(shape), dtype=nm.float64, key=key)
    return nm.astype(nm.floor(u * (high - low)), wanted) + nm.astype(low, wanted)


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **hints: Any) -> Tensor:
    """True with probability p."""
    return nm.random.bernoulli(p, _shape(shape), key=key)


def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Any = None, replace: bool = True, **hints: Any
) -> Tensor:
    """Indices along an axis of logits."""
    x = to_tensor(logits)
    if shape is not None:
        axis %= x.ndim
        rest = x.shape[:axis] + x.shape[axis + 1 :]
        extra = tuple(shape)[: len(shape) - len(rest)]
        axis += len(extra)
        x = nm.broadcast_to(x, extra + x.shape)
    if replace:
        return nm.random.categorical(x, axis, key=key)
    raise ValueError("categorical: replace=False is drawn by random.choice(..., replace=False)")


def choice(
    key: Any,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    **hints: Any,
) -> Tensor:
    """Elements drawn from an array or a range."""
    source = a if isinstance(a, int) else to_tensor(a)
    return nm.random.choice(source, _shape(shape), replace, p, axis, key=key)


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, **hints: Any) -> Tensor:
    """A range or the elements of an axis, shuffled."""
    if independent and not isinstance(x, int):
        return nm.random.permuted(to_tensor(x), axis, key=key)
    return nm.random.permutation(x if isinstance(x, int) else to_tensor(x), axis, key=key)


def truncated_normal(
    key: Any, lower: float, upper: float, shape: Any = (), dtype: Any = float, **hints: Any
) -> Tensor:
    """Normal numbers between two bounds."""
    wanted = canonical_dtype(dtype)
    return nm.random.truncated_normal(_shape(shape), lower, upper, dtype=wanted, key=key)


def _one_parameter(name: str, doc: str) -> Any:
    def draw(key: Any, a: Any, shape: Any = None, dtype: Any = float, **hints: Any) -> Tensor:
        a = a if isinstance(a, (int, float)) else to_tensor(a)
        return _draw(name, key, shape, dtype, a)

    draw.__doc__ = doc
    return draw


def _standard(name: str, doc: str) -> Any:
    def draw(key: Any, shape: Any = (), dtype: Any = float, **hints: Any) -> Tensor:
        return _draw(name, key, shape, dtype)

    draw.__doc__ = doc
    return draw


gamma = _one_parameter("gamma", "Gamma-distributed numbers of shape a.")
pareto_lomax = _one_parameter("pareto", "Numbers of Lomax's distribution.")
t = _one_parameter("standard_t", "Student's t of some degrees of freedom.")
chisquare = _one_parameter("chisquare", "Chi-square of some degrees of freedom.")
exponential = _standard("exponential", "Exponential numbers.")
gumbel = _standard("gumbel", "Gumbel-distributed numbers.")
laplace = _standard("laplace", "Laplace-distributed numbers.")
logistic = _standard("logistic", "Logistic numbers.")


def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = float) -> Tensor:
    """Pareto-distributed numbers, from 1 up."""
    return pareto_lomax(key, b, shape, dtype) + 1


def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = float) -> Tensor:
    """Rayleigh-distributed numbers."""
    return _draw("rayleigh", key, shape, dtype, scale)


def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = float) -> Tensor:
    """Wald-distributed numbers."""
    return _draw("wald", key, shape, dtype, mean)


def weibull_min(
    key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: Any = float
) -> Tensor:
    """Weibull-distributed numbers."""
    return _draw("weibull", key, shape, dtype, concentration) * scale


def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = float) -> Tensor:
    """Log-normal numbers."""
    return _draw("lognormal", key, shape, dtype, 0.0, sigma)


def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = float) -> Tensor:
    """Beta-distributed numbers."""
    return _draw("beta", key, shape, dtype, a, b)


def cauchy(key: Any, shape: Any = (), dtype: Any = float) -> Tensor:
    """Cauchy-distributed numbers."""
    return _draw("standard_t", key, shape, dtype, 1.0)


def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = int) -> Tensor:
    """Poisson-distributed counts."""
    drawn = nm.random.poisson(
        _shape(shape), lam if isinstance(lam, float) else to_tensor(lam), key=key
    )
    return to_tensor(drawn, dtype)


def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = float) -> Tensor:
    """Binomial counts."""
    return to_tensor(nm.random.binomial(_shape(shape), n, p, key=key), dtype)


def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = int) -> Tensor:
    """Geometric counts."""
    return to_tensor(nm.random.geometric(_shape(shape), p, key=key), dtype)


def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = float) -> Tensor:
    """Dirichlet-distributed vectors."""
    return to_tensor(nm.random.dirichlet(_shape(shape), to_tensor(alpha), key=key), dtype)


def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Any = None, dtype: Any = float, **hints: Any
) -> Tensor:
    """Normal vectors of a covariance."""
    mean, cov = to_tensor(mean), to_tensor(cov)
    return nm.random.multivariate_normal(_shape(shape), mean, cov, key=key)


def rademacher(key: Any, shape: Any = (), dtype: Any = int) -> Tensor:
    """1 or -1."""
    return to_tensor(_geometry.signs(_shape(shape), key=key), dtype)


def orthogonal(key: Any, n: int, shape: Any = (), dtype: Any = float) -> Tensor:
    """Orthogonal matrices, uniform in Haar's measure."""
    return _geometry.haar((*_shape(shape), n, n), dtype=canonical_dtype(dtype), key=key)


def ball(key: Any, d: int, p: float = 2, shape: Any = (), dtype: Any = float) -> Tensor:
    """Points in the unit ball of a p-norm."""
    return _geometry.ball(_shape(shape), d, p, dtype=canonical_dtype(dtype), key=key)
