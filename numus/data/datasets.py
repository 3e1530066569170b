"""Datasets: examples by position, or one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.tensor import Tensor

__all__ = [
    "ChainDataset", "ConcatDataset", "Dataset", "IterableDataset", "StackDataset", "Subset",
    "TensorDataset", "random_split",
]  # fmt: skip


class Dataset:
    """Examples by position: define `__len__` and `__getitem__`.

    A dataset that can give many examples at once may define `get_batch(indices)` as well, which is
    given an array of positions and gives their examples collated; or `__getitems__(indices)`, which
    gives a list of them.
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not define __len__")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__")

    def get(self, index: int) -> Any:
        """The example at a position."""
        return self[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Examples one after the other: define `__iter__`.

    With several workers each of them iterates; `get_worker_info()` tells which part to give.
    """

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}: an iterable dataset does not tell how long it is")

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class TensorDataset(Dataset):
    """The slices of tensors along their first axes.

    >>> from numus.data import TensorDataset
    >>> data = TensorDataset(nm.arange(6).reshape((3, 2)), nm.asarray([0, 1, 2]))
    >>> [x.tolist() for x in data[1]]
    [[2, 3], 1]
    """

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tuple(nm.asarray(t) for t in tensors)
        lengths = {t.shape[0] if t.ndim else None for t in self.tensors}
        if len(lengths) != 1 or None in lengths:
            raise ShapeError(
                "TensorDataset: takes tensors of one length, not of shapes "
                + ", ".join(str(t.shape) for t in self.tensors)
            )

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def get_batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Many examples at once, where the tensors are."""
        positions = np.asarray(indices, np.int64)
        return tuple(nm.take(t, positions, axis=0) for t in self.tensors)


class StackDataset(Dataset):
    """Datasets of one length side by side: tuples of their examples, or dicts by name.

    >>> from numus.data import StackDataset
    >>> StackDataset(x=range(3), y="abc")[1]
    {'x': 1, 'y': 'b'}
    """

    def __init__(self, *datasets: Any, **named: Any) -> None:
        if bool(datasets) == bool(named):
            raise ValueError("StackDataset: takes datasets, or datasets by name, at least one")
        self.datasets: Any = named or datasets
        parts = named.values() if named else datasets
        if len({len(d) for d in parts}) > 1:
            raise ShapeError(
                "StackDataset: takes datasets of one length, not of "
                + ", ".join(str(len(d)) for d in parts)
            )

    def __len__(self) -> int:
        parts = self.datasets
        return len(next(iter(parts.values())) if isinstance(parts, dict) else parts[0])

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)


class Subset(Dataset):
    """Some of a dataset's examples."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]


class ConcatDataset(Dataset):
    """Datasets one behind the other."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets or any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ValueError("ConcatDataset: takes datasets with positions, at least one")
        self.ends = list(accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"ConcatDataset: there is no example {index} among {len(self)}")
        which = bisect_right(self.ends, position)
        return self.datasets[which][position - (self.ends[which - 1] if which else 0)]


class ChainDataset(IterableDataset):
    """Iterable datasets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)


def random_split(
    dataset: Dataset, lengths: Sequence[float], *, key: Tensor | None = None
) -> list[Subset]:
    """Parts of a dataset that share no example, drawn by a key.

    Args:
        lengths: how many examples each part has, or what share of all (they add up to 1; what
            rounding leaves goes to the first parts).

    >>> from numus import data
    >>> train, rest = data.random_split(list(range(10)), [0.8, 0.2])
    >>> len(train), len(rest)
    (8, 2)
    """
    count = len(dataset)
    sizes = [int(n) for n in lengths]
    if all(0 <= n <= 1 for n in lengths) and abs(sum(lengths) - 1) < 1e-6:
        sizes = [int(count * share) for share in lengths]
        for i in range(count - sum(sizes)):
            sizes[i % len(sizes)] += 1
    if sum(sizes) != count or any(n < 0 for n in sizes):
        raise ValueError(f"random_split: parts of {list(lengths)} do not make up {count} examples")
    order = nm.random.permutation(count, key=key).tolist()
    ends = list(accumulate(sizes))
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
