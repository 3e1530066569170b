"""Vectors and matrices: normal, Dirichlet, multinomial, hypergeometric, Wishart; shuffled axes."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import as_number, float_node, node_of, widened, wrap
from numus.functions.creation.conversion import asarray
from numus.functions.indexing.gather_scatter import take_along_axis
from numus.functions.linear.matmul import matmul
from numus.functions.ordering.sorting import argsort
from numus.functions.shape.concatenation import stack
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.random import draws
from numus.primitives.reduce import reduce_max
from numus.primitives.source import iota
from numus.primitives.views import reshape, take_range
from numus.random import _bits
from numus.random._keys import key_words
from numus.random._sampling import bits, normal
from numus.random._streams import Stream
from numus.shapes import Shape, as_int, as_shape, normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "dirichlet", "multinomial", "multivariate_hypergeometric", "multivariate_normal", "permuted",
    "wishart",
]  # fmt: skip


def _given(x: Any) -> Any:
    """A tensor of a list of numbers, which reads better than nm.asarray of it."""
    return asarray(x) if isinstance(x, (list, tuple)) else x


def _leading(op: str, shape: Any) -> Shape:
    return () if shape is None else as_shape(shape, op)


def dirichlet(
    shape: Any = None, alpha: Any = (1.0, 1.0), *, device: Any = None, key: Any = None
) -> Tensor:
    """Vectors of fractions that add up to 1, with density proportional to prod x**(alpha - 1).

    >>> nm.random.dirichlet((4,), [1.0, 2.0, 3.0], key=nm.random.key(0)).shape
    (4, 3)
    """
    node = float_node("dirichlet", _given(alpha))
    if not node.ndim or not node.shape[-1]:
        raise ShapeError(f"dirichlet: alpha must be a vector or a stack, not of shape {node.shape}")
    source = key_words("dirichlet", key)
    a = widened(node)
    whole = (*_leading("dirichlet", shape), *node.shape)
    s = Stream(source, whole, a.dtype, _bits.device_of(device, *source, a))
    # gamma draws in logarithms, which do not underflow, and their shares
    logs = s.rejection(draws.log_gamma, broadcast(a, whole))
    axis = (len(whole) - 1,)
    rows = (*whole[:-1], 1)
    shifted = ew.exp(ew.sub(logs, reshape(reduce_max(logs, axis), rows)))
    shares = ew.div(shifted, reshape(reduce_sum(shifted, axis), rows))
    return wrap(ew.cast(shares, node.dtype))


def _columns(x: Node) -> list[Node]:
    """The entries of the last axis."""
    last = x.ndim - 1
    return [reshape(take_range(x, last, i, i + 1), x.shape[:-1]) for i in range(x.shape[-1])]


def multinomial(
    shape: Any = None,
    n: ArrayLike = 1,
    pvals: Any = (0.5, 0.5),
    *,
    device: Any = None,
    key: Any = None,
) -> Tensor:
    """Counts of n trials with len(pvals) outcomes: a binomial draw for each but the last.

    >>> nm.random.multinomial((), 10, [0.2, 0.3, 0.5], key=nm.random.key(0)).sum()
    tensor(10)
    """
    source = key_words("multinomial", key)
    p = widened(float_node("multinomial", _given(pvals)))
    if not p.ndim or not p.shape[-1]:
        raise ShapeError(f"multinomial: pvals must be a vector or a stack, not of shape {p.shape}")
    whole = (*_leading("multinomial", shape), *p.shape[:-1])
    left = broadcast(ew.cast(node_of(n, "multinomial"), p.dtype), whole)
    s = Stream(source, whole, p.dtype, _bits.device_of(device, *source, p))
    one, zero = s.number(1), s.number(0)
    rest, counts = one, []
    parts = _columns(p)
    for i, part in enumerate(parts[:-1]):
        known = ew.lt(part, rest)
        ratio = ew.where(known, ew.div(part, ew.where(known, rest, one)), one)
        ratio = ew.maximum(ratio, zero)
        counts.append(s.child(i).rejection(draws.binomial, left, broadcast(ratio, whole)))
        left, rest = ew.sub(left, counts[-1]), ew.sub(rest, part)
    return stack([wrap(ew.cast(c, dt.int64)) for c in (*counts, left)], axis=-1)


def multivariate_hypergeometric(
    shape: Any = None,
    colors: Any = (1, 1),
    nsample: int = 1,
    *,
    device: Any = None,
    key: Any = None,
) -> Tensor:
    """Counts of each colour among nsample drawn without replacement.

    >>> nm.random.multivariate_hypergeometric((), [3, 4, 5], 6, key=nm.random.key(0)).sum()
    tensor(6)
    """
    op = "multivariate_hypergeometric"
    source = key_words(op, key)
    node = ew.cast(node_of(_given(colors), op), dt.float32)
    if node.ndim != 1 or not node.shape[0]:
        raise ShapeError(f"{op}: colors must be a vector, not of shape {node.shape}")
    whole = _leading(op, shape)
    s = Stream(source, whole, dt.float32, _bits.device_of(device, *source, node))
    left = broadcast(s.number(as_int(nsample, "nsample", op)), whole)
    counts, parts = [], _columns(node)
    others = reduce_sum(node, (0,))
    for i, good in enumerate(parts[:-1]):
        others = ew.sub(others, good)
        drawn = s.child(i).rejection(
            draws.hypergeometric, broadcast(good, whole), broadcast(others, whole), left
        )
        counts.append(drawn)
        left = ew.sub(left, drawn)
    return stack([wrap(ew.cast(c, dt.int64)) for c in (*counts, left)], axis=-1)


def _factor(op: str, cov: Tensor) -> Tensor:
    from numus.linalg.factor.cholesky import (
        cholesky,  # late: linear algebra stands beside random numbers
    )

    if cov.ndim < 2 or cov.shape[-1] != cov.shape[-2]:
        raise ShapeError(f"{op}: the matrix must be square, not of shape {cov.shape}")
    return cholesky(cov)


def multivariate_normal(
    shape: Any = None,
    mean: Any = (0.0,),
    cov: Any = ((1.0,),),
    *,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Normal vectors of a mean and a positive definite covariance.

    >>> nm.random.multivariate_normal((5,), [0.0, 1.0], [[2.0, 1.0], [1.0, 2.0]]).shape
    (5, 2)
    """
    op = "multivariate_normal"
    middle, spread = wrap(float_node(op, _given(mean))), wrap(float_node(op, _given(cov)))
    if middle.ndim != 1 or spread.shape != (middle.shape[0],) * 2:
        raise ShapeError(f"{op}: mean of shape {middle.shape} with cov of shape {spread.shape}")
    whole = (*_leading(op, shape), *middle.shape)
    factor = _factor(op, spread)
    z = normal(whole, dtype=factor.dtype, device=device or factor.device, key=key)
    return middle + matmul(z, factor.mT)


def wishart(
    shape: Any = None,
    df: float = 1.0,
    scale: Any = ((1.0,),),
    *,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Positive definite matrices: sums of df outer products of normal vectors of covariance `scale`
    (Bartlett 1933).

    >>> nm.random.wishart((5,), 4.0, [[2.0, 1.0], [1.0, 2.0]]).shape
    (5, 2, 2)
    """
    op = "wishart"
    factor = _factor(op, wrap(float_node(op, _given(scale))))
    p = factor.shape[-1]
    df = as_number(df, "df", op)
    if not df > p - 1:
        raise ValueError(f"wishart: df={df} must be above {p - 1}, one less than the dimension")
    whole = (*_leading(op, shape), p)
    source = key_words(op, key)
    s = Stream(
        source,
        whole,
        dt.compute_dtype(factor.dtype),
        _bits.device_of(device, *source, factor._node),
    )
    freedom = ew.sub(s.number(float(df)), ew.cast(iota(p, dt.int32, s.device), s.dtype))
    half = ew.mul(freedom, s.number(0.5))
    diagonal = ew.sqrt(ew.mul(s.child(0).gamma(broadcast(half, whole)), s.number(2)))
    square = Stream(s.child(1).key, (*whole, p), s.dtype, s.device)
    rows, columns = (
        reshape(iota(p, dt.int32, s.device), (p, 1)),
        reshape(iota(p, dt.int32, s.device), (1, p)),
    )
    lower = ew.where(ew.lt(columns, rows), square.normal(), s.number(0))
    both = ew.where(ew.eq(columns, rows), reshape(diagonal, (*whole, 1)), lower)
    root = matmul(factor, wrap(ew.cast(both, factor.dtype)))
    return matmul(root, root.mT)


def permuted(x: ArrayLike, axis: int = -1, *, key: Tensor | None = None) -> Tensor:
    """The elements along an axis in random order, another one for every row.

    >>> sorted(nm.random.permuted(nm.arange(4)).tolist())
    [0, 1, 2, 3]
    """
    node = node_of(_given(x), "permuted")
    axis = normal_axis(axis, node.ndim, "permuted")
    order = argsort(bits(node.shape, device=node.device, key=key), axis=axis)
    return take_along_axis(wrap(node), order, axis)
