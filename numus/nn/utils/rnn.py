"""Sequences of several lengths: padded to one, or packed without the padding.

A packed sequence holds the elements of a batch step by step: first those of all sequences, longest
first, then those of all that have a second one, and so on. Recurrent layers take it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.tensor import Tensor

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence",
    "pad_packed_sequence", "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip

Array = np.ndarray[Any, Any]


class PackedSequence(NamedTuple):
    """A batch of sequences without padding; made by `pack_padded_sequence` and `pack_sequence`.

    `batch_sizes` says how many sequences have each step, `sorted_indices` where the sequences were
    before they were sorted by length, None if they were not.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    @property
    def device(self) -> nm.Device:
        return self.data.device

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The same elements in another dtype or on another device."""
        return self._replace(data=self.data.to(*args, **kwargs))

    def with_data(self, data: Tensor) -> PackedSequence:
        """Other elements, packed in the same way."""
        return self._replace(data=data)

    def sizes(self) -> Array:
        """How many sequences have each step, on the host."""
        return self.batch_sizes.numpy()

    def lengths(self) -> Array:
        """How many steps each sequence has, the longest first."""
        sizes = self.sizes()
        return (sizes[:, None] > np.arange(sizes[0])).sum(axis=0)

    def positions(self) -> tuple[Array, Array]:
        """The step and the sequence of each element."""
        sizes = self.sizes()
        steps = np.repeat(np.arange(len(sizes)), sizes)
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        return steps, np.arange(len(steps)) - starts

    def padded(self, length: int | None = None, value: float = 0.0) -> Tensor:
        """(length, batch, ...) with a value where sequences have ended, the longest first."""
        sizes = self.sizes()
        starts = np.cumsum(sizes) - sizes
        count = len(sizes) if length is None else length
        inside = np.arange(sizes[0]) < np.pad(sizes, (0, count - len(sizes)))[:, None]
        at = np.pad(starts, (0, count - len(sizes)))[:, None] + np.arange(sizes[0])
        rows = nm.take(self.data, np.where(inside, at, 0).ravel(), axis=0)
        shape = (count, int(sizes[0]), *self.data.shape[1:])
        mask = inside.reshape(*inside.shape, *([1] * (self.data.ndim - 1)))
        filling = nm.full((), value, dtype=self.data.dtype, device=self.data.device)
        return nm.where(nm.asarray(mask, device=self.data.device), rows.reshape(shape), filling)

    def packed(self, padded: Tensor) -> PackedSequence:
        """The elements of a padded batch, the longest sequence first."""
        steps, sequences = self.positions()
        flat = padded.reshape((-1, *padded.shape[2:]))
        return self.with_data(nm.take(flat, steps * padded.shape[1] + sequences, axis=0))


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Where each element has gone."""
    return None if permutation is None else nm.argsort(permutation)


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """The elements of sequences that were padded to one length: (length, batch, ...).

    Args:
        enforce_sorted: the lengths decrease; otherwise the sequences are sorted here.

    >>> from numus.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
    >>> x = nm.asarray([[1, 2, 3], [4, 0, 0]])
    >>> packed = pack_padded_sequence(x, [3, 1], batch_first=True)
    >>> packed.data.tolist(), packed.batch_sizes.tolist()
    ([1, 4, 2, 3], [2, 1, 1])
    >>> pad_packed_sequence(packed, batch_first=True)[0].tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    x = nm.asarray(input)
    x = nm.swapaxes(x, 0, 1) if batch_first else x
    known = np.asarray(lengths, np.int64)
    if known.shape != (x.shape[1],) or (known < 1).any() or (known > x.shape[0]).any():
        raise ShapeError(
            f"pack_padded_sequence: lengths {known.tolist()} are not one for each of {x.shape[1]} "
            f"sequences, between 1 and {x.shape[0]}"
        )
    order = None
    if not enforce_sorted:
        order = np.argsort(-known, kind="stable")
        known = known[order]
        x = nm.take(x, order, axis=1)
    elif (np.diff(known) > 0).any():
        raise ValueError(
            f"pack_padded_sequence: lengths {known.tolist()} do not decrease; sort the sequences, "
            "or give enforce_sorted=False"
        )
    sizes = (known > np.arange(known.max())[:, None]).sum(axis=1)
    chosen = None if order is None else nm.asarray(order, device=x.device)
    frame = PackedSequence(x, nm.asarray(sizes), chosen, invert_permutation(chosen))
    return frame.packed(x)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(length, batch, ...) again, in the old order, and the lengths."""
    lengths = sequence.lengths()
    if total_length is not None and total_length < len(sequence.sizes()):
        raise ValueError(
            f"pad_packed_sequence: total_length {total_length} is less than the longest sequence, "
            f"{len(sequence.sizes())}"
        )
    padded = sequence.padded(total_length, padding_value)
    if sequence.unsorted_indices is not None:
        back = sequence.unsorted_indices.numpy()
        padded = nm.take(padded, back, axis=1)
        lengths = lengths[back]
    return (nm.swapaxes(padded, 0, 1) if batch_first else padded), nm.asarray(lengths)


def pad_sequence(
    sequences: Sequence[Any],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences of several lengths as one tensor, filled up with a value.

    >>> from numus.nn.utils.rnn import pad_sequence
    >>> pad_sequence([nm.ones(3), nm.ones(1)], batch_first=True).tolist()
    [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    """
    if padding_side not in ("left", "right"):
        raise ValueError(f"pad_sequence: padding_side is left or right, not {padding_side!r}")
    arrays = [nm.asarray(s) for s in sequences]
    if not arrays or len({s.shape[1:] for s in arrays}) > 1:
        raise ShapeError(
            "pad_sequence: takes sequences whose elements have one shape, not "
            + (", ".join(str(s.shape) for s in arrays) or "none")
        )
    longest = max(s.shape[0] for s in arrays)
    rest = [(0, 0)] * (arrays[0].ndim - 1)
    rows = []
    for s in arrays:
        missing = longest - s.shape[0]
        around = (missing, 0) if padding_side == "left" else (0, missing)
        filling = int(padding_value) if s.dtype.is_integer else padding_value
        rows.append(nm.pad(s, [around, *rest], constant_values=filling))
    return nm.stack(rows, axis=0 if batch_first else 1)


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded batch, each of its own length."""
    x = nm.asarray(padded_sequences)
    x = x if batch_first else nm.swapaxes(x, 0, 1)
    return [x[i, : int(n)] for i, n in enumerate(np.asarray(lengths))]


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences of several lengths, packed."""
    lengths = [len(s) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch, each of its own length."""
    padded, lengths = pad_packed_sequence(packed_sequences)
    return unpad_sequence(padded, lengths)
