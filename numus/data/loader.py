"""DataLoader: batches of a dataset, in the order of a sampler, prefetched by workers."""

from __future__ import annotations

import functools
import itertools
import operator
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import numus as nm
from numus.config import MAX_THREADS
from numus.data.collate import as_tensors, stacked
from numus.data.datasets import IterableDataset, Subset
from numus.data.samplers import BatchSampler, RandomSampler, SequentialSampler
from numus.data.workers import KINDS, Crew, Exhausted, Job
from numus.nn.state import prepare, require
from numus.runtime.devices import default
from numus.tensor import Tensor

__all__ = ["DataLoader"]

_WORKER_MIN_SECONDS = 4e-4  # a batch that takes less is made sooner than a thread passes it on


class DataLoader:
    """Batches of a dataset.

    >>> from numus.data import DataLoader, TensorDataset
    >>> data = TensorDataset(nm.arange(5), nm.arange(5) * 10)
    >>> [x.tolist() for x, y in DataLoader(data, batch_size=2)]
    [[0, 1], [2, 3], [4]]

    Args:
        batch_size: None gives examples as they are.
        shuffle: another order at each epoch, drawn by `key`.
        sampler, batch_sampler: an order of your own, of examples or of batches.
        num_workers: how many workers make batches; 0: the caller itself.
        collate_fn: makes a batch of a list of examples.
        drop_last: leave out the last batch where it is not full.
        timeout: how many seconds to wait for a worker's batch, of a new process from its start on;
            0: as long as it takes. Past it a `TimeoutError` is raised and the workers are left.
        worker_init_fn: called with a worker's number when it starts.
        prefetch_factor: how many batches each worker makes ahead.
        persistent_workers: let the workers wait for the next epoch, instead of starting new ones.
        pin_memory: a hint that PyTorch has; copies to devices are staged in any case.
        worker_type: "thread", or "process" where examples are made in Python.
        device: where batches go; the next is on its way while one is used.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        *,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        worker_type: str = "thread",
        key: Tensor | None = None,
        device: Any = None,
    ) -> None:
        streamed = isinstance(dataset, IterableDataset)
        if not streamed and not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"DataLoader: {type(dataset).__name__} is no dataset: it takes something with "
                "__getitem__ and __len__, or an IterableDataset"
            )
        if streamed and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader: an iterable dataset has its own order, none can be given")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
            raise ValueError(
                "DataLoader: batch_sampler stands for batch_size, shuffle, sampler and drop_last"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: give a sampler or shuffle, not both")
        crowded = not 0 <= num_workers <= MAX_THREADS
        if worker_type not in KINDS or crowded or prefetch_factor < 1:
            raise ValueError(
                f"DataLoader: worker_type {worker_type!r} is one of {', '.join(KINDS)}, "
                f"num_workers {num_workers} from 0 to {MAX_THREADS}, prefetch_factor "
                f"{prefetch_factor} at least 1"
            )
        if not (timeout or 0) >= 0:
            raise ValueError(f"DataLoader: timeout is in seconds and at least 0, not {timeout}")
        self.dataset = dataset
        self.batch_size = None if batch_sampler is not None else batch_size
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.pin_memory = pin_memory
        self.worker_type = worker_type
        self.device = device
        self._crew: Crew | None = None  # idle until the next epoch
        self._streamed = streamed
        self._given = 0  # batches of the current epoch
        self._skip = 0  # batches of the next epoch that were given before
        if sampler is None and not streamed:
            sampler = RandomSampler(dataset, key=key) if shuffle else SequentialSampler(dataset)
        if batch_sampler is None and batch_size is not None and not streamed:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler

    def __len__(self) -> int:
        if self._streamed:
            raise TypeError("DataLoader: an iterable dataset does not tell how long it is")
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)

    # -- iteration --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        tasks: Iterator[Any] = itertools.repeat(None) if self._streamed else self._positions()
        self._given, self._skip = self._skip, 0
        tasks = itertools.islice(tasks, self._given, None)
        return self._counted(self._on_device(self._made(tasks)))

    def _positions(self) -> Iterator[Any]:
        """Of each example or of each batch: arrays, if the dataset has `get_batch`."""
        batches = self.batch_sampler
        if batches is None:
            return iter(self.sampler)
        if self._at_once() and type(batches) is BatchSampler:
            return batches.arrays()
        return iter(batches)

    def _made(self, tasks: Iterator[Any]) -> Iterator[Any]:
        maker: Callable[[Any], Callable[[Any], Any]]
        if self._streamed:
            maker = functools.partial(_streamed, self.batch_size, self.drop_last, self.collate_fn)
        else:
            maker = functools.partial(_by_position, self.batch_sampler is not None, self.collate_fn)
        if self.num_workers == 0:
            make = maker(self.dataset)
            for task in tasks:
                result = make((task,))
                if isinstance(result, Exhausted):
                    return
                yield result
            return
        own = self.worker_type == "thread" and self.worker_init_fn is None and not self.timeout
        if own and self._at_once():
            yield from _while_quick(maker(self.dataset), tasks)
        crew, self._crew = self._crew, None  # concurrent iterations have others
        if crew is None:
            job = Job(self.dataset, maker, self.worker_init_fn, self.num_workers, default.device)
            crew = Crew(self.worker_type, job, self.timeout or None)
            if self.persistent_workers:
                weakref.finalize(self, crew.close)
        try:
            yield from crew.results(tasks, self.prefetch_factor)
        except TimeoutError:
            crew.close(0.0)  # who is stuck is not waited for
            raise
        except BaseException:
            crew.close()  # results may be in flight
            raise
        if self.persistent_workers and self._crew is None:
            self._crew = crew
        else:
            crew.close()

    def _at_once(self) -> bool:
        return self.collate_fn is None and _batches_of(self.dataset) is not None

    def _on_device(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches as tensors; on a device, each is transferred while the last is used."""
        if self.device is None:
            yield from map(as_tensors, batches)
            return
        waiting = []
        for batch in batches:
            waiting.append(as_tensors(batch, self.device))
            nm.eval([x for x in nm.tree.leaves(waiting[-1]) if isinstance(x, Tensor)])
            if len(waiting) > 1:
                yield waiting.pop(0)
        yield from waiting

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._given += 1
            yield batch
        self._given = 0

    # -- resuming ---------------------------------------------------------------------------------

    def _examples_per_batch(self) -> int:
        """Examples that all processes together take at once."""
        assert self.batch_size is not None
        return self.batch_size * int(getattr(self.sampler, "num_replicas", 1))

    def state_dict(self) -> dict[str, Any]:
        """The number of batches given in this epoch, the key and epoch of the sampler, and how many
        examples all processes were given: it can be loaded by another number of processes."""
        state: dict[str, Any] = {"given": self._given}
        if self.batch_size is not None:
            state["examples"] = self._given * self._examples_per_batch()
        if hasattr(self.sampler, "state_dict"):
            state["sampler"] = self.sampler.state_dict()
            if self._given:  # the current epoch is resumed
                state["sampler"]["epoch"] -= 1
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the next iteration where `state_dict` was called."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: dict[str, Any]) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, "given")
        given = operator.index(state_dict["given"])
        if given < 0:
            raise ValueError(f"DataLoader.load_state_dict: {given} batches cannot have been given")
        if state_dict.get("examples") and self.batch_size is not None:  # of all processes
            given, rest = divmod(operator.index(state_dict["examples"]), self._examples_per_batch())
            if rest:
                raise ValueError(
                    f"DataLoader.load_state_dict: {state_dict['examples']} examples had been given "
                    f"of this epoch, which are no multiple of the {self._examples_per_batch()} "
                    "that all processes take at once now; let them take as many as before"
                )
        load = None
        if "sampler" in state_dict:
            if not hasattr(self.sampler, "load_state_dict"):
                raise ValueError(
                    "DataLoader.load_state_dict: the state has a sampler's, this loader's has none"
                )
            load = prepare(self.sampler, state_dict["sampler"])

        def commit() -> None:
            self._skip = given
            if load is not None:
                load()

        return commit


# -- in the worker --------------------------------------------------------------------------------


def _by_position(batched: bool, collate: Any, dataset: Any) -> Callable[[Any], Any]:
    at_once = _batches_of(dataset) if collate is None else None

    def make(task: Any) -> Any:
        (positions,) = task
        if not batched:
            return dataset[positions]
        if at_once is not None:
            return at_once(positions)
        examples = _examples_of(dataset, positions)
        return stacked(examples, "") if collate is None else collate(examples)

    return make


def _while_quick(make: Callable[[Any], Any], tasks: Iterator[Any]) -> Iterator[Any]:
    """Batches made by the caller itself, until workers would be faster for two in a row."""
    slow = 0
    for task in tasks:
        began = time.perf_counter()
        batch = make((task,))
        slow = slow + 1 if time.perf_counter() - began > _WORKER_MIN_SECONDS else 0
        yield batch
        if slow == 2:
            return


def _batches_of(dataset: Any) -> Callable[[Any], Any] | None:
    """The `get_batch` of a dataset, or of the dataset of a subset; None if it has none."""
    if isinstance(dataset, Subset):
        whole = _batches_of(dataset.dataset)
        positions = np.asarray(dataset.indices, np.int64)
        return None if whole is None else lambda chosen: whole(positions[chosen])
    return dataset.get_batch if _has(dataset, "get_batch") else None


def _has(dataset: Any, name: str) -> bool:
    """True if a dataset has a batched method that no subclass's `__getitem__` overrides."""
    for cls in type(dataset).__mro__:
        if name in vars(cls) or "__getitem__" in vars(cls):
            return name in vars(cls)
    return False


def _examples_of(dataset: Any, positions: Any) -> list[Any]:
    """Examples one by one; a dataset may give many of them at once (`__getitems__`)."""
    if isinstance(dataset, Subset):
        return _examples_of(dataset.dataset, [dataset.indices[i] for i in positions])
    if _has(dataset, "__getitems__"):
        return list(dataset.__getitems__(positions))
    return [dataset[i] for i in positions]


def _streamed(
    batch_size: int | None, drop_last: bool, collate: Any, dataset: Any
) -> Callable[[Any], Any]:
    stream = iter(dataset)

    def make(task: Any) -> Any:
        examples = list(itertools.islice(stream, 1 if batch_size is None else batch_size))
        if not examples or (drop_last and batch_size is not None and len(examples) < batch_size):
            return Exhausted()
        if batch_size is None:
            return examples[0]
        return stacked(examples, "") if collate is None else collate(examples)

    return make
