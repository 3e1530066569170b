"""Steps divided by what gradients have been: Adagrad, RMSprop, Adadelta, Adafactor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numus as nm
from numus.optim import optimizer as base
from numus.optim.optimizer import Numbers, Optimizer, ParamGroup, State
from numus.tensor import Tensor

__all__ = ["Adadelta", "Adafactor", "Adagrad", "RMSprop"]


@base.takes_hints
class Adagrad(Optimizer):
    """Gradients over the root of the sum of all their squares.

    Args:
        lr_decay: the rate falls with the steps, as 1 / (1 + lr_decay * step).
        weight_decay: the gradient of this times half the square of the parameters is added.
        initial_accumulator_value: what the sum begins with.
    """

    _reads = ("lr", "lr_decay", "weight_decay", "eps")
    _not_negative = (*_reads, "initial_accumulator_value")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        options |= {"initial_accumulator_value": initial_accumulator_value, "maximize": maximize}
        super().__init__(params, options)

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        start = nm.full_like(p, group["initial_accumulator_value"])
        return {"step": base.count_of_steps(p), "sum": start}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = base.decayed(p, g, group, n)
        total = state["sum"] + g * g
        state["sum"].assign(total)
        lr = n.lr / (1 + (state["step"].astype(p.dtype, copy=False) - 1) * n.lr_decay)
        return p - g * lr / (nm.sqrt(total) + n.eps)


@base.takes_hints
class RMSprop(Optimizer):
    """Gradients over the root of a running mean of their squares.

    Args:
        alpha: what is kept of the running mean at each step.
        weight_decay: the gradient of this times half the square of the parameters is added.
        momentum: what is kept of the last step.
        centered: divide by the deviation instead: the running mean of gradients taken off.
    """

    _reads = _not_negative = ("lr", "alpha", "eps", "weight_decay", "momentum")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        options |= {"momentum": momentum, "centered": centered, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {**super()._numbers(group), "share": 1 - group["alpha"]}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        names = ["square_avg"]
        names += ["momentum_buffer"] * bool(group["momentum"]) + ["grad_avg"] * group["centered"]
        return base.zeros_and_step(p, *names)

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = base.decayed(p, g, group, n)
        square = state["square_avg"] * n.alpha + g * g * n.share
        state["square_avg"].assign(square)
        if group["centered"]:
            mean = state["grad_avg"] + (g - state["grad_avg"]) * n.share
            state["grad_avg"].assign(mean)
            square = square - mean * mean
        g = g / (nm.sqrt(square) + n.eps)
        if not group["momentum"]:
            return p - g * n.lr
        velocity = state["momentum_buffer"] * n.momentum + g
        state["momentum_buffer"].assign(velocity)
        return p - velocity * n.lr


@base.takes_hints
class Adadelta(Optimizer):
    """Gradients in units of past steps: no learning rate to choose.

    Args:
        rho: what is kept of the running means at each step.
        weight_decay: the gradient of this times half the square of the parameters is added.
    """

    _reads = _not_negative = ("lr", "rho", "eps", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        base.check("Adadelta", rho=(rho, rho <= 1))
        options = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {**super()._numbers(group), "share": 1 - group["rho"]}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        return base.zeros_and_step(p, "square_avg", "acc_delta")

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = base.decayed(p, g, group, n)
        square = state["square_avg"] * n.rho + g * g * n.share
        delta = g * nm.sqrt(state["acc_delta"] + n.eps) / nm.sqrt(square + n.eps)
        state["square_avg"].assign(square)
        state["acc_delta"].assign(state["acc_delta"] * n.rho + delta * delta * n.share)
        return p - delta * n.lr


@base.takes_hints
class Adafactor(Optimizer):
    """Adam's divisor from the sums of squares of rows and columns alone (Shazeer and Stern).

    Args:
        beta2_decay: the power of the step that new squares are weighted with.
        eps: below which squares and the size of a parameter are not taken; the first is the machine
            epsilon where it isn't given.
        d: the size above which an update is cut down.
    """

    _reads = ("lr", "beta2_decay", "d", "weight_decay")
    _not_negative = ("lr", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        base.check("Adafactor", beta2_decay=(beta2_decay, beta2_decay <= 0), d=(d, d >= 1))
        options = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d}
        super().__init__(params, {**options, "weight_decay": weight_decay, "maximize": maximize})

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {**super()._numbers(group), "smallest": group["eps"][1]}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        state = {"step": base.count_of_steps(p)}
        if p.ndim < 2:
            return state | {"variance": nm.zeros_like(p)}
        rows = nm.zeros((*p.shape[:-1], 1), dtype=p.dtype, device=p.device)
        columns = nm.zeros((*p.shape[:-2], 1, p.shape[-1]), dtype=p.dtype, device=p.device)
        return state | {"row_var": rows, "col_var": columns}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        floor = group["eps"][0]
        floor = 2.0**-p.dtype.mantissa if floor is None else floor
        step = state["step"].astype(p.dtype, copy=False)
        share = step**n.beta2_decay

        def follow(name: str, seen: Tensor) -> Tensor:
            state[name].assign(state[name] + (seen - state[name]) * share)
            return state[name]

        size = nm.sqrt(nm.mean(p * p))
        rate = nm.maximum(size, n.smallest) * nm.minimum(n.lr, nm.rsqrt(step))
        if group["weight_decay"]:
            p = p * (1 - n.lr * n.weight_decay)
        squares = g * g
        if p.ndim < 2:
            variance = follow("variance", squares)
        else:
            rows = follow("row_var", squares.mean(axis=-1, keepdims=True))
            columns = follow("col_var", squares.mean(axis=-2, keepdims=True))
            whole = nm.maximum(rows.mean(axis=-2, keepdims=True), floor)
            variance = rows * columns / whole
        update = g * nm.rsqrt(nm.maximum(variance, floor * floor))
        cut = nm.maximum(nm.sqrt(nm.mean(update * update)) / n.d, 1.0)
        return p - update * (rate / cut)
