"""Multi-head attention: to itself or another sequence, causal, padded, grouped, cached."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn import init
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["KVCache", "MultiheadAttention", "StaticKVCache"]

Mask = tuple[Tensor | None, bool]
_PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class KVCache:
    """The keys and values of what has been seen, (batch, heads, length, size) each."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """The number of cached positions."""
        return 0 if self.keys is None else self.keys.shape[-2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add what is new, and give all of it."""
        if self.keys is not None and self.values is not None:
            keys = nm.concat([self.keys, keys], axis=-2)
            values = nm.concat([self.values, values], axis=-2)
        self.keys, self.values = keys, values
        return keys, values


class StaticKVCache:
    """A cache with room for `max_length` positions, filled in position.

    Its shapes never change, so one traced function (`nm.jit`) decodes token after token; attention
    goes over all of the room, with what is still empty left out. What goes beyond it is dropped.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        max_length: int,
        head_dim: int,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        shape = (batch, heads, max_length, head_dim)
        options = {"dtype": dtype or nm.float32, "device": device}
        self.max_length = max_length
        self.keys = nm.zeros(shape, **options).copy()
        self.values = nm.zeros(shape, **options).copy()
        self.length = nm.zeros((), dtype=nm.int64, device=device).copy()
        nm.eval(self.keys, self.values, self.length)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write what is new behind what is there, and give all of the room."""
        at = nm.arange(keys.shape[-2], device=keys.device) + self.length
        for cached, new in ((self.keys, keys), (self.values, values)):
            every = slice(None)
            cached.assign(
                nm.index_put(cached, (every, every, at), new.astype(cached.dtype, copy=False))
            )
        self.length += keys.shape[-2]
        return self.keys, self.values

    def looks(self, queries: int, causal: bool) -> Tensor:
        """Which positions the last queries may look at: those that are filled, and not later."""
        count = nm.arange(self.max_length, device=self.keys.device)
        if not causal:
            return nm.broadcast_to(count < self.length, (queries, self.max_length))
        own = nm.arange(queries, device=self.keys.device) + (self.length - queries)
        return count <= own[:, None]

    def reset(self) -> None:
        """Forget everything."""
        self.length.assign(nm.zeros_like(self.length))


class MultiheadAttention(Module):
    """Attention by several heads, each with its own projections, joined by one more.

    Parameters are PyTorch's: `in_proj_weight` holds the projections of queries, keys and values one
    below the other, unless keys or values have a size of their own.

    >>> from numus import nn
    >>> attend = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = nm.ones((3, 5, 8))
    >>> y, weights = attend(x, x, x)
    >>> y.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))

    Args:
        embed_dim: the size of queries and results; the heads share it out.
        num_heads: how many heads there are.
        dropout: of weights, in training.
        add_bias_kv: one more key and value, which are parameters.
        add_zero_attn: one more key and value, of zeros.
        num_kv_heads: how many heads keys and values have; several query heads share one of them.
        kdim, vdim: the sizes of keys and values, where they differ.
        rotary: turn queries and keys by their positions (see `rotary_embedding`).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        num_kv_heads: int | None = None,
        rotary: bool = False,
    ) -> None:
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if embed_dim % num_heads or num_heads % groups:
            raise ShapeError(
                f"MultiheadAttention: embed_dim={embed_dim} must be divisible by "
                f"num_heads={num_heads}, and num_heads by num_kv_heads={groups}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = groups
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        self.rotary = rotary
        options = {"dtype": dtype or nm.float32, "device": device}
        kv_dim = groups * self.head_dim
        rows = (embed_dim, kv_dim, kv_dim)
        widths = (embed_dim, kdim or embed_dim, vdim or embed_dim)
        if all(width == embed_dim for width in widths):
            self.in_proj_weight = Parameter(nm.empty((sum(rows), embed_dim), **options))
            for name in _PROJECTIONS:
                self.register_parameter(name, None)
        else:
            self.register_parameter("in_proj_weight", None)
            for name, n, width in zip(_PROJECTIONS, rows, widths, strict=True):
                self.register_parameter(name, Parameter(nm.empty((n, width), **options)))
        self.in_proj_bias = Parameter(nm.zeros((sum(rows),), **options)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, **options)
        self.bias_k = Parameter(nm.empty((1, 1, kv_dim), **options)) if add_bias_kv else None
        self.bias_v = Parameter(nm.empty((1, 1, kv_dim), **options)) if add_bias_kv else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw first values, as PyTorch does."""
        for name in ("in_proj_weight", *_PROJECTIONS):
            if self.__dict__[name] is not None:
                init.xavier_uniform_(self.__dict__[name])
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.normal_(extra, 0.0, math.sqrt(2.0 / (1 + extra.shape[-1])))

    # -- projections ------------------------------------------------------------------------------

    def _projected(self, *sources: Tensor) -> list[Tensor]:
        """Queries, keys and values as (batch, heads, length, size)."""
        kv_dim = self.num_kv_heads * self.head_dim
        cuts = (0, self.embed_dim, self.embed_dim + kv_dim, self.embed_dim + 2 * kv_dim)
        whole = self.in_proj_weight
        same = sources[0] is sources[1] is sources[2]
        parts: list[Tensor] = []
        if whole is not None and same:  # one GEMM for all three
            joined = F.linear(sources[0], whole, self.in_proj_bias)
            parts = list(nm.split(joined, cuts[1:3], axis=-1))
        else:
            for i, x in enumerate(sources):
                rows = slice(cuts[i], cuts[i + 1])
                w = getattr(self, _PROJECTIONS[i]) if whole is None else whole[rows]
                b = None if self.in_proj_bias is None else self.in_proj_bias[rows]
                parts.append(F.linear(x, w, b))
        if self.bias_k is not None and self.bias_v is not None:
            for i, extra in ((1, self.bias_k), (2, self.bias_v)):
                more = nm.broadcast_to(extra, (parts[i].shape[0], 1, kv_dim))
                parts[i] = nm.concat([parts[i], more.astype(parts[i].dtype, copy=False)], axis=1)
        size = self.head_dim
        heads = [x.reshape((*x.shape[:2], x.shape[2] // size, size)) for x in parts]
        return [nm.swapaxes(x, 1, 2) for x in heads]

    # -- attention --------------------------------------------------------------------------------

    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KVCache | StaticKVCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The attention output and, with `need_weights`, the weights (computed when they are read).

        Args:
            key, value: the queries' own sequence, where they are not given.
            key_padding_mask: (batch, keys): true for keys that do not count, or what to add.
            attn_mask: (queries, keys), or for each batch and head (batch * heads, queries, keys):
                true where a query may not look, or what to add.
            is_causal: a query looks at no key after it.
            cache: keys and values of earlier positions; those of this call are added to it.
        """
        key = query if key is None else key
        value = key if value is None else value
        given = (query, key, value)
        single = query.ndim == 2
        if single or not self.batch_first:
            batch_first = {id(x): x[None] if single else nm.swapaxes(x, 0, 1) for x in given}
            given = tuple(batch_first[id(x)] for x in given)  # type: ignore[assignment]
        q, k, v = self._projected(*given)
        if self.rotary:
            offset = 0 if cache is None else cache.length
            position = nm.arange(max(q.shape[-2], k.shape[-2]), device=q.device) + offset
            q, k = (F.rotary_embedding(x, position[: x.shape[-2]]) for x in (q, k))
        if cache is not None:
            k, v = cache.extend(k, v)
        if self.add_zero_attn:
            k, v = (nm.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0))) for x in (k, v))
        seen = cache.looks(q.shape[-2], is_causal) if isinstance(cache, StaticKVCache) else None
        mask, causal = self._mask(q, k, key_padding_mask, attn_mask, is_causal, seen)
        p = self.dropout if self.training else 0.0
        gqa = self.num_kv_heads != self.num_heads
        out = F.scaled_dot_product_attention(q, k, v, mask, p, causal, enable_gqa=gqa)
        out = nm.swapaxes(out, 1, 2).reshape((q.shape[0], q.shape[-2], self.embed_dim))
        out = self.out_proj(out)
        out = out[0] if single else out if self.batch_first else nm.swapaxes(out, 0, 1)
        if not need_weights:
            return out, None
        weights = self._weights(q, k, mask, causal)
        weights = weights.mean(axis=1) if average_attn_weights else weights
        return out, weights[0] if single else weights

    def _mask(self, q: Tensor, k: Tensor, padding: Any, mask: Any, causal: bool, seen: Any) -> Mask:
        """One mask (true: look) or additive bias of all masks, and whether it is only causal."""
        queries, keys = q.shape[-2], k.shape[-2]
        added = (self.bias_k is not None) + self.add_zero_attn
        if padding is None and mask is None and seen is None and not added and queries == keys:
            return None, causal
        own = keys - added
        found: list[Tensor] = [] if seen is None else [_look(~seen, added)]
        if mask is not None:
            mask = nm.asarray(mask)
            if mask.ndim == 3:
                mask = mask.reshape((-1, self.num_heads, *mask.shape[1:]))
            found.append(_look(mask, added))
        elif causal and seen is None:
            found.append(_look(~F.causal_mask(queries, own, device=q.device), added))
        if padding is not None:
            padding = nm.asarray(padding)
            if padding.shape[-1] != own:
                raise ShapeError(
                    f"MultiheadAttention: key_padding_mask of shape {padding.shape} for {own} keys"
                )
            found.append(_look(padding.reshape((-1, 1, 1, own)), added))
        if not found:
            return None, False
        if all(m.dtype is nm.bool for m in found):
            return functools.reduce(operator.and_, found), False
        return functools.reduce(operator.add, [_added(m, q) for m in found]), False

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if self.num_kv_heads != self.num_heads:
            k = nm.repeat(k, self.num_heads // self.num_kv_heads, axis=1)
        scores = (q @ k.mT) / math.sqrt(self.head_dim)
        if causal:
            mask = F.causal_mask(q.shape[-2], k.shape[-2], device=q.device)
        if mask is not None:
            scores = scores + _added(mask, q)
        return nm.softmax(scores)

    def extra_repr(self) -> str:
        groups = "" if self.num_kv_heads == self.num_heads else f", {self.num_kv_heads} for keys"
        return f"{self.embed_dim}, {self.num_heads} heads{groups}"


def _look(mask: Tensor, added: int) -> Tensor:
    """PyTorch's mask (true: do not look) as one that is true where to look; added keys are seen."""
    if added:
        mask = nm.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, added)])
    return ~mask if mask.dtype is nm.bool else mask


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to scores."""
    if mask.dtype is nm.bool:
        return nm.where(mask, nm.zeros((), dtype=like.dtype), -nm.inf)
    return mask.astype(like.dtype, copy=False)
