"""Rates that fall, warm up, or follow a measure."""

from __future__ import annotations

import copy
import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from numus.nn.state import require
from numus.optim.lr_scheduler.base import LRScheduler, per_group
from numus.optim.optimizer import Optimizer

__all__ = [
    "SWALR", "ConstantLR", "CosineAnnealingLR", "ExponentialLR", "LambdaLR", "LinearLR",
    "MultiStepLR", "MultiplicativeLR", "PolynomialLR", "ReduceLROnPlateau", "StepLR",
]  # fmt: skip


class _FunctionLR(LRScheduler):
    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        self.lr_lambdas = per_group(type(self).__name__, "lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def _scaled(self, rates: list[float]) -> list[float]:
        return [x * f(self.last_epoch) for x, f in zip(rates, self.lr_lambdas, strict=True)]


class LambdaLR(_FunctionLR):
    """The first rate times a function of the step."""

    def get_lr(self) -> list[float]:
        return self._scaled(self.base_lrs)


class MultiplicativeLR(_FunctionLR):
    """The rate times a function of the step, again and again."""

    _relative = True

    def get_lr(self) -> list[float]:
        return self._scaled(self._current()) if self.last_epoch else self._current()


class _FactorLR(LRScheduler):
    """Rates times a factor: `_ratio` of the step before, or `_factor` of the first."""

    def _ratio(self) -> float:
        raise NotImplementedError

    def _factor(self) -> float:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        ratio = self._ratio()
        return [rate * ratio for rate in self._current()]

    def _lr_at(self) -> list[float]:
        factor = self._factor()
        return [rate * factor for rate in self.base_lrs]


class StepLR(_FactorLR):
    """The rate times gamma, every step_size steps.

    >>> from numus import nn, optim
    >>> opt = optim.SGD(nn.Linear(1, 1), lr=1.0)
    >>> schedule = optim.StepLR(opt, step_size=2, gamma=0.5)
    >>> for _ in range(4):
    ...     schedule.step()
    >>> opt.param_groups[0]["lr"]
    0.25
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _ratio(self) -> float:
        return 1.0 if not self.last_epoch or self.last_epoch % self.step_size else self.gamma

    def _factor(self) -> float:
        return float(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(_FactorLR):
    """The rate times gamma at each milestone."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _ratio(self) -> float:
        return self.gamma ** self.milestones.count(self.last_epoch)

    def _factor(self) -> float:
        return self.gamma ** bisect_right(self.milestones, self.last_epoch)


class ExponentialLR(_FactorLR):
    """The rate times gamma at every step."""

    _relative = True

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _ratio(self) -> float:
        return self.gamma if self.last_epoch else 1.0

    def _factor(self) -> float:
        return self.gamma**self.last_epoch


class ConstantLR(_FactorLR):
    """The rate times a factor for the first `total_iters` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _ratio(self) -> float:
        return {0: self.factor, self.total_iters: 1.0 / self.factor}.get(self.last_epoch, 1.0)

    def _factor(self) -> float:
        return self.factor if self.last_epoch < self.total_iters else 1.0


class LinearLR(_FactorLR):
    """The rate times a factor that goes from one number to another in a line: a warm-up.

    >>> from numus import nn, optim
    >>> opt = optim.SGD(nn.Linear(1, 1), lr=1.0)
    >>> schedule = optim.LinearLR(opt, start_factor=0.5, total_iters=2)
    >>> for _ in range(2):
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [1.0]

    Args:
        start_factor, end_factor: of the first step, and from the step `total_iters` on.
    """

    _relative = True

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, back: int = 0) -> float:
        share = min(self.last_epoch - back, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share

    def _ratio(self) -> float:
        if self.last_epoch == 0:
            return self.start_factor
        return 1.0 if self.last_epoch > self.total_iters else self._factor() / self._factor(1)


class PolynomialLR(_FactorLR):
    """The rate falls to 0 as a power of the steps that are left of `total_iters`."""

    _relative = True

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _ratio(self) -> float:
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return 1.0
        left = self.total_iters - self.last_epoch
        return float((left / (left + 1)) ** self.power)

    def _factor(self) -> float:
        left = 1 - min(self.last_epoch, self.total_iters) / self.total_iters
        return float(left**self.power)


class CosineAnnealingLR(LRScheduler):
    """The rate falls to eta_min along half a cosine of T_max steps, and rises again."""

    _relative = True

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        epoch, low = self.last_epoch, self.eta_min
        if epoch == 0:
            return self._current()
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            bases = zip(self._current(), self.base_lrs, strict=True)
            return [rate + (base - low) * rise for rate, base in bases]
        now = 1 + math.cos(math.pi * epoch / self.T_max)
        before = 1 + math.cos(math.pi * (epoch - 1) / self.T_max)
        return [now / before * (rate - low) + low for rate in self._current()]

    def _lr_at(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class SWALR(LRScheduler):
    """From the rates that groups have to `swa_lr` within some epochs, and on with that.

    Args:
        anneal_strategy: "cos" or "linear".
    """

    _relative = True

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear") or anneal_epochs < 0:
            raise ValueError(
                f'SWALR: anneal_strategy {anneal_strategy!r} is "cos" or "linear", anneal_epochs '
                f"{anneal_epochs} not negative"
            )
        rates = per_group("SWALR", "swa_lr", swa_lr, optimizer)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs = anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """How much of the way has been gone at a step."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return t if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> list[float]:
        step = max(1, self.last_epoch) if self.anneal_epochs == 0 else self.last_epoch
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self._groups:
            end = group["swa_lr"]
            first = end if before == 1 else (group["lr"] - before * end) / (1 - before)
            rates.append(end * now + first * (1 - now))
        return rates


class ReduceLROnPlateau:
    """The rate times a factor when a measure has not got better for a while.

    Args:
        mode: "min" where less is better, "max" where more is.
        patience: how many steps without improvement are let pass.
        threshold: by how much it has to be better, relative ("rel") or not ("abs").
        cooldown: how many steps to wait after the rate has been reduced.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: factor {factor} must be below 1, mode {mode!r} one of min and "
                f"max, threshold_mode {threshold_mode!r} one of rel and abs"
            )
        self.optimizer = optimizer
        self.min_lrs = per_group("ReduceLROnPlateau", "min_lr", min_lr, optimizer)
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = 0
        self.cooldown_counter = 0
        self.last_epoch = 0

    def _better(self, measure: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "rel":
            return sign * measure > sign * self.best * (1.0 + sign * self.threshold)
        return sign * measure > sign * self.best + self.threshold

    def step(self, metrics: Any) -> None:
        """Tell it the measure of this step."""
        measure = float(metrics)
        self.last_epoch += 1
        if self._better(measure):
            self.best = measure
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, lowest in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                rate = max(group["lr"] * self.factor, lowest)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: Any) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, *self.state_dict())
        return functools.partial(self.__dict__.update, copy.deepcopy(dict(state_dict)))
