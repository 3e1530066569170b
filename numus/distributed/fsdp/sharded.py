"""Fully sharded data parallelism (FSDP; ZeRO stage 3, Rajbhandari et al., 2020).

Each rank keeps a part of every layer's parameters, gradients and optimiser state. A layer's whole
parameters are gathered just before it computes, one layer ahead, and dropped after it; backward
gathers them again, computes the layer's intermediate values again from its inputs (as
`nm.checkpoint` does), and sums gradients so that each rank gets its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.distributed.collectives import broadcast
from numus.distributed.fsdp.units import Flat, MixedPrecision, Unit
from numus.distributed.groups import Group, world
from numus.distributed.layers import clip_grad_norm_
from numus.errors import DistributedError, GradientError
from numus.evaluation.evaluate import evaluate
from numus.functions._base import wrap
from numus.graph import Node, Nodes, Tangents, current_trace, mode, now
from numus.nn.functional_call import owners_of
from numus.nn.module import IncompatibleKeys, Module
from numus.nn.parameter import Parameter
from numus.primitives.source import forget
from numus.primitives.structure import barrier
from numus.runtime.devices import device
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.checkpoint import nodes_since
from numus.transforms.rules import CallRule, connected, differentiated, flatten
from numus.transforms.subgraph import Recipe
from numus.transforms.tape import variable
from numus.transforms.trace import Trace

__all__ = ["FSDP", "FullyShardedDataParallel"]

Policy = Callable[[str, Module], bool]


class FullyShardedDataParallel(Module):
    """A model of which every rank has a part, trained on a part of the batch by each.

    Parameters start as those of the first rank. They are `shards` from then on: optimisers take
    `model.parameters()` as they do others. `backward()` averages gradients over the ranks, so that
    training is that of one process with the whole batch, where losses are means over equal parts.

    Args:
        units: which modules are gathered one by one: a class or several, or a function of (name,
            module); by default the entries of lists and of `nn.Sequential`, not those within
            others. What is left of the model is gathered at the beginning of each forward pass and
            kept until backward has passed it.
        group: the ranks; by default all.
        mixed_precision: dtypes to compute in and to send gradients in.
        cpu_offload: keep parts, gradients and optimiser state in the host's memory.
        reshard_after_forward: drop whole parameters after forward. Without it, they and what
            forward computed are kept for backward, which computes nothing twice.

    >>> from numus import nn, optim
    >>> model = nm.distributed.FSDP(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)))
    >>> [name for name, _ in model.named_parameters()]
    ['shards.0', 'shards.2']
    >>> optimizer = optim.SGD(model.parameters(), lr=0.1)
    >>> model(nm.ones((3, 2))).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        module: Module,
        *,
        units: type[Module] | tuple[type[Module], ...] | Policy | None = None,
        group: Group | None = None,
        mixed_precision: MixedPrecision | None = None,
        cpu_offload: bool = False,
        reshard_after_forward: bool = True,
    ) -> None:
        self.module = module
        self._group = world() if group is None else group
        self._precision = mixed_precision or MixedPrecision()
        self._reshards = reshard_after_forward
        self._syncs = True
        self._is_whole = False  # inside of summon_full_params
        with nm.no_grad():
            for x in module.buffers():
                x.assign(broadcast(x.detach(), self._group.ranks[0], group=self._group))
        chosen = _chosen(module, units)
        self._units = _units(module, chosen, self._group, self._precision, cpu_offload)
        self.shards: dict[str, Parameter] = {}
        for unit in self._units:
            for i, flat in enumerate(unit.flats):
                name = unit.name or "root"
                self.shards[name if i == 0 else f"{name}:{i}"] = flat.shard
        # in the order in which forward comes to them, which the first pass finds out
        self._order = [u for u in self._units if u.module is not module]
        self._met: list[Unit] = []
        for unit in self._order:
            unit.module.__dict__["forward"] = _Forward(self, unit)

    # -- passes -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_whole:
            return self.module(*args, **kwargs)
        for unit in self._units:
            unit.forget()
        if self._met and len(self._met) >= len(self._order):
            self._order = list(dict.fromkeys(self._met))
        self._met = []
        dtype = self._precision.param_dtype
        if dtype is not None:
            args, kwargs = _cast((args, kwargs), dtype)
        root = self._units[0]
        if root.module is not self.module:
            return self.module(*args, **kwargs)
        wholes = _kept(self, root, [])
        try:
            root.bind(root.split(wholes))
            return self.module(*args, **kwargs)
        finally:
            root.hide()

    def _run(self, unit: Unit, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A unit's forward pass."""
        if self._is_whole:
            return forward(*args, **kwargs)
        _, given = flatten((args, kwargs))
        if current_trace() is None:  # else they would be computed by backward once more
            evaluate([x for x in given if x.view is None and not x.abstract])
        tracked = mode.grad and (
            any(flat.shard.requires_grad for flat in unit.flats) or any(x.tracked for x in given)
        )
        if tracked and not self._reshards:
            wholes = _kept(self, unit, given)
            self._prefetch(unit, 1, given)
            return _with(unit, wholes, forward, args, kwargs)
        wholes = unit.gather(given)
        self._prefetch(unit, 1, given)
        if tracked:
            return _resharded(self, unit, wholes, forward, args, kwargs)
        result = _with(unit, wholes, forward, args, kwargs)
        if current_trace() is None:
            evaluate([x for x in flatten(result)[1] if x.view is None and not x.abstract])
        return result

    def _prefetch(self, unit: Unit, step: int, after: Nodes) -> None:
        """Begin to gather the unit that comes after this one, or before it on the way back."""
        if step > 0:
            self._met.append(unit)
        at = self._order.index(unit) + step
        if 0 <= at < len(self._order) and self._order[at] not in self._met * (step > 0):
            self._order[at].prefetch(after)

    def _reduced(
        self, unit: Unit, gradients: Sequence[Node | None], after: Nodes = ()
    ) -> list[Node | None]:
        """The gradients of shards, from those of whole flat parameters."""
        found: list[Node | None] = []
        for flat, g in zip(unit.flats, gradients, strict=True):
            if g is None or not flat.shard.requires_grad:
                found.append(None)
            elif self._syncs:
                found.append(unit.reduce(flat, wrap(g), after)._node)
            else:
                flat.pending = wrap(g) if flat.pending is None else flat.pending + wrap(g)
                if not g.abstract:
                    evaluate((flat.pending._node,))
                found.append(None)
        return found

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside keep whole gradients on this rank; the first one after it averages
        what has come together. It needs the memory of all gradients.

        >>> model = nm.distributed.FSDP(nm.nn.Linear(2, 1))
        >>> with model.no_sync():
        ...     model(nm.ones((3, 2))).sum().backward()
        >>> model(nm.ones((3, 2))).sum().backward()
        >>> model.shards["root"].grad.tolist()
        [6.0, 6.0, 6.0]
        """
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale gradients down so that their norm, over all ranks, is at most this; gives the norm
        that they had."""
        return clip_grad_norm_(self.parameters(), max_norm, norm_type, group=self._group)

    # -- whole parameters -------------------------------------------------------------------------

    @contextmanager
    def summon_full_params(self, writeback: bool = True) -> Iterator[Module]:
        """Whole parameters in the modules, on all ranks: to look at them, or to change them. All
        ranks enter it together.

        Args:
            writeback: keep what was changed; each rank that of its own part.

        >>> model = nm.distributed.FSDP(nm.nn.Linear(2, 1))
        >>> with model.summon_full_params() as module:
        ...     _ = module.weight.assign(nm.ones((1, 2)))
        >>> with model.summon_full_params():
        ...     model.module.weight.tolist()
        [[1.0, 1.0]]
        """
        if self._is_whole:
            raise DistributedError("summon_full_params: the parameters are whole already")
        placed: list[list[Parameter]] = []
        for unit in self._units:
            whole = [_gathered(flat, self._group) for flat in unit.flats]
            wants = [f.shard.requires_grad for f in unit.flats for _ in f.entries]
            values = [
                Parameter(x.clone(), w) for x, w in zip(unit.split(whole), wants, strict=True)
            ]
            unit.bind(values)
            placed.append(values)
        self._is_whole = True
        try:
            yield self.module
            if writeback:
                for unit, values in zip(self._units, placed, strict=True):
                    self._take(unit, values)
        finally:
            self._is_whole = False
            for unit in self._units:
                unit.hide()

    def _take(self, unit: Unit, values: Sequence[Tensor]) -> None:
        """Let the shards of this rank hold these values of whole parameters."""
        at = 0
        with nm.no_grad():
            for flat in unit.flats:
                mine = flat.joined([x.detach() for x in values[at : at + len(flat.entries)]])
                low = self._group.rank * flat.part
                flat.shard.assign(mine[low : low + flat.part].clone().to(flat.shard.device))
                at += len(flat.entries)

    def state_dict(self, prefix: str = "", *, keep_vars: bool = False) -> dict[str, Tensor]:
        """The whole state by the names of the model within, on all ranks, which call it together.
        `nm.distributed.save_checkpoint` writes the parts instead.

        >>> sorted(nm.distributed.FSDP(nm.nn.Linear(2, 1)).state_dict())
        ['bias', 'weight']
        """
        if keep_vars:
            raise ValueError("FSDP.state_dict: whole parameters are copies; keep_vars has no use")
        with self.summon_full_params(writeback=False):
            return self.module.state_dict(prefix)

    def _prepare_state(
        self, state: Any, strict: bool = True, prefix: str = ""
    ) -> Callable[[], IncompatibleKeys]:
        with self.summon_full_params(writeback=False):
            self.module._prepare_state(state, strict, prefix)  # raises where it does not fit

        def commit() -> IncompatibleKeys:
            with self.summon_full_params():
                return self.module.load_state_dict(state, strict, prefix=prefix)

        return commit

    def num_parameters(self, trainable_only: bool = False) -> int:
        """The number of elements of all parameters of the whole model; tied ones count once."""
        flats = [f for unit in self._units for f in unit.flats]
        return sum(f.total for f in flats if f.shard.requires_grad or not trainable_only)


FSDP = FullyShardedDataParallel


class _Forward:
    """The `forward` of a module that is a unit."""

    def __init__(self, model: FullyShardedDataParallel, unit: Unit) -> None:
        self._model, self._unit = model, unit
        self._forward = unit.module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model._run(self._unit, self._forward, args, kwargs)


def _with(unit: Unit, wholes: Sequence[Tensor], forward: Any, args: Any, kwargs: Any) -> Any:
    """The result of a forward pass with whole parameters."""
    unit.bind(unit.split(wholes))
    try:
        return forward(*args, **kwargs)
    finally:
        unit.hide()


# -- derivatives ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _GatheredRule(CallRule):
    """Whole parameters as a function of this rank's part: the gradient is averaged and cut."""

    model: FullyShardedDataParallel
    unit: Unit

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        return self.model._reduced(self.unit, cotangents)

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        raise _no_forward_mode()


def _kept(model: FullyShardedDataParallel, unit: Unit, after: Nodes) -> list[Tensor]:
    """Gathered parameters that stay until backward has passed them."""
    wholes = [x._node for x in unit.gather(after)]
    shards = tuple(flat.shard._node for flat in unit.flats)
    if not (mode.grad and any(x.tracked for x in shards)):
        return [wrap(x) for x in wholes]
    return [
        wrap(y) for y in differentiated(_GatheredRule(len(wholes), model, unit), wholes, shards)
    ]


@dataclass(eq=False)
class _ReshardedRule(CallRule):
    """A unit whose parameters are gathered, and whose values are computed, again by backward."""

    model: FullyShardedDataParallel
    unit: Unit
    recipe: Recipe

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        unit, model = self.unit, self.model
        count = len(unit.flats)
        known = [g for g in cotangents if g is not None]
        if current_trace() is None:
            evaluate([g for g in known if g.view is None and not g.abstract])
        wholes = unit.gather(known)
        model._prefetch(unit, -1, known)
        # the barrier keeps a compiler from merging this with the first computation
        others = [wrap(barrier(x, "fsdp")) for x in operands[count:]]

        def replay(*xs: Tensor) -> list[Tensor]:
            return [wrap(y) for y in self.recipe.replay([x._node for x in xs])]

        found = Trace("FSDP", replay, [*wholes, *others]).vjp(cotangents)
        made = [g for g in found if g is not None]
        if current_trace() is None:  # once for all gradients
            evaluate([g for g in made if g.view is None and not g.abstract])
        rest = found[count:]
        reduced = model._reduced(unit, found[:count], [g for g in rest if g is not None])
        return [*reduced, *rest]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        raise _no_forward_mode()


def _no_forward_mode() -> GradientError:
    return GradientError(
        "FSDP: sharded models have reverse-mode derivatives only; take those of the model itself "
        "inside of summon_full_params()"
    )


def _resharded(
    model: FullyShardedDataParallel,
    unit: Unit,
    wholes: Sequence[Tensor],
    forward: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """The result of a unit, of which only its inputs are kept for backward."""
    leaves = [variable(x._node) for x in wholes]
    since = now()
    result = _with(unit, [wrap(x) for x in leaves], forward, args, kwargs)
    spec, outputs = flatten(result)
    _, given = flatten((args, kwargs))
    order, captured = nodes_since(outputs, since)
    others = tuple(x for x in dict.fromkeys((*given, *captured)) if x not in leaves)
    rule = _ReshardedRule(len(outputs), model, unit, Recipe(order, (*leaves, *others), outputs))
    for node in (*leaves, *order):
        node.tracked = False
        if node.view is not None:
            forget(node)
    if current_trace() is None:
        evaluate([y for y in outputs if y.view is None and not y.abstract])
    shards = tuple(flat.shard._node for flat in unit.flats)
    return connected(rule, spec, outputs, (*shards, *others))


# -- which parameters belong together -------------------------------------------------------------


def _chosen(module: Module, units: Any) -> list[tuple[str, Module]]:
    """The modules that are units, outer ones first."""
    named: list[tuple[str, Module]] = [(n, m) for n, m in module.named_modules() if n]
    if units is None:
        found: list[tuple[str, Module]] = []
        for name, inner in named:
            is_entry = name.rpartition(".")[2].isdigit()
            if is_entry and not any(name.startswith(f"{outer}.") for outer, _ in found):
                found.append((name, inner))
        return found
    chosen: list[tuple[str, Module]]
    if isinstance(units, (type, tuple)):
        chosen = [(n, m) for n, m in named if isinstance(m, units)]
    else:
        chosen = [(n, m) for n, m in named if units(n, m)]
    for outer, _ in chosen:
        inside = [n for n, _ in chosen if n.startswith(f"{outer}.")]
        if inside:
            raise ValueError(
                f"FSDP: units={units!r} chooses {inside[0]}, which is within {outer}, another unit;"
                " choose one of them"
            )
    return chosen


def _units(
    module: Module,
    chosen: list[tuple[str, Module]],
    group: Group,
    precision: MixedPrecision,
    offload: bool,
) -> list[Unit]:
    """Units, the root first; a parameter that several of them share belongs to the root."""
    places = owners_of(module)
    named = list(module.named_parameters())
    homes: dict[int, set[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        within = [unit for unit, _ in chosen if name.startswith(f"{unit}.")]
        homes.setdefault(id(p), set()).add(within[0] if within else "")
    where = device("cpu") if offload else None
    modules = {"": module, **dict(chosen)}
    by_home: dict[str, list[tuple[str, Parameter]]] = {}
    for name, p in named:
        within_units = homes[id(p)]
        shared = len(within_units) > 1
        by_home.setdefault("" if shared else min(within_units), []).append((name, p))
    if not by_home:
        raise ValueError(f"FSDP: {type(module).__name__} has no parameters to shard")
    found = []
    for home, inner in modules.items():
        if home not in by_home:
            continue
        kinds: dict[Any, list[tuple[str, Parameter, Any]]] = {}
        for name, p in by_home[home]:
            kinds.setdefault((p.dtype, p.device, p.requires_grad), []).append(
                (name, p, places[name])
            )
        flats = [Flat(parameters, group, where) for parameters in kinds.values()]
        found.append(Unit(home, inner, flats, group, precision))
    return found


def _gathered(flat: Flat, group: Group) -> Tensor:
    """A whole flat parameter in its own dtype."""
    with nm.no_grad():
        return nm.distributed.all_gather(flat.shard.detach().to(flat.device), group=group)


def _cast(container: Any, dtype: Any) -> Any:
    """Floats of a container in another dtype."""

    def cast(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dtype.is_floating:
            return x.astype(dtype, copy=False)
        return x

    return tree.map(cast, container)
