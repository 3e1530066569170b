"""Samplers: the order of a dataset's examples, and their batches.

Random ones are functions of a key and of the epoch: the same key gives the same epochs, on every
machine.
"""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

import numus as nm
from numus.nn.state import require
from numus.tensor import Tensor

__all__ = [
    "BatchSampler", "DistributedSampler", "RandomSampler", "Sampler", "SequentialSampler",
    "SubsetRandomSampler", "WeightedRandomSampler",
]  # fmt: skip


Array = np.ndarray[Any, Any]


class Sampler:
    """Positions in an order: define `__iter__`, and `__len__` where it is known."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not define __len__")


class SequentialSampler(Sampler):
    """One after the other."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Keyed(Sampler, ABC):
    """An order of its own for each epoch: `epoch` counts them, and can be set."""

    @abstractmethod
    def _order(self) -> Array:
        """All positions of the next epoch."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._order().tolist())

    def __init__(self, key: Tensor | None) -> None:
        self._key = nm.random.bits((2,)) if key is None else key
        nm.eval(self._key)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of an epoch."""
        self.epoch = epoch

    def _next_key(self) -> Tensor:
        key = nm.random.fold_in(self._key, self.epoch)
        self.epoch += 1
        return key

    def state_dict(self) -> dict[str, Any]:
        """The key, and the epoch that comes next."""
        return {"key": self._key.tolist(), "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: Any) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, "key", "epoch")
        key = nm.asarray(state_dict["key"], dtype=nm.uint32)
        epoch = operator.index(state_dict["epoch"])
        if key.shape != self._key.shape:
            raise ValueError(f"{type(self).__name__}.load_state_dict: no key: {key.tolist()}")

        def commit() -> None:
            self._key, self.epoch = key, epoch

        return commit


class RandomSampler(_Keyed):
    """All positions in random order.

    Args:
        replacement: draw each position anew, so that some come several times and others never.
        num_samples: how many to draw; as many as there are, unless it is given.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        *,
        key: Tensor | None = None,
    ) -> None:
        super().__init__(key)
        self.data_source = data_source
        self.replacement = replacement
        self.num_samples = num_samples

    def _order(self) -> Array:
        count, wanted, key = len(self.data_source), len(self), self._next_key()
        if count == 0:
            return np.empty(0, np.int64)
        if self.replacement:
            return nm.random.integers(0, count, (wanted,), key=key).numpy()
        keys = [nm.random.fold_in(key, i) for i in range(-(-wanted // count))]
        rounds = [nm.random.permutation(count, key=key).numpy() for key in keys]
        return np.concatenate([np.empty(0, np.int64), *rounds])[:wanted]

    def __len__(self) -> int:
        return len(self.data_source) if self.num_samples is None else self.num_samples


class SubsetRandomSampler(_Keyed):
    """Some positions in random order."""

    def __init__(self, indices: Sequence[int], *, key: Tensor | None = None) -> None:
        super().__init__(key)
        self.indices = list(indices)

    def _order(self) -> Array:
        order = nm.random.permutation(len(self.indices), key=self._next_key()).numpy()
        return np.asarray(self.indices, np.int64)[order]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Keyed):
    """Positions drawn with weights."""

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, *, key: Tensor | None = None
    ) -> None:
        super().__init__(key)
        self.weights = nm.asarray(weights, dtype=nm.float32)
        self.num_samples = num_samples
        self.replacement = replacement

    def _order(self) -> Array:
        count, size, key = self.weights.shape[0], (self.num_samples,), self._next_key()
        return nm.random.choice(count, size, self.replacement, self.weights, key=key).numpy()

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(_Keyed):
    """This process's share of all positions; the shares are of one size.

    Args:
        num_replicas, rank: how many processes there are, and which one this is; by default those of
            `nm.distributed`.
        drop_last: drop the remainder, instead of giving some positions twice.
    """

    def __init__(
        self,
        data_source: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        *,
        key: Tensor | None = None,
    ) -> None:
        if num_replicas is None:
            num_replicas = nm.distributed.world_size()
        if rank is None:
            rank = nm.distributed.rank()
        if not 0 <= rank < num_replicas:
            raise ValueError(f"DistributedSampler: rank {rank} is not one of {num_replicas}")
        # all processes have to shuffle alike
        super().__init__(nm.random.key(0) if key is None else key)
        self.data_source = data_source
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.drop_last = drop_last

    def _order(self) -> Array:
        count, key = len(self.data_source), self._next_key()
        order = nm.random.permutation(count, key=key).numpy() if self.shuffle else np.arange(count)
        return np.resize(order, len(self) * self.num_replicas)[self.rank :: self.num_replicas]

    def __len__(self) -> int:
        whole, rest = divmod(len(self.data_source), self.num_replicas)
        return whole + (rest > 0 and not self.drop_last)


class BatchSampler(Sampler):
    """A sampler's positions in lists of one size."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ValueError(f"BatchSampler: batch_size must be at least 1, not {batch_size}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        positions = iter(self.sampler)
        while batch := list(itertools.islice(positions, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def arrays(self) -> Iterator[Array]:
        """The same positions in arrays, without Python integers where possible."""
        given = type(self.sampler).__iter__
        order: Any
        if given is SequentialSampler.__iter__:
            order = np.arange(len(self.sampler))  # type: ignore[arg-type]
        elif given is _Keyed.__iter__:
            order = self.sampler._order()  # type: ignore[attr-defined]
        else:
            yield from (np.asarray(batch, np.int64) for batch in self)
            return
        stop = len(order) // self.batch_size * self.batch_size if self.drop_last else len(order)
        for start in range(0, stop, self.batch_size):
            yield order[start : start + self.batch_size]

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
