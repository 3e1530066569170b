"""Adam and its kin: steps in units of the gradient's own size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numus as nm
from numus.optim import optimizer as base
from numus.optim.optimizer import Numbers, Optimizer, ParamGroup, State
from numus.tensor import Tensor

__all__ = ["LAMB", "Adam", "AdamW", "Adamax", "Lion", "NAdam", "RAdam"]


def _unbiased(log_beta: Tensor, step: Tensor) -> Tensor:
    """1 - beta^step: the weight that a running mean has gathered so far."""
    return -nm.expm1(step.astype(log_beta.dtype, copy=False) * log_beta)


class _AdamLike(Optimizer):
    """Running means of gradients, and weight decay of either kind."""

    _not_negative: ClassVar[tuple[str, ...]] = ("lr", "eps", "weight_decay")

    def __init__(self, params: Any, options: dict[str, Any]) -> None:
        for i, beta in enumerate(options["betas"]):
            base.check(type(self).__name__, **{f"betas[{i}]": (beta, 0 <= beta < 1)})
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        """1 - beta and log(beta) are taken in float64, where there are digits for them."""
        beta1, beta2 = group["betas"]
        return {
            **{name: group[name] for name in self._not_negative},
            **{"share1": 1 - beta1, "share2": 1 - beta2, "beta2": beta2},
            "log_beta1": math.log(beta1) if beta1 else -math.inf,
            "log_beta2": math.log(beta2) if beta2 else -math.inf,
        }

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        return {
            "weight1": _unbiased(n.log_beta1, step),
            "weight2": _unbiased(n.log_beta2, step),
            "shrunk": 1 - n.lr * n.weight_decay,
        }

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        return base.zeros_and_step(p, "exp_avg", "exp_avg_sq")

    def _moments(self, g: Tensor, state: State, n: Numbers) -> tuple[Tensor, Tensor]:
        """Running means of the gradient and of its square."""
        mean = state["exp_avg"] + (g - state["exp_avg"]) * n.share1
        square = state["exp_avg_sq"] * n.beta2 + g * g * n.share2
        state["exp_avg"].assign(mean)
        state["exp_avg_sq"].assign(square)
        return mean, square

    def _shrink(self, p: Tensor, g: Tensor, group: ParamGroup, n: Numbers) -> tuple[Tensor, Tensor]:
        if not group["decoupled_weight_decay"]:
            return p, base.decayed(p, g, group, n)
        return (p * n.shrunk if group["weight_decay"] else p), g


@base.takes_hints
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
        super().__init__(params, {**options, "decoupled_weight_decay": decoupled_weight_decay})

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
        mean, square = self._moments(g, state, n)
        if group["amsgrad"]:
            square = nm.maximum(state["max_exp_avg_sq"], square)
            state["max_exp_avg_sq"].assign(square)
        return p - mean * n.size / (nm.sqrt(square) * n.scale + n.eps)


@base.takes_hints
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


class Lion(_AdamLike):
    """Steps of lr in every coordinate, by the sign of a mean of gradients (Chen et al.).

    Args:
        betas: what is kept of the mean for the step that is taken, and for the steps after it.
        weight_decay: parameters shrink by lr times this at each step.
    """

    _not_negative = ("lr", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

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
    """Adam with steps as long as the parameter, times lr (You et al.). Arguments as of `AdamW`."""

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
        mean, square = self._moments(g, state, n)
        direction = mean / n.weight1 / (nm.sqrt(square / n.weight2) + n.eps)
        if group["weight_decay"]:
            direction = direction + p * n.weight_decay
        own, length = nm.vector_norm(p), nm.vector_norm(direction)
        both = (own > 0) & (length > 0)
        trust = nm.where(both, own / nm.where(both, length, 1.0), 1.0)
        return p - direction * (trust * n.lr)


@base.takes_hints
class NAdam(_AdamLike):
    """Adam with Nesterov's momentum (Dozat).

    Args:
        momentum_decay: how fast the momentum comes to its first beta. Others as of `Adam`.
    """

    _not_negative = ("lr", "eps", "weight_decay", "momentum_decay")

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
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"momentum_decay": momentum_decay, "maximize": maximize}
        super().__init__(params, {**options, "decoupled_weight_decay": decoupled_weight_decay})

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        decay = group["momentum_decay"] * math.log(0.96)
        return {**super()._numbers(group), "beta1": group["betas"][0], "log_decay": decay}

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        time = step.astype(n.lr.dtype, copy=False)
        now = n.beta1 * (1 - 0.5 * nm.exp(time * n.log_decay))
        following = n.beta1 * (1 - 0.5 * nm.exp((time + 1) * n.log_decay))
        return {**super()._derived(n, step), "now": now, "following": following}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        one = nm.ones((), dtype=nm.float32, device=p.device)
        return {**super()._state(p, group), "mu_product": one}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        p, g = self._shrink(p, g, group, n)
        mean, square = self._moments(g, state, n)
        product = state["mu_product"].astype(p.dtype, copy=False) * n.now
        state["mu_product"].assign(product)
        spread = nm.sqrt(square / n.weight2) + n.eps
        by_gradient = n.lr * (1 - n.now) / (1 - product)
        by_mean = n.lr * n.following / (1 - product * n.following)
        return p - by_gradient * g / spread - by_mean * mean / spread


@base.takes_hints
class RAdam(_AdamLike):
    """Adam with a rectified variance in its first steps (Liu et al.). Arguments as of `Adam`."""

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
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        longest = 2 / (1 - group["betas"][1]) - 1
        return {**super()._numbers(group), "longest": longest}

    def _derived(self, n: Numbers, step: Tensor | None) -> Mapping[str, Tensor]:
        assert step is not None
        common = super()._derived(n, step)
        time = step.astype(n.lr.dtype, copy=False)
        length = n.longest - 2 * time * (1 - common["weight2"]) / common["weight2"]
        trusted = length > 5
        safe = nm.where(trusted, length, 6.0)
        share = (safe - 4) * (safe - 2) * n.longest / ((n.longest - 4) * (n.longest - 2) * safe)
        rectified = nm.sqrt(share * common["weight2"])
        return {**common, "trusted": trusted, "rectified": rectified}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        p, g = self._shrink(p, g, group, n)
        mean, square = self._moments(g, state, n)
        size = nm.where(n.trusted, n.rectified / (nm.sqrt(square) + n.eps), 1.0)
        return p - n.lr * (mean / n.weight1) * size


@base.takes_hints
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
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options |= {"maximize": maximize, "decoupled_weight_decay": False}
        super().__init__(params, options)

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        return base.zeros_and_step(p, "exp_avg", "exp_inf")

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = base.decayed(p, g, group, n)
        mean = state["exp_avg"] + (g - state["exp_avg"]) * n.share1
        largest = nm.maximum(state["exp_inf"] * n.beta2, nm.abs(g) + n.eps)
        state["exp_avg"].assign(mean)
        state["exp_inf"].assign(largest)
        return p - n.lr / n.weight1 * mean / largest
