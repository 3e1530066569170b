"""Gradients on a mesh: averages over replicas, and clipping by the norm of all shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.distributed.collectives import all_reduce
from numus.distributed.groups import Group
from numus.distributed.mesh import Mesh
from numus.distributed.parallel.shards import Shard, shards
from numus.distributed.work import start
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = ["average_gradients", "clip_grad_norm_"]

_BUCKET_BYTES = 25 << 20


def _axes_of(shard: Shard, mesh: Mesh) -> tuple[str, ...]:
    """The axes of a mesh along which the ranks of a shard lie."""
    places = np.unravel_index(np.asarray(shard.group.ranks), tuple(mesh.shape.values()))
    return tuple(name for name, at in zip(mesh.axis_names, places, strict=True) if np.ptp(at))


def _sharded(module: Module, mesh: Mesh) -> dict[str, set[str]]:
    return {
        name: {axis for shard in found for axis in _axes_of(shard, mesh)}
        for name, found in shards(module).items()
    }


def _axis_names(axes: str | Sequence[str] | None, mesh: Mesh, op: str) -> tuple[str, ...]:
    if axes is None:
        return tuple(a for a in mesh.axis_names if a in ("data", "context", "expert"))
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(f"{op}: {name!r} must be one of the mesh's axes: {mesh}")
    return names


def average_gradients(module: Module, mesh: Mesh, axes: str | Sequence[str] | None = None) -> None:
    """Let gradients be those of the mean of the losses of all ranks along some axes of a mesh: call
    it after `backward()`, on all ranks.

    Parameters that every rank along an axis has are averaged; those of which each has a part (the
    experts of an `ExpertParallelMoE`) have the sum already, and are divided. Equal to one process
    where the loss is a mean over equal parts of the batch, the sequence, or both.

    Args:
        axes: those along which ranks have other data; "data", "context" and "expert" by default,
            where the mesh has them.

    >>> layer, mesh = nm.nn.Linear(2, 1), nm.Mesh(data=1)
    >>> layer(nm.ones((3, 2))).sum().backward()
    >>> nm.distributed.parallel.average_gradients(layer, mesh)
    >>> layer.weight.grad.tolist()
    [[3.0, 3.0]]
    """
    names = _axis_names(axes, mesh, "average_gradients")
    total = math.prod(mesh.shape[name] for name in names)
    if total == 1:
        return
    sharded = _sharded(module, mesh)
    buckets: dict[tuple[Any, ...], list[Tensor]] = {}
    filled: dict[tuple[Any, ...], int] = {}
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        over = tuple(a for a in names if a not in sharded.get(name, ()))
        kind = (over, p.dtype)
        number = filled.get(kind, 0) // _BUCKET_BYTES
        filled[kind] = filled.get(kind, 0) + p.size * p.dtype.itemsize
        buckets.setdefault((*kind, number), []).append(p)
    with nm.no_grad():
        for (over, _, _), parameters in buckets.items():
            _average(parameters, mesh.group(over) if over else None, total)


def _average(parameters: list[Tensor], group: Group | None, total: int) -> None:
    """The sum of gradients over a group, divided; under way until they are read."""
    grads = [nm.zeros_like(p.detach()) if p.grad is None else p.grad for p in parameters]
    flat = nm.concat([g.reshape(-1) for g in grads])
    if group is not None:
        flat = start(all_reduce, flat, group=group).result
    flat = flat / total
    at = 0
    for p, g in zip(parameters, grads, strict=True):
        p.grad = flat[at : at + g.size].reshape(g.shape)
        at += g.size


def clip_grad_norm_(
    module: Module, max_norm: float, norm_type: float = 2.0, *, mesh: Mesh
) -> Tensor:
    """`nn.utils.clip_grad_norm_` of a model on a mesh: the norm is that of the whole model, whose
    shards lie along axes of the mesh, and is the same on all ranks. Gives the old norm.

    >>> layer = nm.distributed.parallel.ColumnParallelLinear(2, 1, bias=False)
    >>> layer(nm.asarray([[3.0, 4.0]])).sum().backward()
    >>> nm.distributed.parallel.clip_grad_norm_(layer, 1.0, mesh=nm.Mesh(tensor=1))
    tensor(5.)
    """
    cuts, sharded = shards(module), _sharded(module, mesh)
    infinite = norm_type == math.inf
    powers = []
    with nm.no_grad():
        found = [(n, p, p.grad) for n, p in module.named_parameters() if p.grad is not None]
        for name, _, grad in found:
            wide = grad.astype(nm.float32) if grad.dtype.itemsize < 4 else grad
            if infinite:
                powers.append(nm.max(nm.abs(wide)))
                continue
            held = math.prod(mesh.shape[a] for a in sharded.get(name, ()))
            copies = mesh.size // held * math.prod(s.copies for s in cuts.get(name, ()))
            powers.append(nm.sum(nm.abs(wide) ** norm_type) / copies)
        total = nm.sum(nm.stack(powers)) if powers else nm.asarray(0.0)
        if infinite:
            total = nm.max(nm.stack(powers)) if powers else nm.asarray(0.0)
        total = all_reduce(total, "max" if infinite else "sum")
        if not infinite:
            total = total ** (1.0 / norm_type)
        scale = nm.minimum(max_norm / (total + 1e-6), 1.0)
        for _, p, grad in found:
            p.grad = (grad * scale).astype(grad.dtype, copy=False)
    return total
