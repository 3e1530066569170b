"""Schedules made of schedules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from numus.optim.lr_scheduler.base import LRScheduler, refuse_in_trace
from numus.optim.optimizer import Optimizer

__all__ = ["ChainedScheduler", "SequentialLR"]


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
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)


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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)
