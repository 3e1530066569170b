"""Prompts as rows that end together, and when their continuations are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numus.errors import ShapeError
from numus.tensor import Tensor

__all__ = ["Ending", "Prompts"]

Array = np.ndarray[Any, Any]


@dataclass
class Prompts:
    """Token ids, aligned at their ends: row i begins at `first[i]`."""

    tokens: Array
    first: Array

    @classmethod
    def of(cls, given: Any, mask: Any, pad: int) -> Prompts:
        if isinstance(given, Tensor | np.ndarray):
            array = np.atleast_2d(np.asarray(given))
            kept = np.ones(array.shape, bool) if mask is None else np.asarray(mask) != 0
            if kept.shape != array.shape:
                raise ShapeError(
                    f"generate: attention_mask of shape {kept.shape} for tokens of {array.shape}"
                )
            rows = [row[k] for row, k in zip(array, kept, strict=True)]
            if mask is not None:  # as wide as they were given
                return cls._aligned(rows, array.shape[1], pad)
        else:
            rows = [np.asarray(row) for row in _rows(given)]
        return cls._aligned(rows, max(map(len, rows), default=0), pad)

    @classmethod
    def _aligned(cls, rows: list[Array], width: int, pad: int) -> Prompts:
        wrong = [r for r in rows if not len(r) or r.ndim != 1 or r.dtype.kind not in "iu"]
        if not rows or wrong:
            raise ShapeError(
                "generate: takes token ids (rows, length), or a list of lists of them, with at "
                f"least one token in each; got {wrong[0] if wrong else rows!r}"
            )
        tokens = np.full((len(rows), width), pad, np.int64)
        for at, row in enumerate(rows):
            tokens[at, width - len(row) :] = row
        return cls(tokens, width - np.array([len(r) for r in rows]))

    def padded(self) -> Prompts:
        """Longer by some slots at the beginning, so that few lengths have to be traced."""
        width = self.tokens.shape[1]
        unit = 1 if width == 1 else 8 if width <= 64 else 64
        short = -width % unit
        tokens = np.pad(self.tokens, ((0, 0), (short, 0)))
        return Prompts(tokens, self.first + short)


def _rows(given: Any) -> list[Any]:
    rows = list(given)
    return [rows] if rows and not np.ndim(rows[0]) else rows


@dataclass
class Ending:
    """When rows are done: after a token, or once a text has come up."""

    eos: frozenset[int]
    pad: int
    stop: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None
    done: Array = field(default_factory=lambda: np.zeros(0, bool))
    _texts: list[list[int]] = field(default_factory=list)

    def begin(self, rows: int) -> None:
        self.done = np.zeros(rows, bool)
        self._texts = [[] for _ in range(rows)]

    def take(self, tokens: Array) -> Array:
        """A chosen token of each row, padding where the row was done; marks rows as done."""
        tokens = np.where(self.done, self.pad, tokens)
        for row, token in enumerate(tokens.tolist()):
            if self.done[row]:
                continue
            self.done[row] = token in self.eos
            if self.stop and self.decode is not None:
                self._texts[row].append(token)
                # a stop string ends in the newest token, so the last few hold it
                tail = self.decode(self._texts[row][-self._tail :])
                self.done[row] |= any(text in tail for text in self.stop)
        return tokens

    @property
    def _tail(self) -> int:
        return max(len(text.encode()) for text in self.stop) + 4
