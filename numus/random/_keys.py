"""PRNG keys (Threefry-2x32) and the process-wide generator that derives them."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError, TracingError
from numus.evaluation.evaluate import from_host
from numus.functions._base import node_of, wrap
from numus.graph import Node, current_trace, mode
from numus.primitives import elementwise as ew
from numus.primitives.random.bits import threefry
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.primitives.views import reshape, take_range
from numus.runtime.devices import device as find_device
from numus.shapes import as_int, as_shape, size_of
from numus.tensor import Tensor

Words = tuple[Node, Node]

_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """The primitive `threefry` on Python integers: the generator's keys are made on the host."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x0, x1 = (counter[0] + key[0]) & _MASK, (counter[1] + key[1]) & _MASK
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            x0 = (x0 + x1) & _MASK
            x1 = ((x1 << r | x1 >> (32 - r)) & _MASK) ^ x0
        x0 = (x0 + keys[(block + 1) % 3]) & _MASK
        x1 = (x1 + keys[(block + 2) % 3] + block + 1) & _MASK
    return x0, x1


def _seed_words(seed: Any) -> tuple[int, int]:
    number = as_int(seed, "seed", "seed")
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"seed must fit 64 bits, but is {number}")
    return (number >> 32) & _MASK, number & _MASK


class _Generator:
    """A seed and the number of keys derived from it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.words = _seed_words(int.from_bytes(os.urandom(8), "little"))
        self.taken = 0

    def next(self) -> tuple[int, int]:
        with self.lock:
            words, taken = self.words, self.taken
            self.taken = taken + 1
        return _threefry(words, ((taken >> 32) & _MASK, taken & _MASK))

    def give_back(self, count: int) -> None:
        """Undo the last `count` draws."""
        with self.lock:
            self.taken -= count


_generator = _Generator()


def _require_no_trace(what: str) -> None:
    trace = current_trace()
    if trace is not None:
        raise TracingError(
            f"random.{what} inside {trace}: a traced function draws from the generator as each "
            "call finds it; call this outside, or hand a key (nm.random.key) to the draws"
        )


def seed(seed: int) -> None:
    """Start the generator anew: the same draws follow the same seed.

    >>> nm.random.seed(3)
    >>> a = nm.random.uniform((2,))
    >>> nm.random.seed(3)
    >>> a.tolist() == nm.random.uniform((2,)).tolist()
    True
    """
    set_state((*_seed_words(seed), 0))


def get_state() -> tuple[int, int, int]:
    """The generator's state: the two words of its key, and how many draws it has given."""
    _require_no_trace("get_state")
    with _generator.lock:
        return (*_generator.words, _generator.taken)


def set_state(state: tuple[int, int, int]) -> None:
    """Put the generator back to what `get_state` gave."""
    _require_no_trace("seed and set_state")
    high, low, taken = (as_int(n, "state", "set_state") for n in state)
    with _generator.lock:
        _generator.words, _generator.taken = (high & _MASK, low & _MASK), taken


def key(seed: int, *, device: Any = None) -> Tensor:
    """The key of a seed of 64 bits: its high and its low word.

    >>> nm.random.key(7).tolist()
    [0, 7]
    """
    words = np.array(_seed_words(seed), np.uint32)
    return wrap(from_host(words, dt.uint32, find_device(device)))


def key_words(op: str, key: Any) -> Words:
    """The two words of a key; by default of the generator's next one."""
    if key is None:
        trace = current_trace()
        if trace is None:
            first, second = _generator.next()
            words = constant(first, dt.uint32), constant(second, dt.uint32)
        else:
            words = trace.draws(_generator)
        return words if mode.effects is None else mode.effects.draws(words)
    node = node_of(key, op)
    if node.dtype is not dt.uint32 or node.shape != (2,):
        raise ShapeError(
            f"{op}: key must be uint32 of shape (2,), not {node.dtype.name} of {node.shape}; "
            "make one with nm.random.key(seed)"
        )
    return reshape(take_range(node, 0, 0, 1), ()), reshape(take_range(node, 0, 1, 2), ())


def _as_keys(words: Words) -> Tensor:
    return wrap(concat(tuple(reshape(w, (*w.shape, 1)) for w in words), words[0].ndim))


def split(key: Any, n: int | tuple[int, ...] = 2) -> Tensor:
    """n new keys from one, as a tensor of shape (n, 2). The old key should not be used again."""
    shape = as_shape(n, "split")
    node = node_of(key, "split")
    counter = iota(size_of(shape), dt.uint32, node.device)
    words = threefry(*key_words("split", key), constant(0, dt.uint32), reshape(counter, shape))
    return _as_keys(words)


def fold_in(key: Any, data: int | Tensor) -> Tensor:
    """A new key from a key and a number of 32 bits: a step, a rank, a layer's index."""
    if isinstance(data, Tensor):
        number = node_of(data, "fold_in")
        if number.shape != () or not number.dtype.is_integer:
            raise ShapeError(
                f"fold_in: data must be one integer, not {number.dtype.name} of {number.shape}"
            )
        number = ew.cast(number, dt.uint32)
    else:
        number = constant(as_int(data, "data", "fold_in") & _MASK, dt.uint32)
    words = threefry(*key_words("fold_in", key), constant(0, dt.uint32), number)
    return _as_keys(words)
