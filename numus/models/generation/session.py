"""Decoding sessions: a model, its cache, and the programs that run on them.

A step (embeddings, layers, cache, head, choice of a token) is one program of `nm.jit`, traced once
for a number of tokens and a number of keys, and replayed: it hands tokens and slots from one call
to the next, so that nothing comes to the host but the tokens that were chosen. Prompts are read in
chunks. Rows of a batch end at the same slot; shorter ones begin later (`first`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.models.generation.cache import KVCache
from numus.models.generation.sampling import Sampler
from numus.models.language.attention import Pass
from numus.models.language.base import Decoder
from numus.tensor import Tensor

__all__ = ["Session", "session_of"]

CHUNK = 512  # tokens of a prompt that are read at once
_MIN_KEYS = 128  # steps look at this many slots of a cache, or twice, four times … as many
_MAX_SESSIONS = 2  # of a model: each holds a cache
_Memory = list[tuple[Tensor, Tensor]] | None


class Chosen(NamedTuple):
    """What a step hands to the next: tokens (rows, 1), their slot (1,), how many were chosen."""

    tokens: Tensor
    slots: Tensor
    number: Tensor


class Session:
    """A model's cache for `rows` texts of up to `length` tokens, and its jitted programs."""

    def __init__(
        self,
        model: Decoder,
        rows: int,
        length: int,
        sampler: Sampler,
        cache_format: Any = None,
        chunk: int = CHUNK,
    ) -> None:
        self.model, self.sampler, self.length = model, sampler, length
        self.modules = tuple(model.modules())  # which the programs were traced with
        self.chunk = length if model.whole_prompts else min(chunk, length)
        self.device = model.device
        self.cache = KVCache(
            *(model.cache_specs(), rows, length, model.dtype, self.device),
            longest_pass=self.chunk,
            format=cache_format,
        )
        self.memory: _Memory = None
        self.memory_mask: Tensor | None = None
        self.used: Tensor | None = None
        if sampler.penalizes:
            shape = (rows, model.config.vocab_size)
            self.used = nm.zeros(shape, dtype=nm.bool, device=self.device)
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._reorder = nm.jit(self._reordered)

    def is_of(self, model: Decoder) -> bool:
        """True if it was made for this model, and no layer has been swapped since."""
        now = tuple(model.modules())
        same = self.model is model and len(now) == len(self.modules)
        return same and all(a is b for a, b in zip(now, self.modules, strict=True))

    def _program(self, body: Callable[..., Any], end: int) -> Callable[..., Any]:
        """A program of tensors alone, by their places: such calls are native ones."""
        keys, reads = self.keys_for(end), self.memory is not None
        name = (body.__name__, keys, reads)
        if name not in self._programs:
            fixed = {"keys": keys} if reads else {"keys": keys, "memory": None, "mask": None}
            self._programs[name] = nm.jit(functools.partial(body, **fixed))
        return self._programs[name]

    @property
    def _encoded(self) -> tuple[Any, ...]:
        """An encoder's keys, values and mask, if there is one."""
        return () if self.memory is None else (self.memory, self.memory_mask)

    # -- programs ---------------------------------------------------------------------------------

    def _hidden(
        self, tokens: Tensor, slots: Tensor, first: Tensor, memory: _Memory, mask: Any, keys: int
    ) -> Tensor:
        positions = nm.maximum(slots - first[:, None], 0)
        seen = Pass(positions, None, self.cache, first, slots, keys, memory, mask)
        if self.used is not None:
            rows = nm.arange(tokens.shape[0], device=self.device)[:, None]
            there = slots >= first[:, None]
            old = self.used[rows, tokens]
            self.used[rows, tokens] = old | there
        return self.model.hidden(tokens, seen)

    def _absorbed(
        self, tokens: Tensor, slots: Tensor, first: Tensor, memory: _Memory, mask: Any, *, keys: int
    ) -> Tensor:
        return self._hidden(tokens, slots, first, memory, mask, keys)[:, -1, 0]

    def _scored(
        self, tokens: Tensor, slots: Tensor, first: Tensor, memory: _Memory, mask: Any, *, keys: int
    ) -> Tensor:
        """Scores of the token after each, (rows, length, vocabulary)."""
        scores = self.model.head(self._hidden(tokens, slots, first, memory, mask, keys))
        return scores.astype(nm.float32, copy=False)

    def _stepped(
        self,
        tokens: Tensor,
        slots: Tensor,
        number: Tensor,
        first: Tensor,
        key: Tensor,
        memory: _Memory,
        mask: Any,
        *,
        keys: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self._hidden(tokens, slots, first, memory, mask, keys)
        scores = self.model.head(hidden[:, -1:])[:, 0]
        chosen = self.sampler.choose(scores, key, number, self.used)
        after = slots[-1:] + 1
        return chosen.astype(tokens.dtype)[:, None], after, number + 1

    def _verified(
        self,
        tokens: Tensor,
        slots: Tensor,
        number: Tensor,
        first: Tensor,
        key: Tensor,
        memory: _Memory,
        mask: Any,
        *,
        keys: int,
    ) -> Tensor:
        """The token that is chosen after each, (rows, length)."""
        scores = self.model.head(self._hidden(tokens, slots, first, memory, mask, keys))
        chosen = [
            self.sampler.choose(scores[:, i], key, number + i, None) for i in range(tokens.shape[1])
        ]
        return nm.stack(chosen, axis=1)

    # -- calls ------------------------------------------------------------------------------------

    def keys_for(self, end: int) -> int:
        """How many slots a pass looks at that ends before slot `end`."""
        keys = _MIN_KEYS
        while keys < end:
            keys *= 2
        return min(keys, self.length)

    def begin(self, seed: int, memory: _Memory = None, memory_mask: Any = None) -> None:
        """Forget all tokens, and draw from a seed from now on."""
        self.key = nm.random.key(seed).to(self.device)
        self.memory, self.memory_mask = memory, memory_mask
        if self.used is not None:
            self.used.assign(nm.zeros_like(self.used))

    def prefill(self, tokens: np.ndarray[Any, Any], first: np.ndarray[Any, Any]) -> Chosen:
        """Read prompts (rows, length), which begin at `first`; gives the first chosen token."""
        at, starts = 0, self._ints(first)
        while tokens.shape[1] - at > self.chunk:
            self._run(self._absorbed, tokens[:, at : at + self.chunk], at, starts)
            at += self.chunk
        rest = tokens[:, at:]
        slots = self._ints(np.arange(at, at + rest.shape[1]))
        state = Chosen(self._ints(rest), slots, self._ints(np.asarray(0)))
        return self.step(state, starts, at + rest.shape[1])

    def step(self, state: Chosen, first: Tensor, end: int) -> Chosen:
        """One more token of each row; `end` is the slot after those of the state's tokens."""
        program = self._program(self._stepped, end)
        with nm.no_grad():
            return Chosen(*program(*state, first, self.key, *self._encoded))

    def scores(self, tokens: np.ndarray[Any, Any], at: int, first: Tensor) -> Tensor:
        """Scores after each of some tokens, the first of which goes to slot `at`."""
        scores: Tensor = self._run(self._scored, tokens, at, first)
        return scores

    def prefill_scores(self, tokens: np.ndarray[Any, Any], first: Tensor) -> Tensor:
        """Scores after prompts, (rows, vocabulary)."""
        at = 0
        while tokens.shape[1] - at > self.chunk:
            self._run(self._absorbed, tokens[:, at : at + self.chunk], at, first)
            at += self.chunk
        return self.scores(tokens[:, at:], at, first)[:, -1]

    def verify(self, tokens: list[int], at: int, number: int, first: Tensor) -> Tensor:
        """What is chosen after each of some tokens of a single text, from slot `at` on."""
        end = at + len(tokens)
        slots = self._ints(np.arange(at, end))
        given = (self._ints([tokens]), slots, self._ints(np.asarray(number)), first, self.key)
        with nm.no_grad():
            chosen: Tensor = self._program(self._verified, end)(*given, *self._encoded)
        return chosen

    def reorder(self, rows: Tensor) -> None:
        """Let each row continue another one."""
        self._reorder(rows)

    def _reordered(self, rows: Tensor) -> None:
        self.cache.reorder(rows)
        if self.used is not None:
            self.used.assign(nm.take(self.used, rows, axis=0))

    def _run(self, program: Any, tokens: np.ndarray[Any, Any], at: int, first: Tensor) -> Tensor:
        end = at + tokens.shape[1]
        given = (self._ints(tokens), self._ints(np.arange(at, end)), first)
        with nm.no_grad():
            found: Tensor = self._program(program, end)(*given, *self._encoded)
        return found

    def _ints(self, values: Any) -> Tensor:
        return nm.asarray(np.asarray(values, np.int32), device=self.device)


class _Sessions(dict[Any, Session]):
    """A model's latest sessions; a copy of the model has none."""

    def __deepcopy__(self, memo: Any) -> _Sessions:
        return _Sessions()

    def __reduce__(self) -> Any:
        return _Sessions, ()


def session_of(
    model: Decoder, rows: int, length: int, sampler: Sampler, cache_format: Any, chunk: int
) -> Session:
    """A session of these sizes: one that was there before, whose programs are compiled, or new."""
    held = model.__dict__.setdefault("_sessions", _Sessions())
    length = -(-length // 64) * 64
    format = None if cache_format is None else str(getattr(cache_format, "name", cache_format))
    key = (rows, sampler, format, chunk, str(model.device), model.dtype)
    found: Session | None = held.pop(key, None)
    if found is None or found.length < length or not found.is_of(model):
        found = Session(model, rows, length, sampler, cache_format, chunk)
    held[key] = found  # the last one is the latest
    while len(held) > _MAX_SESSIONS:
        held.pop(next(iter(held)))
    return found
