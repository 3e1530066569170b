"""Tokens in record files (.rrec), and a dataset that streams blocks of one length from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.data import IterableDataset, RecordDataset, RecordWriter, get_worker_info
from numus.tensor import Tensor
from numus.text.bpe import Tokenizer
from numus.text.packing import Array, stream_blocks

__all__ = ["TextDataset", "write_token_records"]


def write_token_records(
    path: str | Path, documents: Iterable[str | Sequence[int]], tokenizer: Tokenizer | None = None
) -> int:
    """Write a record of tokens for each document (texts need a tokenizer); how many tokens.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/train.rrec"
    >>> nm.text.write_token_records(path, [[1, 2, 3], [4, 5]])
    5
    """
    total = 0
    with RecordWriter.create(path) as writer:
        for document in documents:
            if isinstance(document, str):
                if tokenizer is None:
                    raise ValueError("write_token_records: documents of text need a tokenizer")
                document = tokenizer.encode(document)
            tokens = np.asarray(document, np.int64)
            if tokens.ndim != 1 or (tokens.size and tokens.min() < 0):
                raise ValueError(
                    f"write_token_records: a document is a row of tokens, not shape {tokens.shape}"
                )
            narrow = np.uint16 if tokens.size == 0 or tokens.max() < 1 << 16 else np.uint32
            writer.write_record(tokens.astype(narrow))
            total += len(tokens)
    return total


class TextDataset(IterableDataset):
    """Blocks of `length` tokens from record files, streamed: documents one after the other, in an
    order that the key and the epoch give, with a separator after each.

    Workers read documents of their own; what is left at their ends is dropped.

    Args:
        separator: a token after each document.
        key: shuffles documents, anew in each epoch (`set_epoch`); without it they keep their order.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/train.rrec"
    >>> _ = nm.text.write_token_records(path, [[1, 2, 3], [4, 5]])
    >>> [block.tolist() for block in nm.text.TextDataset(path, 2)]
    [[1, 2], [3, 4]]
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        length: int,
        *,
        separator: int | None = None,
        key: Tensor | None = None,
    ) -> None:
        listed = [paths] if isinstance(paths, (str, Path)) else list(paths)
        self.files = [RecordDataset.open(path) for path in listed]
        self.length, self.separator, self.epoch = length, separator, 0
        self._key = None if key is None else np.asarray(key.to_device("cpu"))

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as in an epoch."""
        self.epoch = epoch

    def _order(self) -> Array:
        """(file, record) of all documents."""
        counts = [len(file) for file in self.files]
        numbers = [np.column_stack([np.full(n, i), np.arange(n)]) for i, n in enumerate(counts)]
        every = np.concatenate(numbers)
        if self._key is not None and len(every):
            key = nm.random.fold_in(nm.asarray(self._key), self.epoch)
            every = every[np.asarray(nm.random.permutation(len(every), key=key))]
        info = get_worker_info()
        return every if info is None else every[info.id :: info.num_workers]

    def _documents(self) -> Iterator[Any]:
        for file, record in self._order().tolist():
            yield self.files[file][record]

    def __iter__(self) -> Iterator[Array]:
        return stream_blocks(self._documents(), self.length, self.separator)
