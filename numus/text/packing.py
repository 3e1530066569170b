"""Documents of tokens in rows of one length, masked language modelling, perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.nn.functional import cross_entropy
from numus.tensor import ArrayLike, Tensor

__all__ = ["Masked", "Packed", "mask_tokens", "pack", "perplexity", "stream_blocks"]

Array = np.ndarray[Any, Any]


class Packed(NamedTuple):
    """Rows (rows, length): tokens, the number of the document in its row from 1 on (0: padding),
    and the position of each token in its document."""

    tokens: Array
    segments: Array
    positions: Array


def pack(documents: Iterable[Sequence[int]], length: int, pad: int = 0) -> Packed:
    """Whole documents side by side in rows, each in the first row with room (longest first);
    longer ones are cut into pieces.

    >>> packed = nm.text.pack([[1, 2, 3], [4, 5], [6]], 4)
    >>> packed.tokens.tolist(), packed.segments.tolist()
    ([[1, 2, 3, 6], [4, 5, 0, 0]], [[1, 1, 1, 2], [1, 1, 0, 0]])
    """
    if length < 1:
        raise ValueError(f"pack: length must be positive, not {length}")
    pieces: list[Array] = []
    for document in documents:
        tokens = np.asarray(document, np.int64)
        pieces += [tokens[i : i + length] for i in range(0, len(tokens), length)]
    rows: list[list[Array]] = []
    by_room: dict[int, list[int]] = {}  # rows by how much room they have
    for piece in sorted(pieces, key=len, reverse=True):
        best = min((r for r in by_room if r >= len(piece) and by_room[r]), default=None)
        if best is None:
            rows.append([])
            at, best = len(rows) - 1, length
        else:
            at = by_room[best].pop(0)
        rows[at].append(piece)
        by_room.setdefault(best - len(piece), []).append(at)
    tokens = np.full((len(rows), length), pad, np.int64)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    for i, row in enumerate(rows):
        start = 0
        for k, piece in enumerate(row):
            place = slice(start, start + len(piece))
            tokens[i, place], segments[i, place] = piece, k + 1
            positions[i, place] = np.arange(len(piece))
            start += len(piece)
    return Packed(tokens, segments, positions)


def stream_blocks(
    documents: Iterable[Sequence[int]], length: int, separator: int | None = None
) -> Iterator[Array]:
    """Documents one after the other, a separator after each, cut into blocks; the rest is dropped.

    >>> [b.tolist() for b in nm.text.stream_blocks([[1, 2, 3], [4, 5]], 3, separator=0)]
    [[1, 2, 3], [0, 4, 5]]
    """
    if length < 1:
        raise ValueError(f"stream_blocks: length must be positive, not {length}")
    waiting: list[Array] = []
    size = 0
    end = np.asarray([] if separator is None else [separator], np.int64)
    for document in documents:
        waiting += [np.asarray(document, np.int64), end]
        size += len(waiting[-2]) + len(end)
        if size >= length:
            joined = np.concatenate(waiting)
            whole = size // length * length
            yield from joined[:whole].reshape(-1, length)
            waiting, size = [joined[whole:]], size - whole


class Masked(NamedTuple):
    """What a masked language model sees, and what it should say (`ignore_index` elsewhere)."""

    tokens: Tensor
    labels: Tensor


def mask_tokens(
    tokens: ArrayLike,
    mask_token: int,
    vocab_size: int,
    p: float = 0.15,
    *,
    special_tokens: Sequence[int] = (),
    ignore_index: int = -100,
    key: Tensor | None = None,
) -> Masked:
    """Masked language modelling (BERT): of each token chosen with probability p, 80 % become the
    mask, 10 % another token, 10 % stay.

    Args:
        special_tokens: tokens that are never chosen, such as padding.

    >>> tokens = nm.asarray([[5, 6, 7, 0]])
    >>> masked = nm.text.mask_tokens(tokens, 1, 10, 1.0, special_tokens=[0], key=nm.random.key(0))
    >>> masked.labels.tolist()
    [[5, 6, 7, -100]]
    """
    x = nm.asarray(tokens)
    if not nm.isdtype(x.dtype, "integral"):
        raise TypeError(f"mask_tokens: tokens must be integers, not {x.dtype.name}")
    keys: Any = [None] * 3
    if key is not None:
        split = nm.random.split(key, 3)
        keys = [split[i] for i in range(3)]
    chosen, kind = (nm.random.uniform(x.shape, device=x.device, key=k) for k in keys[:2])
    picked = chosen < p
    for special in special_tokens:
        picked = picked & (x != special)
    other = nm.random.integers(0, vocab_size, x.shape, dtype=x.dtype, device=x.device, key=keys[2])
    seen = nm.where(kind < 0.8, mask_token, nm.where(kind < 0.9, other, x)).astype(x.dtype)
    return Masked(nm.where(picked, seen, x), nm.where(picked, x, ignore_index))


def perplexity(logits: ArrayLike, targets: ArrayLike, *, ignore_index: int = -100) -> Tensor:
    """exp of the mean negative log-likelihood of tokens under logits (…, vocabulary).

    >>> round(nm.text.perplexity(nm.zeros((1, 3, 8)), nm.asarray([[1, 2, 3]])).item(), 4)
    8.0
    """
    x = nm.asarray(logits)
    wanted = nm.asarray(targets, device=x.device)
    if x.shape[:-1] != wanted.shape:
        raise ShapeError(f"perplexity: logits of {x.shape} for targets of {wanted.shape}")
    flat = nm.reshape(x, (-1, x.shape[-1]))
    return nm.exp(cross_entropy(flat, nm.reshape(wanted, (-1,)), ignore_index=ignore_index))
