"""Activations of neural networks; low-precision floats are computed in float32, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus import dtypes as dt
from numus.functions._base import float_node, like, method, node_of, require, widened, wrap
from numus.functions.autocast import widens
from numus.functions.template_cache import templated, templated_rows
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.tensor import ArrayLike, Tensor

__all__ = ["elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus"]


def _apply(op: str, x: ArrayLike, build: Callable[[Node], Node]) -> Tensor:
    node = float_node(op, x)
    return wrap(ew.cast(build(widened(node)), node.dtype))


@method()
@templated_rows(1)
def relu(x: ArrayLike, /) -> Tensor:
    """x where it is positive, 0 elsewhere; NaN stays, and the gradient at 0 is 0.

    >>> nm.relu(nm.asarray([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    node = require("relu", node_of(x, "relu"), "uint", "int", "float")
    zero = like(node, 0)
    return wrap(ew.where(ew.le(node, zero), zero, node))


@method()
@templated
def leaky_relu(x: ArrayLike, /, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere."""

    def build(n: Node) -> Node:
        return ew.where(ew.lt(like(n, 0), n), n, ew.mul(n, like(n, negative_slope)))

    return _apply("leaky_relu", x, build)


@method()
@templated
def elu(x: ArrayLike, /, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    def build(n: Node) -> Node:
        positive = ew.lt(like(n, 0), n)
        below = ew.where(positive, like(n, 0), n)
        return ew.where(positive, n, ew.mul(like(n, alpha), ew.expm1(below)))

    return _apply("elu", x, build)


@method()
@templated_rows(1)
def sigmoid(x: ArrayLike, /) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _apply("sigmoid", x, ew.sigmoid)


@method()
@templated_rows(1)
def silu(x: ArrayLike, /) -> Tensor:
    """x * sigmoid(x), also known as swish."""
    return _apply("silu", x, lambda n: ew.mul(n, ew.sigmoid(n)))


@method()
@templated
@widens
def softplus(x: ArrayLike, /, beta: float = 1.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, without overflow: a smooth relu."""

    def build(n: Node) -> Node:
        plain = not isinstance(beta, Tensor) and beta == 1
        scaled = n if plain else ew.mul(n, like(n, beta))
        # both branches are the same function: every derivative is right at 0, unlike that of abs
        positive = ew.lt(like(n, 0), scaled)
        rest = ew.log1p(ew.exp(ew.where(positive, ew.neg(scaled), scaled)))
        out = ew.add(ew.where(positive, scaled, like(n, 0)), rest)
        return out if plain else ew.div(out, like(n, beta))

    return _apply("softplus", x, build)


@method()
@templated_rows(1)
def gelu(x: ArrayLike, /, approximate: str = "none") -> Tensor:
    """x times the normal distribution's share below x.

    Args:
        approximate: "none" for the exact share, "tanh" for the formula of many language models.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate must be "none" or "tanh", not {approximate!r}')
    return _apply("gelu", x, _gelu if approximate == "none" else _gelu_tanh)


def _gelu(x: Node) -> Node:
    # The lower tail ends where the share is no normal number any more, and the result below 3e-37:
    # products with such numbers take a hundred times as long.
    lowest = like(x, -12.9 if x.dtype is not dt.float64 else -37.5)
    x = ew.where(ew.lt(x, lowest), like(x, 0), x)
    return ew.mul(x, ew.ndtr(x))


def _gelu_tanh(x: Node) -> Node:
    # (1 + tanh u) / 2 is sigmoid(2u), 0 or 1 past 30: clamped there, the cube cannot overflow in
    # the gradient.
    bound = like(x, 30)
    u = ew.where(ew.lt(bound, ew.abs_(x)), ew.copysign(bound, x), x)
    cubic = ew.mul(u, ew.add(like(x, 1), ew.mul(like(x, 0.044715), ew.mul(u, u))))
    return ew.mul(x, ew.sigmoid(ew.mul(like(x, 2 * math.sqrt(2 / math.pi)), cubic)))
