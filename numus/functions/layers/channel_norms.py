"""Normalisation by channel: batch, group and instance norm over tensors of shape (N, C, ...).

Low-precision floats are computed in float32 and rounded once. Running statistics are handles
that a training step re-binds; they are never differentiated.
"""

from __future__ import annotations

from typing import Any

from numus.dtypes import DType
from numus.errors import ShapeError
from numus.functions._base import float_node, like, method, node_of, wrap
from numus.functions.autocast import widens
from numus.functions.layers.normalization import widest
from numus.functions.reduction.reductions import count_over, keepdims_shape
from numus.functions.reduction.statistics import mean_over, variance_over
from numus.functions.template_cache import templated
from numus.graph import Node, grad_mode
from numus.primitives import elementwise as ew
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.shapes import Shape, as_int, size_of
from numus.tensor import Tensor

__all__ = ["batch_norm", "group_norm", "instance_norm"]

Running = tuple[Tensor | None, Tensor | None]  # mean and variance
_RUNNING = ("running_mean", "running_var")


def _channels(op: str, x: Any, min_rank: int) -> Node:
    node = float_node(op, x)
    if node.ndim < min_rank:
        rest = ", …" * (min_rank > 2)
        raise ShapeError(f"{op}: takes a tensor of shape (N, C{rest}), not of shape {node.shape}")
    return node


def _check_channels(op: str, name: str, part: Node | Tensor, x: Node) -> None:
    if part.shape != (x.shape[1],):
        raise ShapeError(
            f"{op}: {name} of shape {part.shape} does not fit the {x.shape[1]} channels of an "
            f"input of shape {x.shape}"
        )


def _check_running(op: str, x: Node, running: Running) -> None:
    for name, part in zip(_RUNNING, running, strict=True):
        if part is not None:
            _check_channels(op, name, part, x)


def _per_channel(op: str, name: str, part: Any, x: Node) -> Node:
    """A vector of one number per channel, to be broadcast against x."""
    node = node_of(part, op, x.device)
    _check_channels(op, name, node, x)
    return reshape(ew.cast(node, x.dtype), (x.shape[1], *(1,) * (x.ndim - 2)))


def _normal(x: Node, mean: Node, variance: Node, eps: float) -> Node:
    scale = ew.rsqrt(ew.add(variance, like(variance, eps)))
    return ew.mul(ew.sub(x, mean), scale)


def _running_statistics(op: str, x: Node, running: Running) -> tuple[Node, Node]:
    parts = zip(_RUNNING, running, strict=True)
    mean, variance = (_per_channel(op, name, part, x) for name, part in parts)
    return mean, variance


def _input_statistics(
    op: str, x: Node, axes: Shape, running: Running, momentum: Any, training: bool
) -> tuple[Node, Node]:
    """The mean and variance over axes, towards which the running ones move in training."""
    count = count_over(x, axes)
    if training and count == 1:
        raise ShapeError(f"{op}: one value per channel (input {x.shape}) has no variance")
    mean, variance = mean_over(x, axes), variance_over(x, axes, 0)
    if training:
        _follow(op, running[0], mean, momentum)
        unbiased = ew.mul(variance, constant(count / max(count - 1, 1), x.dtype))
        _follow(op, running[1], unbiased, momentum)
    shape = keepdims_shape(x.shape, axes)
    return reshape(mean, shape), reshape(variance, shape)


def _follow(op: str, running: Tensor | None, seen: Node, momentum: Any) -> None:
    """Move a running statistic by `momentum` towards the one of this batch."""
    if running is None:
        return
    if seen.ndim > 1:  # a statistic of each example
        seen = mean_over(seen, (0,))
    with grad_mode(False):
        old = running._node
        seen = ew.stop_gradient(seen)
        if isinstance(momentum, Tensor):
            share = ew.cast(momentum._node, seen.dtype)
        else:
            share = constant(float(momentum), seen.dtype)
        wide = ew.cast(old, seen.dtype)
        running.rebind(ew.cast(ew.add(wide, ew.mul(ew.sub(seen, wide), share)), old.dtype), op)


def _scaled(op: str, y: Node, weight: Any, bias: Any, dtype: DType) -> Tensor:
    if weight is not None:
        y = ew.mul(y, _per_channel(op, "weight", weight, y))
    if bias is not None:
        y = ew.add(y, _per_channel(op, "bias", bias, y))
    return wrap(ew.cast(y, dtype))


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
    running = (running_mean, running_var)
    if (training or None in running) and running != (None, None):
        return _batch_norm(x, *running, weight, bias, training, momentum, eps)  # running ones move
    return _batch_norm_alone(x, *running, weight, bias, training, momentum, eps)


def _batch_norm(
    x: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: Any,
    eps: float,
) -> Tensor:
    op = "batch_norm"
    node, running = _channels(op, x, 2), (running_mean, running_var)
    wide = widest(node, weight, bias)
    _check_running(op, node, running)
    if training or running_mean is None or running_var is None:
        axes = (0, *range(2, node.ndim))
        statistics = _input_statistics(op, wide, axes, running, momentum, training)
    else:
        statistics = _running_statistics(op, wide, running)
    return _scaled(op, _normal(wide, *statistics, eps), weight, bias, node.dtype)


_batch_norm_alone = templated(_batch_norm)


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
@templated
@widens
def group_norm(
    x: Any, /, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """x (N, C, ...) normalised over groups of channels, each example by itself."""
    op = "group_norm"
    node = _channels(op, x, 2)
    batch, channels = node.shape[:2]
    num_groups = as_int(num_groups, "num_groups", op)
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
    running = (running_mean, running_var)
    function = _instance_norm_alone
    if use_input_stats and running != (None, None):  # running ones move
        function = _instance_norm
    return function(x, *running, weight, bias, use_input_stats, momentum, eps)


def _instance_norm(
    x: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Any,
    bias: Any,
    use_input_stats: bool,
    momentum: Any,
    eps: float,
) -> Tensor:
    op = "instance_norm"
    node, running = _channels(op, x, 3), (running_mean, running_var)
    _check_running(op, node, running)
    wide = widest(node, weight, bias)
    if use_input_stats:
        axes = tuple(range(2, node.ndim))
        statistics = _input_statistics(op, wide, axes, running, momentum, training=True)
    elif running_mean is None or running_var is None:
        raise ValueError(f"{op}: without the input's statistics it needs running ones")
    else:
        statistics = _running_statistics(op, wide, running)
    return _scaled(op, _normal(wide, *statistics, eps), weight, bias, node.dtype)


_instance_norm_alone = templated(_instance_norm)
