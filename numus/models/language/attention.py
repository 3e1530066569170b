"""Attention of language models: what a pass over tokens sees, and the scores it computes.

A `Pass` is one call of a model on some tokens: their positions, the keys they may look at, and a
cache that holds the keys of earlier calls. Layers ask it for masks and hand it their keys.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numus as nm
from numus.tensor import Tensor

__all__ = ["Cache", "Pass", "attend", "merge_heads", "split_heads"]


class Cache(Protocol):
    """Keys and values of earlier passes, by layer."""

    def update(
        self, layer: int, key: Tensor, value: Tensor, seen: Pass
    ) -> tuple[Tensor, Tensor]: ...

    def held_slots(self, window: int | None, seen: Pass) -> Tensor: ...


class Pass:
    """One call of a decoder on tokens (rows, length).

    Args:
        positions: of the tokens, (rows or 1, length).
        mask: true for keys that count, (rows, keys); None: all of them.
        first: with a cache, the slot where each row begins, (rows,); None: all at the first.
        slots: of the cache, that the tokens' keys go to, (length,); without a cache 0, 1, 2 …
        keys: how many slots of the cache are looked at.
        memory: keys and values of an encoder by layer, with the mask of its tokens.
    """

    def __init__(
        self,
        positions: Tensor,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        first: Tensor | None = None,
        slots: Tensor | None = None,
        keys: int | None = None,
        memory: list[tuple[Tensor, Tensor]] | None = None,
        memory_mask: Tensor | None = None,
        causal: bool = True,
    ) -> None:
        self.positions, self.cache, self.memory = positions, cache, memory
        self.length = positions.shape[-1]
        self.keys = self.length if keys is None else keys
        self.slots = nm.arange(self.length, device=positions.device) if slots is None else slots
        self.memory_mask = None if memory_mask is None else memory_mask[:, None, None, :]
        self.causal = causal
        self._mask, self._first = mask, first
        self._masks: dict[int | None, Tensor | None] = {}

    def mask(self, window: int | None = None) -> Tensor | None:
        """True for the keys a query may look at, (rows, 1, length, keys); None: plainly causal, or
        all of them where the pass is not causal.

        Args:
            window: how many keys at most, the query's own included.
        """
        if window not in self._masks:
            self._masks[window] = self._made(window)
        return self._masks[window]

    def is_plainly_causal(self, window: int | None) -> bool:
        """True if `is_causal` says it all."""
        plain = self.cache is None and self._mask is None
        return self.causal and plain and (window is None or window >= self.length)

    def _made(self, window: int | None) -> Tensor | None:
        own = None if self._mask is None else self._mask[:, None, None, :]
        if not self.causal or self.is_plainly_causal(window):
            return own
        if self.cache is None:
            held = nm.arange(self.keys, device=self.slots.device)
        else:
            held = self.cache.held_slots(window, self)
            start = held >= 0 if self._first is None else held >= self._first[:, None]
            own = start.reshape(-1, 1, 1, held.shape[0])
        behind = self.slots[:, None] - held
        seen = behind >= 0
        if window is not None:
            seen = seen & (behind < window)
        return seen[None, None] if own is None else seen[None, None] & own


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(rows, length, heads * size) as (rows, heads, length, size)."""
    rows, length, width = x.shape
    return x.reshape(rows, length, heads, width // heads).permute(0, 2, 1, 3)


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    rows, heads, length, size = x.shape
    return x.permute(0, 2, 1, 3).reshape(rows, length, heads * size)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Attention of (rows, heads, length, size) to fewer heads of keys, merged: (rows, length, …).

    Args:
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2).
        bias: added to the scores (T5).
    """
    if softcap is None and query.shape[2] == 1 and _has_warps(query):
        return _attend_split(query, key, value, mask, scale, bias)
    if query.shape[2] <= FEW_QUERIES or softcap is not None:
        return _attend_few(query, key, value, mask, scale, softcap, bias, is_causal)
    if bias is not None:
        mask = bias if mask is None else nm.where(mask, bias, -nm.inf)
        if is_causal:
            length, keys = query.shape[2], key.shape[2]
            mask = nm.where(_triangle(length, keys, mask.device), mask, -nm.inf)
        is_causal = False
    options: dict[str, Any] = {"scale": scale, "is_causal": is_causal, "enable_gqa": True}
    return merge_heads(nm.scaled_dot_product_attention(query, key, value, mask, **options))


# Heads that share keys, as the queries of one matrix: what a kernel that splits keys takes at most.
_MAX_SHARED = 8
_MIN_BUSY = 0.75  # of the multiprocessors, by the splits of all matrices
_L2_READS = 4  # keys are read again while what all read is at most this part of L2


def _has_warps(query: Tensor) -> bool:
    """Threads exchange registers: a kernel splits the keys of a few queries among blocks."""
    return nm.device(query.device).runtime.target.subgroup_size > 0


def _attend_split(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    bias: Tensor | None,
) -> Tensor:
    """One query of each head. Heads that share keys are rows of one matrix: keys are read once."""
    rows, heads, _, size = query.shape
    shared = _shared_heads(rows * heads, heads // key.shape[1], 2 * key.nbytes, query.device)
    if bias is not None:
        bias = bias.reshape(bias.shape[0], heads // shared, shared, bias.shape[-1])
        mask = bias if mask is None else nm.where(mask, bias, -nm.inf)
    grouped = query.reshape(rows, heads // shared, shared, size)
    out = nm.scaled_dot_product_attention(grouped, key, value, mask, scale=scale, enable_gqa=True)
    return out.reshape(rows, 1, heads * value.shape[-1])


def _shared_heads(heads: int, group: int, nbytes: int, device: Any) -> int:
    """How many heads of a group are the queries of one matrix. Fewer, where the splits that one
    cluster combines would leave multiprocessors idle, and L2 serves the keys again."""
    target = nm.device(device).runtime.target
    shared, blocks = math.gcd(group, _MAX_SHARED), heads * target.max_cluster_size
    again = target.l2_bytes // (_L2_READS * nbytes) if target.max_cluster_size > 1 else 0
    while shared % 2 == 0 and blocks // shared < _MIN_BUSY * target.num_cores and again > 1:
        shared, again = shared // 2, again // 2
    return shared


# A kernel of attention lays queries across SIMD lanes or the rows of a tile; one query alone is
# two products of a vector and a matrix, which read keys and values at the speed of memory.
FEW_QUERIES = 1


def _triangle(length: int, keys: int, device: Any) -> Tensor:
    return nm.arange(length, device=device)[:, None] >= nm.arange(keys, device=device)


def _attend_few(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    softcap: float | None,
    bias: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Scores are stored; query heads that share a head of keys are rows of one product."""
    rows, heads, length, size = query.shape
    own = key.shape[1]
    keys = key.shape[2]
    wide = nm.float32 if query.dtype.itemsize < 4 else query.dtype
    grouped = query.reshape(rows, own, heads // own * length, size)
    scores = (grouped @ key.permute(0, 1, 3, 2)).astype(wide, copy=False)
    scores = scores * (size**-0.5 if scale is None else scale)
    scores = scores.reshape(rows, own, heads // own, length, keys)
    if softcap is not None:
        scores = softcap * nm.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.reshape(bias.shape[0], own, heads // own, *bias.shape[2:])
    if is_causal:
        mask = _triangle(length, keys, query.device)[None, None]
    if mask is not None:
        scores = nm.where(mask[:, :, None], scores, -1e30)
    weights = nm.softmax(scores, axis=-1).astype(value.dtype, copy=False)
    out = weights.reshape(rows, own, heads // own * length, keys) @ value
    return merge_heads(out.reshape(rows, heads, length, value.shape[-1]))
