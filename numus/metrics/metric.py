"""Metrics that accumulate: a state of sums and of collected examples, which batches add to.

`state()` gives the state as NumPy arrays. Sums of several processes are added, what was collected
is concatenated (`Metric.collected` names it); `merge` does both for metrics of one process.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from numus.tensor import Tensor

__all__ = ["Metric"]

Array = np.ndarray[Any, Any]


def host(x: Any) -> Array:
    """Values in host memory, whatever device they are on."""
    return np.asarray(x.to_device("cpu") if isinstance(x, Tensor) else x)


class Metric:
    """What all metrics have: `update` with a batch, `compute` the value of all batches so far.

    >>> accuracy = nm.metrics.Accuracy()
    >>> accuracy.update(nm.asarray([0, 1, 2]), nm.asarray([0, 1, 1]))
    >>> accuracy.update(nm.asarray([1]), nm.asarray([1]))
    >>> accuracy.compute()
    0.75
    """

    collected: ClassVar[tuple[str, ...]] = ()  # parts of the state that are concatenated

    def __init__(self) -> None:
        self._state: dict[str, Array] = self._empty()
        self._parts: dict[str, list[Array]] = {name: [] for name in self.collected}

    def _empty(self) -> dict[str, Array]:
        """The sums before the first batch."""
        return {}

    def reset(self) -> None:
        """Forget all batches."""
        self._state, self._parts = self._empty(), {name: [] for name in self.collected}

    def update(self, *args: Any) -> None:
        """Add a batch."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def compute(self) -> Any:
        """The value of all batches so far."""
        raise TypeError(f"{type(self).__name__} does not define compute")

    def _add(self, **sums: Any) -> None:
        for name, value in sums.items():
            self._state[name] = self._state[name] + value

    def _collect(self, **parts: Array) -> None:
        for name, part in parts.items():
            self._parts[name].append(part)

    def _all(self, name: str) -> Array:
        parts = self._parts[name]
        if len(parts) > 1:
            self._parts[name] = parts = [np.concatenate(parts)]
        if not parts:
            raise ValueError(f"{type(self).__name__}: no batch has been added yet")
        return parts[0]

    def state(self) -> dict[str, Array]:
        """The sums, and what was collected."""
        return {
            **{name: np.array(value) for name, value in self._state.items()},
            **{name: self._all(name) for name in self.collected if self._parts[name]},
        }

    def load_state(self, state: dict[str, Any]) -> Self:
        """Go on from a state, which may be the sum or concatenation of several."""
        known = {*self._state, *self.collected}
        if not set(self._state) <= set(state) <= known:
            raise ValueError(
                f"{type(self).__name__}: a state has {sorted(known)}, not {sorted(state)}"
            )
        self.reset()
        for name, value in state.items():
            if name in self.collected:
                self._parts[name] = [np.asarray(value)]
            else:
                self._state[name] = np.asarray(value)
        return self

    def merge(self, other: Self) -> Self:
        """Add all that another metric of the same kind has seen.

        >>> a, b = nm.metrics.Accuracy(), nm.metrics.Accuracy()
        >>> a.update(nm.asarray([1]), nm.asarray([1]))
        >>> b.update(nm.asarray([1]), nm.asarray([0]))
        >>> a.merge(b).compute()
        0.5
        """
        if type(other) is not type(self):
            raise TypeError(f"{type(self).__name__} does not merge with {type(other).__name__}")
        self._add(**other._state)
        for name, parts in other._parts.items():
            self._parts[name] = self._parts[name] + parts
        return self
