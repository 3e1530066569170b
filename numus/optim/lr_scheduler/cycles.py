"""Rates that go up and down, with momentum against them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from numus.optim.lr_scheduler.base import LRScheduler, per_group
from numus.optim.optimizer import Optimizer

__all__ = ["CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine of T_0 steps over and over, each T_mult times as long as the last."""

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 < 1 or T_mult < 1:
            raise ValueError(
                f"CosineAnnealingWarmRestarts: T_0={T_0} and T_mult={T_mult} must be at least 1"
            )
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _share(self, epoch: float) -> float:
        """How far into its cycle a step is."""
        length = self.T_0
        if self.T_mult == 1:
            return epoch % length / length
        cycle = int(math.log(epoch / length * (self.T_mult - 1) + 1, self.T_mult))
        start = length * (self.T_mult**cycle - 1) / (self.T_mult - 1)
        return (epoch - start) / (length * self.T_mult**cycle)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self._share(self.last_epoch))) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _line(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


class _CycleLR(LRScheduler):
    """A cycle of rates in which momentum, or the first of betas, goes the other way."""

    def _cycle_momentum(self, optimizer: Optimizer, wanted: bool) -> None:
        found = [key for key in ("momentum", "betas") if key in optimizer.defaults]
        if wanted and not found:
            op, kind = type(self).__name__, type(optimizer).__name__
            raise ValueError(f"{op}: {kind} has no momentum to cycle")
        self._momenta = found[0] if wanted else None

    def _set_momentum(self, value: float) -> None:
        for group in self._groups:
            if self._momenta == "momentum":
                group["momentum"] = value
            elif self._momenta == "betas":
                group["betas"] = (value, *group["betas"][1:])

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser and functions."""
        return {k: v for k, v in super().state_dict().items() if k != "_momenta"}


class OneCycleLR(_CycleLR):
    """Up to max_lr and down far below the start, once; momentum the other way round (Smith).

    >>> from numus import nn, optim
    >>> opt = optim.SGD(nn.Linear(1, 1), lr=0.1, momentum=0.9)
    >>> schedule = optim.OneCycleLR(opt, max_lr=1.0, total_steps=10, div_factor=4.0)
    >>> schedule.get_last_lr()
    [0.25]

    Args:
        total_steps: how many there are; or `epochs` and `steps_per_epoch`.
        pct_start: the share of them in which the rate rises.
        anneal_strategy: along a cosine ("cos") or a line ("linear").
        cycle_momentum: whether the momentum goes from max_momentum to base_momentum and back.
        div_factor: the first rate is max_lr over this.
        final_div_factor: the last rate is the first one over this.
        three_phase: first back to the first rate, then down to the last.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f'OneCycleLR: anneal_strategy is "cos" or "linear", not {anneal_strategy!r}'
            )
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        self.cycle_momentum = cycle_momentum
        low, high = ("max_momentum", "base_momentum")
        rise = float(pct_start * total_steps) - 1
        # each phase: its last step, and the first and last of its rates and momenta
        self._phases: list[tuple[float, str, str, str, str]]
        self._phases = [(rise, "initial_lr", "max_lr", low, high)]
        if three_phase:
            self._phases.append((2 * rise, "max_lr", "initial_lr", high, low))
            self._phases.append((total_steps - 1, "initial_lr", "min_lr", low, low))
        else:
            self._phases.append((total_steps - 1, "max_lr", "min_lr", high, low))
        self._bounds = {"base_momentum": base_momentum, "max_momentum": max_momentum}
        self._cycle_momentum(optimizer, cycle_momentum)
        tops = per_group("OneCycleLR", "max_lr", max_lr, optimizer)
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, tops, strict=True):
                group["max_lr"] = top
                group["lr"] = group["initial_lr"] = top / div_factor
                group["min_lr"] = top / div_factor / final_div_factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"OneCycleLR: step {self.last_epoch} is past the {self.total_steps} of the cycle"
            )
        between = _cosine if self.anneal_strategy == "cos" else _line
        ends = [end for end, *_ in self._phases]
        index = min(bisect_left(ends, self.last_epoch), len(ends) - 1)
        start = ends[index - 1] if index else 0.0
        share = (self.last_epoch - start) / (ends[index] - start)
        _, first, last, low, high = self._phases[index]
        self._set_momentum(between(self._bounds[low], self._bounds[high], share))
        return [between(g[first], g[last], share) for g in self._groups]


class CyclicLR(_CycleLR):
    """Up from base_lr to max_lr and down again, over and over.

    Args:
        step_size_up, step_size_down: how many steps it takes up, and down (as many, if not given).
        mode: "triangular"; "triangular2", each cycle half as high; "exp_range", gamma^step as high.
        scale_fn: a height of your own, of the cycle or (scale_mode="iterations") of the step.
        cycle_momentum: whether the momentum goes from max_momentum to base_momentum and back.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"CyclicLR: mode {mode!r} is not known, and there is no scale_fn")
        down = step_size_up if step_size_down is None else step_size_down
        self.max_lrs = per_group("CyclicLR", "max_lr", max_lr, optimizer)
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self.scale_fn, self.scale_mode = scale_fn, scale_mode
        self._bounds = (base_momentum, max_momentum)
        self._cycle_momentum(optimizer, cycle_momentum)
        lowest = per_group("CyclicLR", "base_lr", base_lr, optimizer)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, lowest, strict=True):
                group["lr"] = group["initial_lr"] = rate
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def _height(self, cycle: float) -> float:
        if self.scale_fn is not None:
            return self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.mode == "triangular2":
            return 1 / 2.0 ** (cycle - 1)
        return self.gamma**self.last_epoch if self.mode == "exp_range" else 1.0

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1 + self.last_epoch / self.total_size - cycle
        share = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        share *= self._height(cycle)
        low, high = self._bounds
        self._set_momentum(high - (high - low) * share)
        rates = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * share for low, high in rates]
