"""Beam search: the likeliest continuations are followed side by side.

At each step the best of all beams' next tokens are kept, twice as many as there are beams, so that
as many go on where half of them end. Texts that have ended are compared by log-probability over
their length to a power, and a row is done once no beam can overtake them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import numus as nm
from numus.models.generation.prompts import Ending, Prompts
from numus.models.generation.sampling import Sampler
from numus.models.generation.session import Session, session_of
from numus.models.language.base import Decoder
from numus.tensor import Tensor

__all__ = ["beam_search"]

Array = np.ndarray[Any, Any]


@dataclass
class _Row:
    """The beams of one prompt: their tokens and scores, and texts that have ended."""

    beams: int
    penalty: float
    running: list[tuple[float, list[int]]] = field(default_factory=list)
    ended: list[tuple[float, list[int]]] = field(default_factory=list)

    def advance(self, candidates: list[tuple[float, int, int]], eos: frozenset[int]) -> list[int]:
        """Take the best (score, beam, token); gives the beams that the new ones continue."""
        running: list[tuple[float, list[int]]] = []
        origins = []
        for rank, (score, beam, token) in enumerate(candidates):
            text = [*self.running[beam][1], token]
            if token in eos:
                if rank < self.beams:  # what would not have been kept does not end either
                    self.end(score, text)
            elif len(running) < self.beams:
                running.append((score, text))
                origins.append(beam)
        self.running = running
        return origins

    def end(self, score: float, text: list[int]) -> None:
        self.ended.append((score / len(text) ** self.penalty, text))
        self.ended.sort(key=lambda pair: -pair[0])
        del self.ended[self.beams :]

    @property
    def done(self) -> bool:
        if len(self.ended) < self.beams:
            return False
        best = max(score / len(text) ** self.penalty for score, text in self.running)
        return self.ended[-1][0] >= best

    def best(self) -> list[int]:
        if not self.done:
            for score, text in self.running:
                self.end(score, text)
        return self.ended[0][1]


@nm.jit(static_argnames="count")
def _candidates(scores: Tensor, so_far: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The best tokens over all beams of a row: scores (rows * beams, vocabulary)."""
    rows, beams = so_far.shape
    vocabulary = scores.shape[-1]
    total = scores.reshape(rows, beams, vocabulary) + so_far[..., None]
    best = nm.topk(total.reshape(rows, beams * vocabulary), count)
    return best.values, best.indices


def _expanded(x: Any, beams: int) -> Any:
    return None if x is None else nm.repeat(x, beams, axis=0)


def beam_search(
    model: Decoder,
    given: Prompts,
    beams: int,
    new_tokens: int,
    ending: Ending,
    penalty: float,
    sampler: Sampler,
    memory: Any,
    memory_mask: Any,
    cache: Any,
    chunk: int,
) -> Array:
    """The best continuation of each prompt, (rows, new tokens), padded after its end."""
    rows, padded = len(given.first), given.padded()
    vocabulary = model.config.vocab_size
    if 2 * beams > vocabulary:
        raise ValueError(f"generate: num_beams={beams} is too many for {vocabulary} tokens")
    length = padded.tokens.shape[1] + new_tokens
    session = session_of(model, rows * beams, length, sampler, cache, chunk)
    if memory is not None:
        memory = [(_expanded(k, beams), _expanded(v, beams)) for k, v in memory]
    session.begin(0, memory, _expanded(memory_mask, beams))
    tokens = np.repeat(padded.tokens, beams, axis=0)
    first = session._ints(np.repeat(padded.first, beams))
    # all beams of a row are alike at first: only one of them counts
    start = [0.0] + [-1e9] * (beams - 1)
    found = [_Row(beams, penalty, [(score, []) for score in start]) for _ in range(rows)]
    scores = session.prefill_scores(tokens, first)
    for number in range(new_tokens):
        origins = _advance(session, found, scores, ending)
        if number + 1 == new_tokens or all(row.done for row in found):
            break
        if not np.array_equal(origins, np.arange(rows * beams)):
            session.reorder(session._ints(origins))
        last = np.array([text[-1] for row in found for _, text in row.running])
        scores = session.scores(last[:, None], padded.tokens.shape[1] + number, first)[:, -1]
    texts = [row.best() for row in found]
    out = np.full((rows, max(map(len, texts))), ending.pad, np.int64)
    for at, text in enumerate(texts):
        out[at, : len(text)] = text
    return out


def _advance(session: Session, found: list[_Row], scores: Tensor, ending: Ending) -> Array:
    """One more token of each beam; gives the rows of the cache that beams continue."""
    beams = found[0].beams
    so_far = np.array([[score for score, _ in row.running] for row in found], np.float32)
    logs = session.sampler.penalized(nm.log_softmax(scores, axis=-1), session.used)
    so_far_there = nm.asarray(so_far, device=session.device)
    best, where = _candidates(logs, so_far_there, count=2 * beams)
    values, places = np.asarray(best), np.asarray(where)
    vocabulary = scores.shape[-1]
    origins: list[int] = []
    for number, row in enumerate(found):
        if row.done:  # its beams stay as they are
            origins += range(number * beams, (number + 1) * beams)
            continue
        candidates = [
            (float(value), int(place) // vocabulary, int(place) % vocabulary)
            for value, place in zip(values[number], places[number], strict=True)
        ]
        own = row.advance(candidates, ending.eos)
        origins += [number * beams + beam for beam in own]
    return np.array(origins)
