"""Speculative decoding (Leviathan et al. 2023): tokens are guessed, and checked in one pass.

Guesses come from a smaller model, or from what followed the latest tokens earlier in the text
(prompt lookup). The model then chooses its own token at each guessed place, with the draws that it
would use there anyway; guesses count up to the first that differs. So tokens are those of decoding
without guesses, greedy or sampled: a step reads the weights once for all that were right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from numus.models.generation.prompts import Prompts
from numus.models.generation.session import Chosen, Session
from numus.tensor import Tensor

__all__ = ["NGrams", "speculate"]

Array = np.ndarray[Any, Any]
_MAX_MATCH_TOKENS = 3  # tokens that are looked up


class NGrams:
    """Guesses what followed the latest tokens when they last came up."""

    def __init__(self, guesses: int) -> None:
        self.guesses = guesses

    def begin(self, given: Prompts) -> None:
        """Take the prompt."""

    def guess(self, text: list[int]) -> list[int]:
        """Tokens that may follow a text."""
        for size in range(min(_MAX_MATCH_TOKENS, len(text) - 1), 0, -1):
            tail = text[-size:]
            for at in range(len(text) - size - 1, -1, -1):
                if text[at : at + size] == tail:
                    return text[at + size : at + size + self.guesses]
        return []


class DraftModel:
    """Guesses what a smaller model chooses, with the same draws."""

    def __init__(self, session: Session, guesses: int) -> None:
        self.session, self.guesses = session, guesses

    def begin(self, given: Prompts) -> None:
        """Read the prompt; the first token is the large model's to choose."""
        self.first: Tensor = self.session._ints(given.first)
        self.offset = int(given.first[0])
        self.prompt = given.tokens.shape[1]
        self.session.prefill(given.tokens, given.first)
        self.held = self.prompt  # slots that hold tokens of the text
        self.fed: list[int] = []  # guesses in the slots after those

    def guess(self, text: list[int]) -> list[int]:
        """Tokens that may follow a text."""
        s, end = self.session, self.offset + len(text)
        while self.fed and end - self.held > 1 and self.fed[0] == text[self.held - end]:
            del self.fed[0]  # a guess that was right
            self.held += 1
        fresh = text[self.held - end :]  # what the model has chosen since
        number = end - self.prompt
        slots = np.arange(self.held, end)
        state = Chosen(s._ints([fresh]), s._ints(slots), s._ints(np.asarray(number)))
        found = []
        for _ in range(self.guesses):
            state = s.step(state, self.first, end)
            found.append(int(np.asarray(state.tokens)[0, 0]))
            end += 1
        self.held = end - self.guesses  # guesses may be wrong: their slots are written again
        self.fed = found[:-1]
        return found


def speculate(
    session: Session, source: NGrams | DraftModel, given: Prompts, count: int
) -> Iterator[Array]:
    """The tokens of a single text, as plain decoding chooses them."""
    source.begin(given)
    first = session._ints(given.first)
    text = given.tokens[0, int(given.first[0]) :].tolist()
    at, number = given.tokens.shape[1], 0
    state = session.prefill(given.tokens, given.first)
    fresh = [int(np.asarray(state.tokens)[0, 0])]
    while True:
        for token in fresh:
            text.append(token)
            number += 1
            yield np.array([token])
            if number == count:
                return
        guesses = source.guess(text)[: count - number - 1] if count - number > 1 else []
        given_now = [text[-1], *guesses]
        chosen = np.asarray(session.verify(given_now, at, number, first))[0].tolist()
        right = 0
        while right < len(guesses) and guesses[right] == chosen[right]:
            right += 1
        fresh = chosen[: right + 1]
        at += len(fresh)
