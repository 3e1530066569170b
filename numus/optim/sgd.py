"""Stochastic gradient descent with momentum."""

from __future__ import annotations

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

__all__ = ["SGD"]


@takes_hints
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
        check("SGD", lr=(lr, lr >= 0), momentum=(momentum, momentum >= 0))
        check("SGD", weight_decay=(weight_decay, weight_decay >= 0))
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs momentum, and no dampening")
        options = {"lr": lr, "momentum": momentum, "dampening": dampening}
        options |= {"weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {
            "lr": group["lr"],
            "momentum": group["momentum"],
            "weight_decay": group["weight_decay"],
            "undamped": 1 - group["dampening"],
        }

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        if not group["momentum"]:
            return {}
        state = {"momentum_buffer": nm.zeros_like(p)}
        if group["dampening"]:
            state["step"] = count_of_steps(p)
        return state

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = decayed(p, g, group, n)
        if not group["momentum"]:
            return p - g * n.lr
        velocity = state["momentum_buffer"] * n.momentum
        if group["dampening"]:  # the first gradient comes undamped
            velocity = nm.where(state["step"] == 1, g, velocity + g * n.undamped)
        else:
            velocity = velocity + g
        state["momentum_buffer"].assign(velocity)
        return p - (g + velocity * n.momentum if group["nesterov"] else velocity) * n.lr
