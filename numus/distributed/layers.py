"""Layers and gradients that look at all ranks: SyncBatchNorm, clipping by the global norm."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.distributed.collectives import all_reduce
from numus.distributed.groups import Group, world
from numus.errors import ShapeError
from numus.nn.layers.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = ["SyncBatchNorm", "clip_grad_norm_", "convert_sync_batchnorm"]


class SyncBatchNorm(BatchNorm1d):
    """Batch norm whose statistics are those of the batches of all ranks, of any number of axes.

    >>> norm = nm.distributed.SyncBatchNorm(1, eps=0.0)
    >>> norm(nm.asarray([[1.0], [3.0]])).tolist()
    [[-1.0], [1.0]]
    """

    def __init__(self, *args: Any, group: Group | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._group = world() if group is None else group

    def forward(self, x: Any) -> Tensor:
        if x.ndim < 2:
            raise ShapeError(f"SyncBatchNorm: takes (N, C, ...), not shape {x.shape}")
        shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
        if self.training or self.running_mean is None or self.running_var is None:
            mean, var, count = self._statistics(x, shape)
            if self.training and self.running_mean is not None:
                self._track(mean.detach(), var.detach(), count.detach())
        else:
            mean, var = self.running_mean, self.running_var
        y = (x - mean.reshape(shape)) * nm.rsqrt(var.reshape(shape) + self.eps)
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)

    def _statistics(self, x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and number of elements of each channel, over all ranks."""
        axes = (0, *range(2, x.ndim))
        own = nm.sum(x, axis=axes)
        size = nm.full((1,), x.size / x.shape[1], dtype=own.dtype, device=x.device)
        totals = all_reduce(nm.concat([own, size]), group=self._group)
        count = totals[-1]
        mean = totals[:-1] / count
        apart = x - mean.reshape(shape)
        var = all_reduce(nm.sum(apart * apart, axis=axes), group=self._group) / count
        return mean, var, count

    def _track(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with nm.no_grad():
            self.num_batches_tracked += 1
            share: Any = self.momentum
            if share is None:
                share = 1.0 / self.num_batches_tracked.astype(mean.dtype)
            unbiased = var * (count / (count - 1))
            self.running_mean.assign(self.running_mean + share * (mean - self.running_mean))
            self.running_var.assign(self.running_var + share * (unbiased - self.running_var))


def convert_sync_batchnorm(module: Module, group: Group | None = None) -> Module:
    """The module with a SyncBatchNorm in place of each batch norm, of the same parameters.

    >>> model = nm.nn.Sequential(nm.nn.Linear(2, 3), nm.nn.BatchNorm1d(3))
    >>> nm.distributed.convert_sync_batchnorm(model)[1].num_features
    3
    """
    if isinstance(module, (BatchNorm1d, BatchNorm2d, BatchNorm3d)):
        if isinstance(module, SyncBatchNorm):
            return module
        options = {"affine": module.affine, "track_running_stats": module.track_running_stats}
        made = SyncBatchNorm(
            module.num_features, module.eps, module.momentum, group=group, **options
        )
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(module, name))
        return made.train(module.training)
    for name, child in list(module.named_children()):
        converted = convert_sync_batchnorm(child, group)
        if converted is not child:
            module.set_submodule(name, converted)
    return module


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, *, group: Group | None = None
) -> Tensor:
    """`nn.utils.clip_grad_norm_` where each rank of a group has another part of the parameters: the
    norm is that of all parts. Gives the old norm.

    >>> layer = nm.nn.Linear(2, 1, bias=False)
    >>> layer(nm.asarray([[3.0, 4.0]])).sum().backward()
    >>> nm.distributed.clip_grad_norm_(layer.parameters(), 1.0)
    tensor(5.)
    """
    if isinstance(parameters, Module):
        parameters = parameters.parameters()
    found = [p for p in parameters if p.grad is not None]
    with nm.no_grad():
        norms = [nm.linalg.vector_norm(p.grad.reshape(-1), ord=norm_type) for p in found]
        own = nm.linalg.vector_norm(nm.stack(norms), ord=norm_type) if norms else nm.asarray(0.0)
        if norm_type == float("inf"):
            total = all_reduce(own, "max", group=group)
        else:
            total = all_reduce(own**norm_type, group=group) ** (1.0 / norm_type)
        scale = nm.minimum(max_norm / (total + 1e-6), 1.0)
        for p in found:
            p.grad = (p.grad * scale).astype(p.grad.dtype, copy=False)
    return total
