"""Steps from signs, and averages of steps: Rprop and ASGD."""

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

__all__ = ["ASGD", "Rprop"]


@takes_hints
class Rprop(Optimizer):
    """Each element has a step of its own, which grows while its gradient keeps its sign.

    Args:
        etas: by what steps shrink when the sign changes, and grow when it does not.
        step_sizes: the smallest and the largest step.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
    ) -> None:
        check("Rprop", lr=(lr, lr >= 0))
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Rprop: etas {etas} are not around 1")
        options = {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        (less, more), (least, most) = group["etas"], group["step_sizes"]
        return {"lr": group["lr"], "less": less, "more": more, "least": least, "most": most}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        size = nm.full_like(p, group["lr"])
        return {"step": count_of_steps(p), "prev": nm.zeros_like(p), "step_size": size}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        turn = g * state["prev"]
        by = nm.where(turn > 0, n.more, nm.where(turn < 0, n.less, nm.ones_like(n.more)))
        size = nm.minimum(nm.maximum(state["step_size"] * by, n.least), n.most)
        g = nm.where(turn < 0, nm.zeros_like(g), g)  # after a turn, an element waits
        state["step_size"].assign(size)
        state["prev"].assign(g)
        return p - nm.sign(g) * size


@takes_hints
class ASGD(Optimizer):
    """Gradient descent with a rate that falls, and an average of the parameters (`ax`).

    Args:
        lambd: decay of parameters.
        alpha: the power by which the rate falls.
        t0: the step from which on parameters are averaged.
    """

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
        check("ASGD", lr=(lr, lr >= 0), weight_decay=(weight_decay, weight_decay >= 0))
        options = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0}
        options |= {"weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, float]:
        return {n: group[n] for n in ("lr", "lambd", "alpha", "t0", "weight_decay")}

    def _state(self, p: Tensor, group: ParamGroup) -> State:
        one = count_of_steps(p) + 1
        state = {"step": count_of_steps(p), "eta": one * group["lr"], "mu": one}
        return {**state, "ax": nm.zeros_like(p)}

    def _update(self, p: Tensor, g: Tensor, state: State, group: ParamGroup, n: Numbers) -> Tensor:
        g = decayed(p, g, group, n)
        step = state["step"].astype(p.dtype)
        eta, mu = (state[name].astype(p.dtype) for name in ("eta", "mu"))
        new = p * (1 - n.lambd * eta) - g * eta
        average = state["ax"]
        average.assign(nm.where(mu == 1, new, average + (new - average) * mu))
        state["eta"].assign(n.lr / (1 + n.lambd * n.lr * step) ** n.alpha)
        state["mu"].assign(1 / nm.maximum(step - n.t0, 1))
        return new
