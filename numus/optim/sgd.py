"""Stochastic gradient descent: with momentum, averaged (ASGD), or by signs alone (Rprop)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numus as nm
from numus.optim import optimizer as base
from numus.optim.optimizer import Numbers, Optimizer, ParamGroup, State
from numus.tensor import Tensor

__all__ = ["ASGD", "SGD", "Rprop"]


@base.takes_hints
class SGD(Optimizer):
    """p -= lr * v, where v is the gradient, or with momentum a decaying sum of gradients.

    >>> from numus import nn, optim
    >>> w = nn.Parameter(nm.asarray([1.0]))
    >>> opt = optim.SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> opt.step()
    >>> w.tolist()
    [0.0]

    Args:
        momentum: what is kept of v at each step.
        dampening: by how much less of the gradient is added to v.
        weight_decay: the gradient of this times half the square of the parameters is added.
        nesterov: look ahead: step by the gradient and momentum * v.
        maximize: go up, not down.
    """

    _reads = _not_negative = ("lr", "momentum", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs momentum, and no dampening")
        options = {"lr": lr, "momentum": momentum, "dampening": dampening}
        options |= {"weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {**super()._numbers(group), "undamped": 1 - group["dampening"]}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        if not group["momentum"]:
            return {}
        state = {"momentum_buffer": nm.zeros_like(p)}
        if group["dampening"]:
            state["step"] = base.count_of_steps(p)
        return state

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = base.decayed(p, g, group, n)
        if not group["momentum"]:
            return p - g * n.lr
        velocity = state["momentum_buffer"] * n.momentum
        if group["dampening"]:  # the first gradient comes undamped
            velocity = nm.where(state["step"] == 1, g, velocity + g * n.undamped)
        else:
            velocity = velocity + g
        state["momentum_buffer"].assign(velocity)
        return p - (g + velocity * n.momentum if group["nesterov"] else velocity) * n.lr


@base.takes_hints
class Rprop(Optimizer):
    """Each element has a step of its own, which grows while its gradient keeps its sign.

    Args:
        etas: by what steps shrink when the sign changes, and grow when it does not.
        step_sizes: the smallest and the largest step.
    """

    _not_negative = ("lr",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
    ) -> None:
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Rprop: etas {etas} are not around 1")
        options = {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        (shrink, grow), (low, high) = group["etas"], group["step_sizes"]
        return {"lr": group["lr"], "shrink": shrink, "grow": grow, "low": low, "high": high}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        size = nm.full_like(p, group["lr"])
        return {"step": base.count_of_steps(p), "prev": nm.zeros_like(p), "step_size": size}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        sign = g * state["prev"]
        by = nm.where(sign > 0, n.grow, nm.where(sign < 0, n.shrink, nm.ones_like(n.grow)))
        size = nm.minimum(nm.maximum(state["step_size"] * by, n.low), n.high)
        g = nm.where(sign < 0, nm.zeros_like(g), g)  # an element whose sign changed waits
        state["step_size"].assign(size)
        state["prev"].assign(g)
        return p - nm.sign(g) * size


@base.takes_hints
class ASGD(Optimizer):
    """Gradient descent with a rate that falls, and an average of the parameters (`ax`).

    Args:
        lambd: decay of parameters.
        alpha: the power by which the rate falls.
        t0: the step from which on parameters are averaged.
    """

    _reads = ("lr", "lambd", "alpha", "t0", "weight_decay")
    _not_negative = ("lr", "weight_decay")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0}
        options |= {"weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        one = base.count_of_steps(p) + 1
        state = {"step": base.count_of_steps(p), "eta": one * group["lr"], "mu": one}
        return {**state, "ax": nm.zeros_like(p)}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = base.decayed(p, g, group, n)
        step = state["step"].astype(p.dtype, copy=False)
        eta, mu = (state[name].astype(p.dtype, copy=False) for name in ("eta", "mu"))
        new = p * (1 - n.lambd * eta) - g * eta
        average = state["ax"]
        average.assign(nm.where(mu == 1, new, average + (new - average) * mu))
        state["eta"].assign(n.lr / (1 + n.lambd * n.lr * step) ** n.alpha)
        state["mu"].assign(1 / nm.maximum(step - n.t0, 1))
        return new
