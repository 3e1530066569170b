"""Data parallelism: every rank has the whole model, and a part of each batch.

`DistributedDataParallel` is that of PyTorch (Li et al., 2020): gradients are averaged in buckets,
each of which leaves as soon as its gradients are known, while backward works on the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numus as nm
from numus.distributed.collectives import all_reduce, broadcast
from numus.distributed.groups import Group, world
from numus.distributed.work import Work, start
from numus.errors import DistributedError
from numus.graph import View, current_trace, mode
from numus.nn.functional_call import functional_call
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.primitives.source import value
from numus.runtime.devices import device, present
from numus.shapes import row_major
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.tape import tape

__all__ = ["AllReduceSync", "DataParallel", "DistributedDataParallel", "MultiGpuContext"]

_MIB = 1 << 20
_FIRST_BUCKET_MIB = 1.0  # the first one leaves early, while most of backward is still to come
_EAGER_MIB = 8.0  # outside of a trace: what an evaluation costs, others send meanwhile
_SHOWN = 5  # parameters that an error names


class _Bucket:
    """Parameters whose gradients travel together, in one dtype."""

    def __init__(self, limit: float) -> None:
        self.parameters: list[Parameter] = []
        self.limit = limit  # in bytes
        self.nbytes = 0
        self.missing: set[int] = set()


class DistributedDataParallel(Module):
    """A model that every rank has, trained on a part of the batch by each.

    Parameters and buffers start as those of rank 0. `backward()` averages the gradients over the
    ranks of the group, so that an optimiser does the same on all of them: the result is that of one
    process with the whole batch, where losses are means over equal parts.

    Args:
        group: the ranks; by default all.
        bucket_mib: how many MiB of gradients travel together; of the first ones, at most 1.
        find_unused_parameters: look in each forward pass for parameters that the result does not
            depend on; their gradients count as zero. Without it, such parameters are an error.
        static_graph: every step uses the same parameters: look for unused ones in the first pass
            only.

    >>> model = nm.distributed.DistributedDataParallel(nm.nn.Linear(2, 1))
    >>> model(nm.ones((3, 2))).sum().backward()
    >>> model.module.weight.grad.tolist()
    [[3.0, 3.0]]
    """

    def __init__(
        self,
        module: Module,
        *,
        group: Group | None = None,
        bucket_mib: float = 25.0,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
    ) -> None:
        self.module = module
        self._group = world() if group is None else group
        self._finds_unused = find_unused_parameters and not static_graph
        self._is_static = static_graph
        self._unused: list[Parameter] | None = None  # of a static graph, once they are known
        self._syncs = True
        self._names = {id(p): name for name, p in module.named_parameters()}
        with nm.no_grad():
            for x in (*module.parameters(), *module.buffers()):
                x.assign(broadcast(x.detach(), self._group.ranks[0], group=self._group))
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._fill(bucket_mib * _MIB)
        self._next = 0  # the bucket that leaves next: all ranks send them in the same order
        self._filled: list[_Bucket] = []
        self._under_way: list[tuple[list[Parameter], Work]] = []
        self._reset()

    def _fill(self, limit: float) -> None:
        """Buckets in the order in which backward reaches parameters, roughly."""
        open_buckets: dict[Any, _Bucket] = {}
        for p in reversed(list(self.module.parameters())):
            if not p.requires_grad:
                continue
            bucket = open_buckets.get(p.dtype)
            nbytes = p.size * p.dtype.itemsize
            if bucket is None or bucket.nbytes + nbytes > bucket.limit:
                room = limit if bucket is not None else min(limit, _FIRST_BUCKET_MIB * _MIB)
                bucket = open_buckets[p.dtype] = _Bucket(room)
                self._buckets.append(bucket)
            bucket.parameters.append(p)
            bucket.nbytes += nbytes
            self._bucket_of[id(p)] = bucket
            p.register_post_accumulate_grad_hook(self._ready)

    def _reset(self) -> None:
        self._next = 0
        self._filled, self._under_way = [], []
        for bucket in self._buckets:
            bucket.missing = {id(p) for p in bucket.parameters}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if 0 < self._next < len(self._buckets) or self._begun():
            absent = [self._names[i] for b in self._buckets for i in sorted(b.missing)]
            shown = ", ".join(absent[:_SHOWN]) + (" …" if len(absent) > _SHOWN else "")
            self._reset()
            raise DistributedError(
                f"DistributedDataParallel: the last backward() reached no gradient of {shown}, so "
                "gradients were not averaged; give find_unused_parameters=True, or let the loss "
                "depend on all parameters"
            )
        result = self.module(*args, **kwargs)
        if self._syncs and (self._finds_unused or self._is_static):
            for p in self._find_unused(result):
                self._bucket_of[id(p)].missing.discard(id(p))
        return result

    def _find_unused(self, result: Any) -> list[Parameter]:
        """Parameters that the result does not depend on."""
        if self._unused is not None:
            return self._unused
        roots = [x._node for x in tree.leaves(result) if isinstance(x, Tensor)]
        reached = set(tape(roots))
        found = [p for b in self._buckets for p in b.parameters if p._node not in reached]
        if self._is_static and mode.grad:
            self._unused = found
        return found

    def _begun(self) -> bool:
        """Whether some gradients of a bucket have come, and others have not."""
        if self._finds_unused:
            return False
        partly = [b for b in self._buckets if 0 < len(b.missing) < len(b.parameters)]
        unused = {id(p) for p in self._unused or ()}
        return any(b.missing != {id(p) for p in b.parameters} - unused for b in partly)

    def _ready(self, leaf: Tensor) -> None:
        """A gradient is complete: send all buckets that are full now."""
        if not self._syncs:
            return
        self._bucket_of[id(leaf)].missing.discard(id(leaf))
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._filled.append(self._buckets[self._next])
            self._next += 1
            if self._leaves():
                self._send([p for b in self._filled for p in b.parameters])
                self._filled = []
        if self._next == len(self._buckets):
            self._receive()
            self._reset()

    def _leaves(self) -> bool:
        """Whether full buckets are to be sent. Outside of a trace, each time evaluates what came
        before: small buckets wait for the next there."""
        if current_trace() is not None or self._next == len(self._buckets):
            return True
        first, following = self._filled[0].parameters[0], self._buckets[self._next].parameters[0]
        enough = min(self._filled[0].limit, _EAGER_MIB * _MIB)
        return first.dtype is not following.dtype or sum(b.nbytes for b in self._filled) >= enough

    def _send(self, parameters: list[Parameter]) -> None:
        """Begin to average gradients. In a trace, they are parts of the result; outside, they are
        set when backward has sent the last bucket."""
        with nm.no_grad():
            grads = [nm.zeros_like(p.detach()) if p.grad is None else p.grad for p in parameters]
            count = self._group.size
            flat = nm.concat([g.reshape(-1) / count for g in grads])
            work = start(all_reduce, flat, group=self._group)
            if current_trace() is None:
                self._under_way.append((parameters, work))
                return
            at = 0
            for p, g in zip(parameters, grads, strict=True):
                p.grad = work.result[at : at + g.size].reshape(g.shape)
                at += g.size

    def _receive(self) -> None:
        """Wait for all buckets: gradients are parts of their memory."""
        under_way, self._under_way = self._under_way, []
        for parameters, work in under_way:
            node = work.wait()._node
            storage, at = node.view.storage, node.view.offset
            for p in parameters:
                view = View(storage.copy(), at, row_major(p.shape))
                p.grad = Tensor(value(view, p.shape, p.dtype, node.device))
                at += p.size

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the gradients of this rank only; the first one after it
        averages what has come together.

        >>> model = nm.distributed.DistributedDataParallel(nm.nn.Linear(2, 1))
        >>> with model.no_sync():
        ...     model(nm.ones((3, 2))).sum().backward()
        >>> model(nm.ones((3, 2))).sum().backward()
        >>> model.module.weight.grad.tolist()
        [[6.0, 6.0]]
        """
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before


class AllReduceSync(nm.BackwardHook):
    """Averages the gradient of every leaf over the ranks of a group, one by one, as soon as it is
    known: `nm.register_backward_hook(AllReduceSync())`. All ranks have the same leaves.

    >>> w = nm.ones(2, requires_grad=True)
    >>> with nm.register_backward_hook(nm.distributed.AllReduceSync()):
    ...     (w * 3).sum().backward()
    >>> w.grad
    tensor([3., 3.])
    """

    def __init__(self, group: Group | None = None) -> None:
        self._group = world() if group is None else group

    def on_leaf_grad_ready(self, leaf: Tensor, grad: Tensor) -> Tensor:
        return all_reduce(grad, "mean", group=self._group)


class MultiGpuContext:
    """The GPUs of this process.

    >>> nm.distributed.MultiGpuContext.get().devices[0].kind in ("cpu", "cuda", "webgpu")
    True
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices = [device(d) for d in devices]

    @classmethod
    def get(cls) -> MultiGpuContext:
        """All NVIDIA GPUs of this machine; the CPU where there is none."""
        gpus = [d for d in present() if d.kind == "cuda"]
        return cls(gpus or [device("cpu")])

    def __len__(self) -> int:
        return len(self.devices)


class DataParallel(Module):
    """A model on several devices of one process: a batch is cut along its first axis, each device
    gets a part and a copy of the parameters, and results come together on the first device.
    Gradients flow back to the one set of parameters.

    Args:
        devices: names of devices; by default those of `MultiGpuContext.get()`.

    >>> model = nm.distributed.DataParallel(nm.nn.Linear(2, 1), devices=["cpu", "cpu"])
    >>> model(nm.ones((5, 2))).shape
    (5, 1)
    """

    def __init__(
        self, module: Module, devices: Sequence[Any] | MultiGpuContext | None = None
    ) -> None:
        self.module = module
        if devices is None:
            devices = MultiGpuContext.get()
        listed = devices.devices if isinstance(devices, MultiGpuContext) else devices
        self._devices = [device(d) for d in listed]
        if not self._devices:
            raise ValueError("DataParallel: takes at least one device")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor) and x.ndim]
        count = tensors[0].shape[0] if tensors else 1
        parts = max(1, min(len(self._devices), count))
        bounds = [count * i // parts for i in range(parts + 1)]
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        results = []
        for i, where in enumerate(self._devices[:parts]):
            low, high = bounds[i], bounds[i + 1]
            mine = [
                x[low:high].to(where) if isinstance(x, Tensor) and x.ndim else x for x in leaves
            ]
            own_args, own_kwargs = tree.unflatten(structure, mine)
            copies = {name: x.to(where) for name, x in state.items()}
            results.append(functional_call(self.module, copies, tuple(own_args), own_kwargs))
        return _joined(results, self._devices[0])


def _joined(results: list[Any], where: Any) -> Any:
    """The results of all devices, concatenated on one."""
    flat = [tree.flatten(r) for r in results]
    joined = [
        nm.concat([x.to(where) for x in found]) if isinstance(found[0], Tensor) else found[0]
        for found in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return tree.unflatten(flat[0][1], joined)
