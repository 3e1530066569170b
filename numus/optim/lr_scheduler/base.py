"""What every schedule is: a function of the step and of the rates before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.errors import TracingError
from numus.graph import current_trace
from numus.optim.optimizer import Optimizer, ParamGroup

__all__ = ["LRScheduler"]


class LRScheduler:
    """The base of schedules: define `get_lr`, the rates of all groups at `last_epoch`."""

    _relative = False  # whether every rate follows from the one before

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{type(self).__name__}: takes an optimiser, not {type(optimizer).__name__}"
            )
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise ValueError(
                    f"{type(self).__name__}: to go on from last_epoch={last_epoch}, every group "
                    "needs its initial_lr"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        if last_epoch != -1 and self._relative:
            self.last_epoch += 1  # the groups' rates are those of this step already
        else:
            self.step()

    @property
    def _groups(self) -> list[ParamGroup]:
        return self.optimizer.param_groups

    def _current(self) -> list[float]:
        return [group["lr"] for group in self._groups]

    def get_lr(self) -> list[float]:
        """The rates of all groups at this step."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return self._current()

    def step(self, epoch: int | None = None) -> None:
        """Go on by one step, or to a step."""
        refuse_in_trace(self)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set(self.get_lr() if epoch is None else self._lr_at())

    def _lr_at(self) -> list[float]:
        """The rates at this step whatever they were before; schedules that know it say so."""
        return self.get_lr()

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser and functions."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer" and not _is_code(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self.__dict__.update(state_dict)


def per_group(op: str, name: str, given: Any, optimizer: Optimizer) -> list[Any]:
    """A value for each group: the one given for all, or one of as many."""
    count = len(optimizer.param_groups)
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{op}: {len(given)} values of {name} for {count} groups of parameters")
    return list(given)


def refuse_in_trace(schedule: Any) -> None:
    """A step that a trace would take once for all calls is an error."""
    trace = current_trace()
    if trace is not None:
        raise TracingError(
            f"{type(schedule).__name__}: a schedule counts its steps in Python, which runs once "
            f"inside {trace}; call its step() outside"
        )


def _is_code(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(map(callable, value)))
