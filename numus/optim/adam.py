"""Adam and its kin: steps in units of the gradient's own size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numus as nm
from numus.optim.optimizer import (
    Numbers,
    Optimizer,
    ParamGroup,
    State,
    check,
    count_of_steps,
    decayed,
    takes_hints,
)
from numus.tensor import Tensor

__all__ = ["LAMB", "Adam", "AdamW", "Lion"]


def _checked(
    name: str, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 0.0
) -> None:
    check(name, lr=(lr, lr >= 0), weight_decay=(weight_decay, weight_decay >= 0))
    check(name, eps=(eps, eps >= 0))
    check(name, **{f"betas[{i}]": (b, 0 <= b < 1) for i, b in enumerate(betas)})


def _moment_numbers(group: Mapping[str, Any]) -> dict[str, float]:
    """What moments need. 1 - beta and log(beta) are taken here, where there are digits for them."""
    beta1, beta2 = group["betas"]
    return {
        "lr": group["lr"],
        "weight_decay": group["weight_decay"],
        "share1": 1 - beta1,
        "beta2": beta2,
        "share2": 1 - beta2,
        "log_beta1": math.log(beta1) if beta1 else -math.inf,
        "log_beta2": math.log(beta2) if beta2 else -math.inf,
    }


def _moments(g: Tensor, state: State, n: Numbers) -> tuple[Tensor, Tensor]:
    """Running means of the gradient and of its square."""
    mean = state["exp_avg"] + (g - state["exp_avg"]) * n.share1
    square = state["exp_avg_sq"] * n.beta2 + g * g * n.share2
    state["exp_avg"].assign(mean)
    state["exp_avg_sq"].assign(square)
    return mean, square


def _unbiased(log_beta: Tensor, step: Tensor) -> Tensor:
    """1 - beta^step: the weight that a running mean has gathered so far."""
    return -nm.expm1(step.astype(log_beta.dtype) * log_beta)


class _AdamLike(Optimizer):
    """What Adam and its kin share: running means, and weight decay of either kind."""

    def __init__(self, params: Any, options: dict[str, Any]) -> None:
        names = ("lr", "betas", "weight_decay", "eps")
        _checked(type(self).__name__, *(options[name] for name in names))
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {**_moment_numbers(group), "eps": group["eps"]}

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        return {
            "weight1": _unbiased(n.log_beta1, step),
            "weight2": _unbiased(n.log_beta2, step),
            "shrunk": 1 - n.lr * n.weight_decay,
        }

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        zeros = {"exp_avg": nm.zeros_like(p), "exp_avg_sq": nm.zeros_like(p)}
        return {"step": count_of_steps(p), **zeros}

    def _shrink(self, p: Tensor, g: Tensor, group: ParamGroup, n: Numbers) -> tuple[Tensor, Tensor]:
        if not group["decoupled_weight_decay"]:
            return p, decayed(p, g, group, n)
        return (p * n.shrunk if group["weight_decay"] else p), g


@takes_hints
class Adam(_AdamLike):
    """Steps of about lr in every coordinate: running mean over the root of running square.

    >>> from numus import nn, optim
    >>> w = nn.Parameter(nm.asarray([1.0]))
    >>> opt = optim.Adam([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.75]

    Args:
        betas: what is kept of the running mean and of the running square at each step.
        eps: added to the root.
        weight_decay: the gradient of this times half the square of the parameters is added.
        amsgrad: divide by the largest running square so far.
        maximize: go up, not down.
        decoupled_weight_decay: shrink parameters directly, not by way of their gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"amsgrad": amsgrad, "maximize": maximize}
        options |= {"decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, options)

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        return {
            "size": n.lr / _unbiased(n.log_beta1, step),
            "scale": nm.rsqrt(_unbiased(n.log_beta2, step)),
            "shrunk": 1 - n.lr * n.weight_decay,
        }

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        state = super()._state(p, group)
        return state | ({"max_exp_avg_sq": nm.zeros_like(p)} if group["amsgrad"] else {})

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        p, g = self._shrink(p, g, group, n)
        mean, square = _moments(g, state, n)
        if group["amsgrad"]:
            square = nm.maximum(state["max_exp_avg_sq"], square)
            state["max_exp_avg_sq"].assign(square)
        return p - mean * n.size / (nm.sqrt(square) * n.scale + n.eps)


@takes_hints
class AdamW(Adam):
    """Adam that shrinks parameters directly, not by way of their gradients.

    Args:
        weight_decay: parameters shrink by lr times this at each step. Others as of `Adam`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {"maximize": maximize, "decoupled_weight_decay": True}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


class Lion(Optimizer):
    """Steps of lr in every coordinate, by the sign of a mean of gradients (Chen et al.).

    Args:
        betas: what is kept of the mean for the step that is taken, and for the steps after it.
        weight_decay: parameters shrink by lr times this at each step.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        _checked("Lion", lr, betas, weight_decay)
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return _moment_numbers(group)

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        return {"shrunk": 1 - n.lr * n.weight_decay}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        return {"exp_avg": nm.zeros_like(p)}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        mean = state["exp_avg"]
        direction = nm.sign(mean + (g - mean) * n.share1)
        state["exp_avg"].assign(mean + (g - mean) * n.share2)
        if group["weight_decay"]:
            p = p * n.shrunk
        return p - direction * n.lr


class LAMB(_AdamLike):
    """Adam whose step in each parameter is as long as the parameter, times lr (You et al.).

    Arguments as of `AdamW`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize})

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        mean, square = _moments(g, state, n)
        direction = mean / n.weight1 / (nm.sqrt(square / n.weight2) + n.eps)
        if group["weight_decay"]:
            direction = direction + p * n.weight_decay
        own, length = nm.vector_norm(p), nm.vector_norm(direction)
        both = (own > 0) & (length > 0)
        trust = nm.where(both, own / nm.where(both, length, 1.0), 1.0)
        return p - direction * (trust * n.lr)
