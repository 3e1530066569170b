"""Byte-pair encoding (Sennrich et al. 2015) of bytes, as in GPT-2.

Training keeps the count of every pair of neighbours and the words that have it: a merge changes
only those words, and a heap whose entries may be out of date gives the next pair.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from numus.files import atomically, open_regular
from numus.text.pretokenization import byte_letters, letter_bytes, words

__all__ = ["Tokenizer", "train_bpe"]

Pair = tuple[int, int]
CACHED_WORDS = 1 << 16


class Tokenizer:
    """Text to tokens and back.

    Args:
        tokens: the bytes of each token, by number; all 256 single bytes must be there.
        merges: pairs of tokens, the ones to be merged first at the front.
        special_tokens: texts that are tokens of their own, such as "<|endoftext|>", by number.

    >>> tokenizer = nm.text.train_bpe(["low lower lowest"], 258)
    >>> tokens = tokenizer.encode("lower")
    >>> len(tokens), tokenizer.decode(tokens)
    (3, 'lower')
    """

    def __init__(
        self,
        tokens: Mapping[int, bytes] | Sequence[bytes],
        merges: Sequence[Pair],
        special_tokens: Mapping[str, int] | None = None,
    ) -> None:
        items = tokens.items() if isinstance(tokens, Mapping) else enumerate(tokens)
        self.tokens: dict[int, bytes] = dict(items)
        numbers = {text: number for number, text in self.tokens.items()}
        missing = [b for b in range(256) if bytes([b]) not in numbers]
        if missing:
            raise ValueError(
                f"Tokenizer: {len(missing)} of the 256 bytes have no token, so that not every text "
                f"can be written; the first is {missing[0]}"
            )
        self.merges = list(merges)
        self.special_tokens = dict(special_tokens or {})
        self._bytes = [numbers[bytes([b])] for b in range(256)]
        self._merged: dict[Pair, tuple[int, int]] = {}
        for rank, (a, b) in enumerate(self.merges):
            whole = self.tokens.get(a, b"") + self.tokens.get(b, b"")
            if a not in self.tokens or b not in self.tokens or whole not in numbers:
                raise ValueError(
                    f"Tokenizer: merge {rank} of {(a, b)} makes no token that is there"
                )
            self._merged.setdefault((a, b), (rank, numbers[whole]))
        self._names = {number: text for text, number in self.special_tokens.items()}
        parts = sorted(map(re.escape, self.special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(parts)) if parts else None
        self._word = functools.lru_cache(maxsize=CACHED_WORDS)(self._encoded)

    def __len__(self) -> int:
        return max([*self.tokens, *self._names]) + 1

    def __getstate__(self) -> dict[str, Any]:  # a worker process has a cache of its own
        return {"tokens": self.tokens, "merges": self.merges, "special_tokens": self.special_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text.

        Args:
            special: whether special tokens in the text count as such, or as plain text.
        """
        found: list[int] = []
        at = 0
        for match in self._special.finditer(text) if special and self._special else ():
            self._extend(found, text[at : match.start()])
            found.append(self.special_tokens[match[0]])
            at = match.end()
        self._extend(found, text[at:])
        return found

    def _extend(self, found: list[int], text: str) -> None:
        for word in words(text):
            found.extend(self._word(word))

    def _encoded(self, word: str) -> tuple[int, ...]:
        """The tokens of a word: again and again, all of the pair that was merged first."""
        parts = [self._bytes[b] for b in word.encode("utf-8", "surrogatepass")]
        merged = self._merged
        while len(parts) > 1:
            ranked = [(merged[p], p) for p in set(itertools.pairwise(parts)) if p in merged]
            if not ranked:
                break
            (_, number), pair = min(ranked)
            parts = _replaced(parts, pair, number)
        return tuple(parts)

    def decode(self, tokens: Iterable[int], *, errors: str = "replace") -> str:
        """The text of tokens; `errors` is what becomes of bytes that are no UTF-8."""
        text: list[str] = []
        waiting = bytearray()
        for token in tokens:
            number = int(token)
            if number in self._names:
                text += [waiting.decode("utf-8", errors), self._names[number]]
                waiting.clear()
            elif number in self.tokens:
                waiting += self.tokens[number]
            else:
                raise ValueError(f"Tokenizer: there is no token {number}, of {len(self)}")
        return "".join([*text, waiting.decode("utf-8", errors)])

    # -- files ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, which the `tokenizers` package reads as well."""
        letters = byte_letters()
        name = {n: "".join(letters[b] for b in text) for n, text in self.tokens.items()}
        added = [
            {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for text, number in self.special_tokens.items()
        ]  # fmt: skip
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        contents = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": level | {"use_regex": True},
            "post_processor": None, "decoder": level | {"use_regex": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "vocab": {text: number for number, text in sorted(name.items())},
                "merges": [[name[a], name[b]] for a, b in self.merges],
            },
        }  # fmt: skip
        encoded = json.dumps(contents, ensure_ascii=False, indent=1).encode()
        atomically(Path(path), lambda file: file.write(encoded))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A tokenizer.json of byte-level BPE, with GPT-2's words."""
        with open_regular(path) as file:
            contents = file.read()
        try:
            given = json.loads(contents)
            model = given["model"]
            _require_known(path, given, model)
            bytes_of = letter_bytes()
            added = {str(t["content"]): int(t["id"]) for t in given.get("added_tokens") or ()}
            vocabulary = {str(k): int(v) for k, v in model["vocab"].items() if k not in added}
            tokens = {n: bytes(bytes_of[c] for c in text) for text, n in vocabulary.items()}
            pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
            merges = [(vocabulary[a], vocabulary[b]) for a, b in pairs]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, _UnknownFormatError):
                raise
            raise ValueError(
                f"{path} is not a tokenizer.json of byte-level BPE: {error!r}"
            ) from None
        return cls(tokens, merges, added)


class _UnknownFormatError(ValueError):
    """A tokenizer of another kind."""


def _require_known(path: Any, given: Any, model: Any) -> None:
    steps = given.get("pre_tokenizer") or {}
    level = steps.get("type") == "ByteLevel" and steps.get("use_regex", True)
    if model.get("type", "BPE") != "BPE" or not level or given.get("normalizer"):
        raise _UnknownFormatError(
            f"{path}: a {model.get('type')} model with the pre-tokenizer {steps.get('type')!r} is "
            "not read here, byte-level BPE is; the tokenizers package reads the others"
        )
    if steps.get("add_prefix_space"):
        raise _UnknownFormatError(f"{path}: add_prefix_space is not supported")


def _replaced(parts: list[int], pair: Pair, number: int) -> list[int]:
    """All neighbours that are a pair, from the left on, as one token."""
    first, second = pair
    made: list[int] = []
    at, last = 0, len(parts) - 1
    while at <= last:
        if at < last and parts[at] == first and parts[at + 1] == second:
            made.append(number)
            at += 2
        else:
            made.append(parts[at])
            at += 1
    return made


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    min_frequency: int = 2,
) -> Tokenizer:
    """A tokenizer trained on texts: pairs that occur most often are merged, ties by number.

    Args:
        vocab_size: tokens in all: 256 bytes, special tokens and merges.
        min_frequency: how often a pair has to occur to be merged.

    >>> tokenizer = nm.text.train_bpe(["low lower lowest"], 258)
    >>> [tokenizer.tokens[n] for n in (256, 257)]
    [b'lo', b'low']
    """
    wanted = vocab_size - 256 - len(special_tokens)
    if wanted < 0:
        raise ValueError(
            f"train_bpe: vocab_size={vocab_size} is less than 256 bytes and {len(special_tokens)} "
            "special tokens"
        )
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(words(text))
    # GPT-2's order of bytes: first those that are printable
    order = sorted(range(256), key=lambda b: byte_letters()[b])
    number = {b: n for n, b in enumerate(order)}
    tokens = [bytes([b]) for b in order]
    parts = [[number[b] for b in w.encode("utf-8", "surrogatepass")] for w in counts]
    merges = _merges(parts, list(counts.values()), tokens, wanted, min_frequency)
    special = {text: len(tokens) + i for i, text in enumerate(special_tokens)}
    return Tokenizer(tokens, merges, special)


def _merges(
    parts: list[list[int]], counts: list[int], tokens: list[bytes], wanted: int, least: int
) -> list[Pair]:
    """The merges of words with their counts; new tokens are added to `tokens`."""
    totals: dict[Pair, int] = collections.defaultdict(int)
    where: dict[Pair, set[int]] = collections.defaultdict(set)
    for w, (word, count) in enumerate(zip(parts, counts, strict=True)):
        for pair in itertools.pairwise(word):
            totals[pair] += count
            where[pair].add(w)
    heap = [(-count, pair) for pair, count in totals.items()]
    heapq.heapify(heap)
    known = set(tokens)
    merges: list[Pair] = []
    while heap and len(merges) < wanted:
        count, pair = heapq.heappop(heap)
        now = totals.get(pair, 0)
        if -count != now:  # out of date
            if now >= least:
                heapq.heappush(heap, (-now, pair))
            continue
        if now < least:
            break
        text = tokens[pair[0]] + tokens[pair[1]]
        if text in known:  # the same text by other merges has a token already
            del totals[pair]
            continue
        known.add(text)
        merges.append(pair)
        tokens.append(text)
        changed = _merge_words(parts, counts, pair, len(tokens) - 1, totals, where)
        for other in changed:
            if totals[other] >= least:
                heapq.heappush(heap, (-totals[other], other))
    return merges


def _merge_words(
    parts: list[list[int]],
    counts: list[int],
    pair: Pair,
    number: int,
    totals: dict[Pair, int],
    where: dict[Pair, set[int]],
) -> set[Pair]:
    """Merge a pair in all words that have it; the pairs that there are more of."""
    changed: set[Pair] = set()
    for w in where.pop(pair, ()):
        old, count = parts[w], counts[w]
        for p in itertools.pairwise(old):
            totals[p] -= count
        new = parts[w] = _replaced(old, pair, number)
        for p in itertools.pairwise(new):
            totals[p] += count
            if number in p:
                where[p].add(w)
                changed.add(p)
    totals.pop(pair, None)
    return changed
