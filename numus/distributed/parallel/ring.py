"""Context parallelism by ring attention (Liu et al. 2023): each rank has a part of the sequence,
keys and values go round.

The softmax over all keys is put together from those over the keys of each rank, by their
log-sum-exp (online softmax). Backward goes round once more with the gradients of keys and values.
Causal attention would leave early ranks idle, so each rank has a part from the beginning and one
from the end (zigzag): all ranks do the same work in each round.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numus as nm
from numus import dtypes as dt
from numus.distributed.collectives import all_gather, permute
from numus.distributed.groups import Group, world
from numus.distributed.work import start
from numus.errors import ShapeError
from numus.functions._base import scalar_node, wrap
from numus.primitives.attention.fused import attention, attention_grad, attention_lse
from numus.primitives.attention.rules import Operands
from numus.tensor import Tensor

__all__ = ["context_positions", "ring_attention", "shard_sequence", "unshard_sequence"]

_NAME = "ring_attention"


def context_positions(length: int, *, zigzag: bool = True, group: Group | None = None) -> Tensor:
    """The positions in the whole sequence of the tokens that this rank has, in order.

    >>> nm.distributed.parallel.context_positions(4).tolist()
    [0, 1, 2, 3]
    """
    group = world() if group is None else group
    cuts = 2 * group.size if zigzag else group.size
    if length % cuts:
        raise ShapeError(
            f"context_positions: a sequence of {length} tokens is not divisible into {cuts} parts "
            f"for the {group.size} ranks of {group}; pad it"
        )
    each = length // cuts
    chunks = (group.rank, cuts - 1 - group.rank) if zigzag else (group.rank,)
    return nm.concat([nm.arange(c * each, (c + 1) * each) for c in chunks])


def shard_sequence(
    x: Any, axis: int = 1, *, zigzag: bool = True, group: Group | None = None
) -> Tensor:
    """This rank's part of a tensor that all ranks have, along the axis of the sequence.

    >>> nm.distributed.parallel.shard_sequence(nm.ones((2, 4)), axis=1).shape
    (2, 4)
    """
    tensor = nm.asarray(x)
    at = context_positions(tensor.shape[axis], zigzag=zigzag, group=group)
    return nm.take(tensor, at.to(tensor.device), axis=axis)


def unshard_sequence(
    x: Any, axis: int = 1, *, zigzag: bool = True, group: Group | None = None
) -> Tensor:
    """The whole sequence from the parts of all ranks, on all of them.

    >>> nm.distributed.parallel.unshard_sequence(nm.ones((2, 4)), axis=1).shape
    (2, 4)
    """
    group = world() if group is None else group
    whole = all_gather(x, axis, group=group)
    n = group.size
    chunks = [c for r in range(n) for c in ((r, 2 * n - 1 - r) if zigzag else (r,))]
    each = whole.shape[axis] // len(chunks)
    in_order = sorted(range(len(chunks)), key=chunks.__getitem__)
    places = [nm.arange(i * each, (i + 1) * each) for i in in_order]
    return nm.take(whole, nm.concat(places).to(whole.device), axis=axis)


class _Options(NamedTuple):
    group: Group
    scale: float
    causal: bool
    zigzag: bool
    shared: int  # query heads per head of keys


def ring_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    zigzag: bool = True,
    group: Group | None = None,
) -> Tensor:
    """`nm.scaled_dot_product_attention` of a sequence of which each rank has a part: (rows, heads,
    length / ranks, size). Keys and values may have fewer heads, which queries share.

    Args:
        is_causal: a query looks at keys up to its own position alone.
        scale: 1 / sqrt(size) unless it is given.
        zigzag: with `is_causal`, parts are those of `shard_sequence(zigzag=True)`, so that ranks
            have the same amount of work; otherwise part r of the sequence is that of rank r.
        group: the ranks, such as `mesh.group("context")`; all by default.

    >>> q = nm.ones((1, 2, 4, 8))
    >>> nm.distributed.parallel.ring_attention(q, q, q, is_causal=True).shape
    (1, 2, 4, 8)
    """
    q, k, v = (nm.asarray(x) for x in (query, key, value))
    group = world() if group is None else group
    if q.ndim != 4 or k.ndim != 4 or v.shape[:3] != k.shape[:3] or k.shape[2] != q.shape[2]:
        raise ShapeError(
            f"{_NAME}: takes (rows, heads, length, size), as many keys and values as queries on "
            f"each rank; got query {q.shape}, key {k.shape}, value {v.shape}"
        )
    if q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1] or q.shape[3] != k.shape[3]:
        raise ShapeError(
            f"{_NAME}: query {q.shape} and key {k.shape}: rows and sizes are the same, heads of "
            "keys divide those of queries"
        )
    zigzag = zigzag and is_causal
    if zigzag and q.shape[2] % 2:
        raise ShapeError(
            f"{_NAME}: a rank has two equal parts of the sequence, not {q.shape[2]} tokens; "
            "pad the sequence, or give zigzag=False"
        )
    if scale is None:
        scale = 1 / math.sqrt(q.shape[3])
    options = _Options(group, scale, is_causal, zigzag, q.shape[1] // k.shape[1])
    rows, heads, length, _ = q.shape
    out = _ring(options, _stacked(q), _stacked(k), _stacked(v))
    return out.reshape(rows, heads, length, v.shape[3])


def _stacked(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _shared(x: Tensor, count: int) -> Tensor:
    """Keys or values with each head seen by its group of query heads."""
    return x if count == 1 else nm.repeat(x, count, axis=0)


def _summed(x: Tensor, count: int) -> Tensor:
    """The transpose of `_shared`."""
    return x if count == 1 else nm.sum(x.reshape(-1, count, *x.shape[1:]), axis=1)


class _Block(NamedTuple):
    """The queries and keys of a round that see each other, and whether within a triangle."""

    queries: slice
    keys: slice
    causal: bool


def _block(options: _Options, source: int, length: int) -> _Block | None:
    """What the queries of this rank see of the keys of another; None: nothing."""
    me, every, half = options.group.rank, slice(None), length // 2
    if not options.causal:
        return _Block(every, every, False)
    if source == me:
        return _Block(every, every, True)
    if not options.zigzag:
        return _Block(every, every, False) if source < me else None
    if source < me:  # the early half of its keys, which all queries here come after
        return _Block(every, slice(0, half), False)
    return _Block(slice(half, None), every, False)  # late queries come after all of its keys


def _pass_on(x: Tensor, group: Group) -> Any:
    """Send to the next rank, and get from the one before; not waited for."""
    pairs = [(r, group.ranks[(i + 1) % group.size]) for i, r in enumerate(group.ranks)]
    return start(permute, x, pairs, group=group)


def _now(*tensors: Tensor) -> None:
    """Compute what a round gives before the next: the keys of all rounds would be kept."""
    if not any(x._node.abstract for x in tensors):
        nm.eval(*tensors)


def _forward(options: _Options, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the log-sum-exp of each query."""
    group, (_, length, _) = options.group, q.shape
    wide = dt.compute_dtype(q.dtype)
    scale = scalar_node(options.scale, wide)
    out = lse = None
    both = nm.concat([k, v], axis=-1)
    for turn in range(group.size):
        coming = _pass_on(both, group) if turn + 1 < group.size else None
        block = _block(options, (group.rank - turn) % group.size, length)
        if block is not None:
            part = both[:, block.keys]
            keys = _shared(part[..., : k.shape[2]], options.shared)._node
            values = _shared(part[..., k.shape[2] :], options.shared)._node
            queries = q[:, block.queries]._node
            found = wrap(attention(queries, keys, values, scale, causal=block.causal)).astype(wide)
            own = wrap(attention_lse(queries, keys, scale, None, block.causal))
            if out is None or lse is None:
                out, lse = found, own
            else:
                out, lse = _merged(out, lse, found, own, block.queries)
            _now(out, lse)
        both = both if coming is None else coming.result
    assert out is not None
    assert lse is not None
    return out.astype(q.dtype, copy=False), lse


def _merged(
    out: Tensor, lse: Tensor, found: Tensor, own: Tensor, queries: slice
) -> tuple[Tensor, Tensor]:
    """The softmax over the keys seen so far and those of another round."""
    first = queries.start or 0
    before, sums = out[:, first:], lse[:, first:]
    both = nm.logaddexp(sums, own)
    mixed = before * nm.exp(sums - both)[..., None] + found * nm.exp(own - both)[..., None]
    if not first:
        return mixed, both
    return nm.concat([out[:, :first], mixed], 1), nm.concat([lse[:, :first], both], 1)


def _backward(options: _Options, saved: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, out, lse = saved
    group, (_, length, _), size = options.group, q.shape, k.shape[2]
    wide = lse.dtype
    scale = scalar_node(options.scale, wide)
    delta = nm.sum(g.astype(wide) * out.astype(wide), axis=-1)
    grad = nm.zeros(q.shape, dtype=wide, device=q.device)
    both = nm.concat([k, v], axis=-1)
    back = nm.zeros(both.shape, dtype=wide, device=q.device)
    for turn in range(group.size):
        coming = _pass_on(both, group) if turn + 1 < group.size else None
        block = _block(options, (group.rank - turn) % group.size, length)
        if block is not None:
            part = both[:, block.keys]
            at = block.queries
            operands = Operands(
                q[:, at]._node,
                _shared(part[..., :size], options.shared)._node,
                scale,
                None,
                lse[:, at]._node,
                _shared(part[..., size:], options.shared)._node,
                None,
                block.causal,
            )
            dq, dk, dv = (
                wrap(attention_grad(x, operands, g[:, at]._node, delta[:, at]._node)).astype(wide)
                for x in "qkv"
            )
            grad = _added(grad, dq, at)
            back = _added(back, _summed(nm.concat([dk, dv], -1), options.shared), block.keys)
            _now(grad, back)
        both = both if coming is None else coming.result
        back = back if group.size == 1 else _pass_on(back, group).result
    found = grad, back[..., :size], back[..., size:]
    dq, dk, dv = (d.astype(x.dtype, copy=False) for d, x in zip(found, (q, k, v), strict=True))
    return dq, dk, dv


def _added(total: Tensor, part: Tensor, where: slice) -> Tensor:
    """The total with a part added to some of its rows."""
    first, stop = where.start or 0, where.stop or total.shape[1]
    pieces = [total[:, :first], total[:, first:stop] + part, total[:, stop:]]
    kept = [x for x in pieces if x.shape[1]]
    return kept[0] if len(kept) == 1 else nm.concat(kept, axis=1)


def _attend(options: _Options, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _forward(options, q, k, v)[0]


def _attend_and_keep(options: _Options, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Any]:
    out, lse = _forward(options, q, k, v)
    return out, (q, k, v, out, lse)


_ring = nm.custom_vjp(_attend, nondiff_argnums=(0,))
_ring.defvjp(_attend_and_keep, _backward)
