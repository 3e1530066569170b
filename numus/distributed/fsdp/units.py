"""Units of fully sharded data parallelism: parameters that are gathered together.

The parameters of a unit lie in one vector (a flat parameter), padded to a multiple of the number of
ranks; each rank has a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numus as nm
from numus.distributed.calls import collective
from numus.distributed.collectives import scatter
from numus.distributed.groups import Group
from numus.distributed.work import run_now, start
from numus.dtypes import DType
from numus.functions._base import wrap
from numus.graph import Node
from numus.nn.parameter import Parameter
from numus.primitives import control
from numus.runtime.devices import Device
from numus.tensor import Tensor

__all__ = ["MixedPrecision"]


@dataclass(frozen=True)
class MixedPrecision:
    """The dtypes of a sharded model; what is left out is as the parameters are.

    Args:
        param_dtype: in which parameters are gathered and the model computes. Each rank keeps its
            part, and the optimiser works, in the dtype that the parameters had.
        reduce_dtype: in which gradients travel; sums of 16-bit floats are formed in float32.

    >>> nm.distributed.MixedPrecision(param_dtype=nm.bfloat16).reduce_dtype is None
    True
    """

    param_dtype: Any = None
    reduce_dtype: Any = None


class Entry(NamedTuple):
    """A parameter of the model within a flat one."""

    name: str
    attributes: tuple[tuple[Any, Any], ...]  # namespaces and keys: tied ones have several
    shape: tuple[int, ...]
    size: int
    offset: int


class ShardedParameter:
    """What a module has in place of a parameter of which this rank has only a part."""

    def __init__(self, name: str, parameter: Parameter) -> None:
        self.name = name
        self.shape, self.dtype = parameter.shape, parameter.dtype
        self.ndim, self.size = parameter.ndim, parameter.size

    def __repr__(self) -> str:
        return f"ShardedParameter({self.name}, {self.dtype.name}{list(self.shape)})"

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise AttributeError(
            f"{self!r} has no {attribute!r}: this rank has only a part of it outside of forward(); "
            "look at parameters inside of model.summon_full_params()"
        )


class Flat:
    """Parameters of one dtype in one vector, of which this rank has a part: `shard`."""

    def __init__(
        self, found: Sequence[tuple[str, Parameter, Any]], group: Group, where: Device | None
    ) -> None:
        first = found[0][1]
        self.dtype: DType = first.dtype
        self.device: Device = first.device
        self.entries: list[Entry] = []
        at = 0
        for name, p, attributes in found:
            self.entries.append(Entry(name, tuple(attributes), p.shape, p.size, at))
            at += p.size
        self.total = at
        self.part = -(-at // group.size)
        self.padded = self.part * group.size
        with nm.no_grad():
            whole = self.joined([p.detach() for _, p, _ in found])
            mine = scatter(whole, group.ranks[0], group=group)  # the first rank's values count
            shard = mine.clone() if where is None else mine.to(where)
        self.shard = Parameter(shard, requires_grad=first.requires_grad)
        self.pending: Tensor | None = None  # a whole gradient that has not been averaged yet

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The padded vector of values of all parameters."""
        parts = [x.reshape(-1) for x in parts]
        if self.padded > self.total:
            zeros = nm.zeros(self.padded - self.total, dtype=parts[0].dtype)
            parts.append(zeros.to(parts[0].device))
        return nm.concat(parts)

    def split(self, whole: Tensor) -> list[Tensor]:
        """The parameters in the gathered vector."""
        if self.padded > self.total:
            whole = whole[: self.total]
        return [whole[e.offset : e.offset + e.size].reshape(e.shape) for e in self.entries]

    def own_slices(self, rank: int) -> list[tuple[Entry, int, int, int]]:
        """Of each parameter that has elements in a rank's part: where they begin in the part, and
        their first and last index in the flattened parameter."""
        low = rank * self.part
        found = []
        for e in self.entries:
            begin, end = max(low, e.offset), min(low + self.part, e.offset + e.size)
            if begin < end:
                found.append((e, begin - low, begin - e.offset, end - e.offset))
        return found


class Unit:
    """The flat parameters that are gathered together, around one module's `forward`."""

    def __init__(
        self, name: str, module: Any, flats: list[Flat], group: Group, precision: MixedPrecision
    ) -> None:
        self.name = name
        self.module = module
        self.flats = flats
        self._group = group
        self._precision = precision
        self._ahead: list[Tensor] | None = None  # gathered, or under way
        self._hidden = [
            ShardedParameter(e.name, _original(e)) for flat in flats for e in flat.entries
        ]
        self.bind(self._hidden)

    # -- whole parameters -------------------------------------------------------------------------

    def prefetch(self, after: Sequence[Node]) -> None:
        """Begin to gather the parameters, unless that has been done."""
        if self._ahead is None:
            self._ahead = self._start(after)

    def gather(self, after: Sequence[Node]) -> list[Tensor]:
        """The whole flat parameters, which may still be under way."""
        self.prefetch(after)
        found, self._ahead = self._ahead, None
        assert found is not None
        return found

    def forget(self) -> None:
        """Drop what was gathered ahead."""
        self._ahead = None

    def _start(self, after: Sequence[Node]) -> list[Tensor]:
        dtype = self._precision.param_dtype
        with nm.no_grad():
            found = []
            for flat in self.flats:
                x = flat.shard.detach().to(flat.device)
                if dtype is not None:
                    x = x.astype(dtype, copy=False)
                found.append(_started("all_gather", x, self._group, after).reshape(-1))
            return found

    def reduce(self, flat: Flat, gradient: Tensor, after: Sequence[Node]) -> Tensor:
        """This rank's part of the mean gradient over the ranks, which is under way."""
        with nm.no_grad():
            if flat.pending is not None:
                gradient, flat.pending = gradient + flat.pending, None
            wanted = self._precision.reduce_dtype
            wanted = gradient.dtype if wanted is None else wanted
            sent = gradient.astype(wanted, copy=False)
            if sent.dtype.itemsize < nm.float32.itemsize:
                sent = sent.astype(nm.float32)
            parts = sent.reshape(self._group.size, flat.part)
            got = _started("reduce_scatter", parts, self._group, after, reduction="sum")
            mean = (got / self._group.size).astype(flat.dtype, copy=False)
            return mean.to(flat.shard.device)

    # -- attributes of the modules ----------------------------------------------------------------

    def bind(self, values: Sequence[Any]) -> None:
        """Let modules hold these in place of the parameters."""
        entries = [e for flat in self.flats for e in flat.entries]
        for entry, value in zip(entries, values, strict=True):
            for namespace, key in entry.attributes:
                namespace[key] = value

    def hide(self) -> None:
        """Let modules hold no values any more."""
        self.bind(self._hidden)

    def split(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """The parameters in the gathered vectors."""
        return [
            x for flat, whole in zip(self.flats, wholes, strict=True) for x in flat.split(whole)
        ]


def _original(entry: Entry) -> Parameter:
    namespace, key = entry.attributes[0]
    found: Parameter = namespace[key]
    return found


def _started(kind: str, x: Tensor, group: Group, after: Sequence[Node], **options: Any) -> Tensor:
    """The result of a collective, under way. In a trace it does not begin before the nodes `after`
    are known: what is gathered ahead would otherwise all be gathered first."""
    node = x._node
    call = collective(kind, group, node.shape, node.dtype, **options)
    if node.abstract:
        later = [y for y in dict.fromkeys(after) if y.abstract and y is not node]
        (y,) = control.call(call, (node, *later))
        return wrap(y)
    found: Tensor = start(lambda: wrap(run_now(call, node))).result
    return found
