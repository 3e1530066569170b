"""Schedules: functions of the step and of the rates before it, and chains of them."""

from __future__ import annotations

import copy
import functools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from numus.errors import TracingError
from numus.graph import current_trace
from numus.nn.state import require
from numus.optim.optimizer import Optimizer, ParamGroup

__all__ = ["ChainedScheduler", "LRScheduler", "SequentialLR"]


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
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: Any) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, *self.state_dict())
        return functools.partial(self.__dict__.update, copy.deepcopy(dict(state_dict)))


class ChainedScheduler:
    """Several schedulers at every step, one after the other."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self.schedulers = list(schedulers)
        self.optimizer = optimizer or self.schedulers[0].optimizer

    def step(self) -> None:
        """Go on by one step."""
        for scheduler in self.schedulers:
            scheduler.step()

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return self.schedulers[-1].get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The states of all."""
        return {"schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: Any) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        return _prepare_each(self, self.schedulers, state_dict)


class SequentialLR(LRScheduler):
    """One scheduler after the other, each from its milestone on."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers take {len(schedulers) - 1} "
                f"milestones, not {len(milestones)}"
            )
        self.optimizer = optimizer
        self.schedulers = list(schedulers)
        self.milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        # each of them has set rates when it was made: begin again, with the first alone
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self.schedulers:
            scheduler.last_epoch -= 1
        self.schedulers[0].step()

    def step(self, epoch: int | None = None) -> None:
        """Go on by one step."""
        if epoch is not None:
            raise ValueError("SequentialLR: goes on step by step, not to an epoch")
        refuse_in_trace(self)
        self.last_epoch += 1
        index = bisect_right(self.milestones, self.last_epoch)
        scheduler = self.schedulers[index]
        if index > 0 and self.milestones[index - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all."""
        states = [s.state_dict() for s in self.schedulers]
        return {"last_epoch": self.last_epoch, "schedulers": states}

    def _prepare_state(self, state_dict: Any) -> Callable[[], None]:
        require(self, state_dict, "last_epoch")
        load = _prepare_each(self, self.schedulers, state_dict)

        def commit() -> None:
            self.last_epoch = state_dict["last_epoch"]
            load()

        return commit


def _prepare_each(owner: Any, schedulers: list[Any], state_dict: Any) -> Callable[[], None]:
    """Check the states of schedulers; gives the function that loads them all."""
    require(owner, state_dict, "schedulers")
    states = state_dict["schedulers"]
    if len(states) != len(schedulers):
        raise ValueError(
            f"{type(owner).__name__}.load_state_dict: {len(states)} states for "
            f"{len(schedulers)} schedulers"
        )
    commits = [s._prepare_state(state) for s, state in zip(schedulers, states, strict=True)]

    def commit() -> None:
        for change in commits:
            change()

    return commit


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
