"""Pipeline parallelism: each rank along an axis of a mesh has some stages of the model, through
which the microbatches of a batch pass.

The order is a `Schedule`. Activations and their gradients travel as messages between neighbours;
sending waits for nobody. Parameters that stages share (the embedding and the head of a language
model) have a copy on each of their ranks, and the sum of the copies' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.distributed.collectives import all_reduce, broadcast, recv, send
from numus.distributed.groups import Group, agree, split
from numus.distributed.mesh import Mesh
from numus.distributed.parallel.schedule import Action, Schedule, make_schedule
from numus.distributed.parallel.shards import Shard
from numus.distributed.work import Work, start
from numus.errors import DistributedError, ShapeError
from numus.graph import current_trace
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["Pipeline"]

_Types = tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes of activations


@dataclass
class _Tied:
    """A parameter that stages on several ranks share."""

    parameter: Parameter
    group: Group


class Pipeline(Module):
    """A model cut into stages, of which each rank along an axis of the mesh has some.

    All ranks along the axis are given all stages, with the same values, and the same batches. A
    stage takes what the one before it gives, a tensor or a tuple of tensors; the first takes the
    input, the last one gives what the loss is computed from.

    Args:
        stages: as many as ranks, or a multiple of them with the schedule "interleaved", in order;
            stage s is on rank s % ranks.
        microbatches: that a batch is cut into along its first axis.
        schedule: "1f1b", "interleaved" or "gpipe"; or a `Schedule`.
        axis: of the mesh.

    >>> from numus import nn
    >>> pipe = nm.distributed.parallel.Pipeline([nn.Linear(4, 2)], nm.Mesh(pipe=1), microbatches=2)
    >>> loss = pipe.step(nm.ones((4, 4)), nm.zeros((4, 2)), nn.mse_loss)  # and gradients
    >>> loss.shape, pipe.stages["0"].weight.grad.shape
    ((), (2, 4))
    """

    def __init__(
        self,
        stages: Sequence[Module],
        mesh: Mesh,
        *,
        microbatches: int,
        schedule: str | Schedule = "1f1b",
        axis: str = "pipe",
    ) -> None:
        group = mesh.group(axis)
        count, ranks = len(stages), group.size
        if not count or count % ranks:
            raise DistributedError(
                f"Pipeline: {count} stages for the {ranks} ranks of {group} (ranks "
                f"{', '.join(map(str, group.ranks))}); give {ranks} stages, or a multiple of "
                f"{ranks} with schedule='interleaved'"
            )
        if isinstance(schedule, str):
            kind = schedule
            schedule = make_schedule(
                kind, ranks=ranks, microbatches=microbatches, chunks=count // ranks
            )
        if (schedule.ranks, schedule.stages) != (ranks, count):
            raise DistributedError(
                f"Pipeline: a schedule of {schedule.stages} stages on {schedule.ranks} ranks for "
                f"{count} stages on {ranks}"
            )
        schedule.check()
        self._axis = axis
        self._schedule, self._count = schedule, count
        self._group = _MessageGroup.like(group, mesh, axis)
        self._actions = schedule.actions()[group.rank]
        self.stages = {str(s): stages[s] for s in range(group.rank, count, ranks)}
        self._tied: list[_Tied] = []
        self.shards: dict[str, tuple[Shard, ...]] = {}
        self._tie(stages, mesh)
        self._types: dict[_Types, list[_Types]] = {}

    @property
    def schedule(self) -> Schedule:
        """What each rank does."""
        return self._schedule

    def _tie(self, stages: Sequence[Module], mesh: Mesh) -> None:
        """Find parameters that stages on several ranks share."""
        owners: dict[int, set[int]] = {}
        order: dict[int, Parameter] = {}
        for s, stage in enumerate(stages):
            for p in stage.parameters():
                owners.setdefault(id(p), set()).add(self._schedule.rank_of(s))
                order[id(p)] = p
        line = _line(mesh, self._axis)
        copies: dict[int, int] = {}
        for key, ranks in owners.items():
            if len(ranks) == 1:
                continue
            mine = self._group.rank in ranks
            color = 2 * line + (1 if mine else 0)
            group = split(color, self._group.rank, f"stages that share a parameter, {self._group}")
            if mine:
                self._tied.append(_Tied(order[key], group))
                copies[key] = len(ranks)
        for name, p in self.named_parameters():
            self.shards[name] = (Shard(self._group, -1, copies=copies.get(id(p), 1)),)

    # -- a batch ----------------------------------------------------------------------------------

    def step(self, x: Any, target: Any, loss_function: Callable[[Any, Any], Tensor]) -> Tensor:
        """The mean loss of the microbatches of a batch, on all ranks along the pipeline; its
        gradients are added to those of the parameters.

        Args:
            loss_function: of the last stage's result and the target of a microbatch; a mean over
                its examples, which makes the loss that of the whole batch.
        """
        inputs, targets = self._cut(x, "x"), self._cut(target, "target")
        types = self._shapes(inputs[0])
        run = _Run(self, inputs, targets, loss_function, types)
        for action in self._actions:
            run.do(action)
        self._sum_tied()
        return run.loss()

    def forward(self, x: Any) -> Any:
        """The result of the last stage, on all ranks along the pipeline; without gradients."""
        with nm.no_grad():
            given = nm.asarray(x)
            types = self._shapes(given)
            last = self._group.ranks[self._schedule.rank_of(self._count - 1)]
            y: tuple[Tensor, ...] = (given,)
            for s in range(self._count):
                if str(s) in self.stages:
                    y = _tuple(self.stages[str(s)](*y))
                    self._hand_on(s, y)
                elif str(s + 1) in self.stages and s + 1 < self._count:
                    source = self._group.ranks[self._schedule.rank_of(s)]
                    y = tuple(
                        recv(like, source, group=self._group) for like in _likes(types[s], given)
                    )
            if str(self._count - 1) not in self.stages:
                y = _likes(types[-1], given)
            found = tuple(broadcast(part, last, group=self._group) for part in y)
        return found[0] if len(found) == 1 else found

    def _hand_on(self, stage: int, y: tuple[Tensor, ...]) -> None:
        to = self._schedule.rank_of(stage + 1)
        if stage + 1 < self._count and to != self._group.rank:
            for part in y:
                send(part, self._group.ranks[to], group=self._group)

    def _cut(self, x: Any, name: str) -> list[Tensor]:
        tensor = nm.asarray(x)
        count = self._schedule.microbatches
        if not tensor.ndim or tensor.shape[0] % count:
            raise ShapeError(
                f"Pipeline.step: {name} of shape {tensor.shape} is not divisible into {count} "
                "microbatches along its first axis; give another batch size, or microbatches"
            )
        each = tensor.shape[0] // count
        return [tensor[i * each : (i + 1) * each] for i in range(count)]

    def _shapes(self, x: Tensor) -> list[_Types]:
        """Shapes and dtypes of what each stage gives, which its rank tells the others."""
        key = _types_of((x,))
        if key not in self._types:
            found: list[_Types] = []
            given = key
            for s in range(self._count):
                types: Any = None
                if str(s) in self.stages:
                    types = _result_types(self.stages[str(s)], given, x)
                given = self._told(types, s)
                found.append(given)
            self._types[key] = found
        return self._types[key]

    def _told(self, types: _Types | None, stage: int) -> _Types:
        agree(f"shapes of what stage {stage} gives", self._group)
        communicator = self._group._communicator
        if communicator is None or self._group.size == 1:
            assert types is not None
            return types
        told: _Types = communicator.bcast(types, self._schedule.rank_of(stage))
        return told

    def _sum_tied(self) -> None:
        with nm.no_grad():
            for tied in self._tied:
                p = tied.parameter
                if p.requires_grad:
                    own = nm.zeros_like(p.detach()) if p.grad is None else p.grad
                    p.grad = all_reduce(own, group=tied.group)


class _MessageGroup(Group):
    """The ranks along a pipeline, whose messages MPI carries, those of GPUs by way of the host.

    NCCL's messages block the stream until the other rank takes them: two ranks that send to each
    other, as they do in 1F1B, would wait forever.
    """

    @classmethod
    def like(cls, group: Group, mesh: Mesh, axis: str) -> _MessageGroup:
        made = split(_line(mesh, axis), group.rank, f"messages along {group}")
        return cls(made.ranks, made.rank, made._communicator, made.name)

    def _nccl(self, device: Any) -> None:
        return None


def _line(mesh: Mesh, axis: str) -> int:
    """Which of the pipelines of the mesh that of this rank is."""
    found = 0
    for name, extent in mesh.shape.items():
        if name != axis:
            found = found * extent + mesh.coordinate(name)
    return found


class _Run:
    """One batch on its way."""

    def __init__(
        self,
        pipe: Pipeline,
        inputs: list[Tensor],
        targets: list[Tensor],
        loss_function: Callable[[Any, Any], Tensor],
        types: list[_Types],
    ) -> None:
        self._pipe, self._inputs, self._targets = pipe, inputs, targets
        self._loss_function, self._types = loss_function, types
        self._last = pipe._count - 1
        self._kept: dict[tuple[int, int], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._here: dict[tuple[str, int, int], tuple[Tensor, ...]] = {}  # results, by who gave them
        self._losses: list[Tensor] = []
        self._sent: list[Work] = []

    def do(self, action: Action) -> None:
        """One action of the schedule."""
        stage, microbatch = action.stage, action.microbatch
        key = (action.what or action.kind, stage, microbatch)
        group = self._pipe._group
        if action.kind == "send":
            to = group.ranks[action.peer]
            self._sent = [work for work in self._sent if not work.is_completed()]
            works = [start(send, part, to, group=group) for part in self._here.pop(key)]
            if current_trace() is None:
                self._sent += works
        elif action.kind == "recv":
            given = stage if action.what == "forward" else stage - 1
            likes = _likes(self._types[given], self._inputs[0])
            source = group.ranks[action.peer]
            self._here[key] = tuple(recv(like, source, group=group) for like in likes)
        elif action.kind == "forward":
            self._forward(stage, microbatch)
        else:
            self._backward(stage, microbatch)

    def _forward(self, stage: int, microbatch: int) -> None:
        if stage:
            came = self._here.pop(("forward", stage - 1, microbatch))
            given = tuple(_leaf(x) for x in came)
        else:
            given = (self._inputs[microbatch],)
        y = _tuple(self._pipe.stages[str(stage)](*given))
        if stage == self._last:
            whole = y[0] if len(y) == 1 else y
            loss = self._loss_function(whole, self._targets[microbatch])
            if loss.shape != ():
                raise ShapeError(
                    f"Pipeline.step: the loss is a number, not of shape {loss.shape}: take its mean"
                )
            loss = loss / self._pipe._schedule.microbatches
            self._losses.append(loss.detach())
            y = (loss,)
        else:
            self._here["forward", stage, microbatch] = tuple(part.detach() for part in y)
        self._kept[stage, microbatch] = (given, y)

    def _backward(self, stage: int, microbatch: int) -> None:
        given, y = self._kept.pop((stage, microbatch))
        if stage == self._last:
            y[0].backward()
        else:
            cotangents = self._here.pop(("backward", stage + 1, microbatch))
            pairs = [(p, g) for p, g in zip(y, cotangents, strict=True) if p.requires_grad]
            if len(pairs) == 1:
                pairs[0][0].backward(pairs[0][1])
            elif pairs:  # one walk for all
                nm.sum(nm.stack([nm.sum(p * g) for p, g in pairs])).backward()
        if stage:
            self._here["backward", stage, microbatch] = tuple(
                nm.zeros_like(x.detach()) if x.grad is None else x.grad for x in given
            )

    def loss(self) -> Tensor:
        """The sum of the microbatches' shares of the loss, from the rank that has them."""
        for work in self._sent:
            work.wait()
        group = self._pipe._group
        dtype = nm.float64 if self._types[-1][0][1] == "float64" else nm.float32
        (total,) = _likes((((), dtype.name),), self._inputs[0])
        for loss in self._losses:
            total = total + loss.astype(dtype, copy=False)
        last = group.ranks[self._pipe._schedule.rank_of(self._last)]
        return broadcast(total, last, group=group)


def _tuple(y: Any) -> tuple[Tensor, ...]:
    return y if isinstance(y, tuple) else (y,)


def _leaf(x: Tensor) -> Tensor:
    """What came from another stage, to be differentiated by."""
    leaf = x.detach()
    if leaf.dtype.is_inexact:
        leaf.requires_grad = True
    return leaf


def _types_of(tensors: tuple[Tensor, ...]) -> _Types:
    return tuple((x.shape, x.dtype.name) for x in tensors)


def _likes(types: _Types, x: Tensor) -> tuple[Tensor, ...]:
    """Zeros of these shapes, computed from a tensor: what comes from constants alone would run
    once, when `nm.jit` traces it, and not in each call."""
    zero = x.detach().reshape(-1)[0] * 0
    return tuple(nm.broadcast_to(zero.astype(dtype), shape) for shape, dtype in types)


def _result_types(stage: Module, given: _Types, x: Tensor) -> _Types:
    """What a stage gives for inputs of these shapes."""
    trace = current_trace()
    effects = None if trace is None else trace.effects
    before = 0 if effects is None else len(effects)
    with nm.no_grad():
        found = _types_of(_tuple(stage(*_likes(given, x))))
    if effects is not None:
        del effects[before:]  # collectives of the stage: only shapes are of interest
    return found
