"""Adam with another norm, another momentum, or a warm-up of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numus as nm
from numus.optim.adam import _AdamLike, _moments
from numus.optim.optimizer import (
    Numbers,
    ParamGroup,
    State,
    check,
    count_of_steps,
    decayed,
    takes_hints,
)
from numus.tensor import Tensor

__all__ = ["Adamax", "NAdam", "RAdam"]


@takes_hints
class NAdam(_AdamLike):
    """Adam with Nesterov's momentum (Dozat).

    Args:
        momentum_decay: how fast the momentum comes to its first beta. Others as of `Adam`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        check("NAdam", momentum_decay=(momentum_decay, momentum_decay >= 0))
        options |= {"momentum_decay": momentum_decay, "maximize": maximize}
        options |= {"decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        decay = group["momentum_decay"] * math.log(0.96)
        return {**super()._numbers(group), "beta1": group["betas"][0], "log_decay": decay}

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        time = step.astype(n.lr.dtype)
        now = n.beta1 * (1 - 0.5 * nm.exp(time * n.log_decay))
        following = n.beta1 * (1 - 0.5 * nm.exp((time + 1) * n.log_decay))
        return {**super()._derived(n, step), "now": now, "following": following}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        one = nm.ones((), dtype=nm.float32, device=p.device)
        return {**super()._state(p, group), "mu_product": one}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        p, g = self._shrink(p, g, group, n)
        mean, square = _moments(g, state, n)
        product = state["mu_product"].astype(p.dtype) * n.now
        state["mu_product"].assign(product)
        spread = nm.sqrt(square / n.weight2) + n.eps
        by_gradient = n.lr * (1 - n.now) / (1 - product)
        by_mean = n.lr * n.following / (1 - product * n.following)
        return p - by_gradient * g / spread - by_mean * mean / spread


@takes_hints
class RAdam(_AdamLike):
    """Adam whose steps wait until running squares can be trusted (Liu et al.).

    Arguments as of `Adam`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        options |= {"maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        longest = 2 / (1 - group["betas"][1]) - 1
        return {**super()._numbers(group), "longest": longest}

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        common = super()._derived(n, step)
        time = step.astype(n.lr.dtype)
        length = n.longest - 2 * time * (1 - common["weight2"]) / common["weight2"]
        trusted = length > 5
        safe = nm.where(trusted, length, 6.0)
        share = (safe - 4) * (safe - 2) * n.longest / ((n.longest - 4) * (n.longest - 2) * safe)
        rectified = nm.sqrt(share * common["weight2"])
        return {**common, "trusted": trusted, "rectified": rectified}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        p, g = self._shrink(p, g, group, n)
        mean, square = _moments(g, state, n)
        size = nm.where(n.trusted, n.rectified / (nm.sqrt(square) + n.eps), 1.0)
        return p - n.lr * (mean / n.weight1) * size


@takes_hints
class Adamax(_AdamLike):
    """Adam by the largest gradient of late, instead of a running square. Arguments as of `Adam`."""

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        options |= {"maximize": maximize, "decoupled_weight_decay": False}
        super().__init__(params, options)

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        zeros = {"exp_avg": nm.zeros_like(p), "exp_inf": nm.zeros_like(p)}
        return {"step": count_of_steps(p), **zeros}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = decayed(p, g, group, n)
        mean = state["exp_avg"] + (g - state["exp_avg"]) * n.share1
        largest = nm.maximum(state["exp_inf"] * n.beta2, nm.abs(g) + n.eps)
        state["exp_avg"].assign(mean)
        state["exp_inf"].assign(largest)
        return p - n.lr / n.weight1 * mean / largest
