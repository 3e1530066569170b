"""Normalisation by channel: batch, group and instance norm over tensors of shape (N, C, ...).

Narrow floats are computed in float32 and rounded once, at the end. Running statistics are handles
that a training step re-binds; they are never differentiated.
"""

from __future__ import annotations

from typing import Any

from numus.errors import ShapeError
from numus.functions._base import method, node_of, wrap
from numus.functions.autocast import widens
from numus.functions.layers.normalization import float_node, widest
from numus.functions.reduction.reductions import count_over
from numus.functions.reduction.statistics import mean_over, variance_over
from numus.graph import Node, grad_mode
from numus.primitives import elementwise as ew
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.shapes import size_of
from numus.tensor import Tensor

__all__ = ["batch_norm", "group_norm", "instance_norm"]


def _channels(op: str, x: Any, least: int) -> Node:
    node = float_node(op, x)
    if node.ndim < least:
        raise ShapeError(
            f"{op}: takes a tensor of shape (N, C{', …' * (least > 2)}), not of shape {node.shape}"
        )
    return node


def _check_channels(op: str, name: str, part: Node | Tensor, x: Node) -> None:
    if part.shape != (x.shape[1],):
        raise ShapeError(
            f"{op}: {name} of shape {part.shape} does not fit the {x.shape[1]} channels of an "
            f"input of shape {x.shape}"
        )


def _check_running(op: str, x: Node, mean: Tensor | None, variance: Tensor | None) -> None:
    for name, running in (("running_mean", mean), ("running_var", variance)):
        if running is not None:
            _check_channels(op, name, running, x)


def _per_channel(op: str, name: str, part: Any, x: Node) -> Node:
    """A vector of one number per channel, to be broadcast against x."""
    node = node_of(part, op, x.device)
    _check_channels(op, name, node, x)
    return reshape(ew.cast(node, x.dtype), (x.shape[1], *(1,) * (x.ndim - 2)))


def _normal(x: Node, mean: Node, variance: Node, eps: float) -> Node:
    scale = ew.rsqrt(ew.add(variance, constant(float(eps), variance.dtype)))
    return ew.mul(ew.sub(x, mean), scale)


def _affine(op: str, y: Node, weight: Any, bias: Any) -> Node:
    if weight is not None:
        y = ew.mul(y, _per_channel(op, "weight", weight, y))
    if bias is not None:
        y = ew.add(y, _per_channel(op, "bias", bias, y))
    return y


def _follow(op: str, running: Tensor | None, seen: Node, momentum: Any) -> None:
    """Move a running statistic by `momentum` towards the one of this batch."""
    if running is None:
        return
    with grad_mode(False):
        old = running._node
        seen = ew.stop_gradient(seen)
        if isinstance(momentum, Tensor):
            share = ew.cast(momentum._node, seen.dtype)
        else:
            share = constant(float(momentum), seen.dtype)
        wide = ew.cast(old, seen.dtype)
        running.rebind(ew.cast(ew.add(wide, ew.mul(ew.sub(seen, wide), share)), old.dtype), op)


@method()
def batch_norm(
    x: Any,
    /,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of x (N, C, ...) with mean 0 and variance 1 over the others, scaled and shifted.

    In training the statistics are those of x, and the running ones move towards them by
    `momentum`; otherwise the running ones are used.

    >>> nm.batch_norm(nm.asarray([[1.0], [3.0]]), training=True, eps=0.0).tolist()
    [[-1.0], [1.0]]
    """
    op = "batch_norm"
    node = _channels(op, x, 2)
    wide = widest(node, weight, bias)
    _check_running(op, node, running_mean, running_var)
    axes = (0, *range(2, node.ndim))
    keepdims = (1, node.shape[1], *(1,) * (node.ndim - 2))
    if training or running_mean is None or running_var is None:
        count = count_over(node, axes)
        if training and count == 1:
            raise ShapeError(f"{op}: one value per channel (input {node.shape}) has no variance")
        mean, variance = mean_over(wide, axes), variance_over(wide, axes, 0)
        if training:
            _follow(op, running_mean, mean, momentum)
            unbiased = ew.mul(variance, constant(count / max(count - 1, 1), wide.dtype))
            _follow(op, running_var, unbiased, momentum)
        mean, variance = reshape(mean, keepdims), reshape(variance, keepdims)
    else:
        mean = _per_channel(op, "running_mean", running_mean, wide)
        variance = _per_channel(op, "running_var", running_var, wide)
    y = _affine(op, _normal(wide, mean, variance, eps), weight, bias)
    return wrap(ew.cast(y, node.dtype))


@method("batch_norm_2d")
def _batch_norm_2d(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    eps: float = 1e-5,
    training: bool = False,
    momentum: float = 0.1,
) -> Tensor:
    """`batch_norm` of feature maps (N, C, H, W)."""
    if x.ndim != 4:
        raise ShapeError(f"batch_norm_2d: takes a tensor of shape (N, C, H, W), not {x.shape}")
    return batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


@method()
@widens
def group_norm(
    x: Any, /, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """x (N, C, ...) normalised over groups of channels, each example by itself."""
    op = "group_norm"
    node = _channels(op, x, 2)
    batch, channels = node.shape[:2]
    if num_groups < 1 or channels % num_groups:
        raise ShapeError(f"{op}: {channels} channels must be divisible by num_groups={num_groups}")
    wide = widest(node, weight, bias)
    if size_of(node.shape) == 0:
        return wrap(node)
    # groups, channels and space have an axis each, so that weights fuse into the rows they scale
    group = channels // num_groups
    rows = reshape(wide, (batch, num_groups, group, size_of(node.shape[2:])))
    keepdims = (batch, num_groups, 1, 1)
    mean, variance = mean_over(rows, (2, 3)), variance_over(rows, (2, 3), 0)
    y = _normal(rows, reshape(mean, keepdims), reshape(variance, keepdims), eps)
    for name, part, combine in (("weight", weight, ew.mul), ("bias", bias, ew.add)):
        if part is not None:
            by_channel = _per_channel(op, name, part, wide)
            y = combine(y, reshape(by_channel, (num_groups, group, 1)))
    return wrap(ew.cast(reshape(y, node.shape), node.dtype))


@method()
def instance_norm(
    x: Any,
    /,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """x (N, C, ...) normalised over everything but examples and channels."""
    op = "instance_norm"
    node = _channels(op, x, 3)
    _check_running(op, node, running_mean, running_var)
    wide = widest(node, weight, bias)
    axes = tuple(range(2, node.ndim))
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ValueError(f"{op}: without the input's statistics it needs running ones")
        mean = _per_channel(op, "running_mean", running_mean, wide)
        variance = _per_channel(op, "running_var", running_var, wide)
    else:
        count = count_over(node, axes)
        if count == 1:
            raise ShapeError(f"{op}: one value per channel (input {node.shape}) has no variance")
        mean, variance = mean_over(wide, axes), variance_over(wide, axes, 0)
        _follow(op, running_mean, mean_over(mean, (0,)), momentum)
        unbiased = ew.mul(variance, constant(count / max(count - 1, 1), wide.dtype))
        _follow(op, running_var, mean_over(unbiased, (0,)), momentum)
        keepdims = (*node.shape[:2], *(1,) * len(axes))
        mean, variance = reshape(mean, keepdims), reshape(variance, keepdims)
    y = _affine(op, _normal(wide, mean, variance, eps), weight, bias)
    return wrap(ew.cast(y, node.dtype))
