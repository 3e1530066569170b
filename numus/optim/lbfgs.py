"""L-BFGS: steps by an estimate of the curvature, for smooth losses of the whole data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numus as nm
from numus.nn.state import require
from numus.optim.optimizer import Optimizer
from numus.tensor import Tensor

__all__ = ["LBFGS"]

Value = Callable[[float], tuple[float, Tensor]]
_CURVATURE = ("scale", "direction", "gradient", "last_step", "iterations")  # saved with the pairs


class LBFGS(Optimizer):
    """The quasi-Newton method with limited memory; `step(closure)` evaluates the loss many times.

    Its path depends on values, so it can't be traced by `nm.jit`; the closure can.

    Args:
        max_iter: iterations in one step.
        max_eval: evaluations of the closure in one step (5/4 of max_iter where it isn't given).
        history_size: how many differences are kept for the estimate.
        line_search_fn: None for steps of lr, or "strong_wolfe".
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(
                f'LBFGS: line_search_fn is None or "strong_wolfe", not {line_search_fn!r}'
            )
        options: dict[str, Any] = {"lr": lr, "max_iter": max_iter, "history_size": history_size}
        options |= {"max_eval": max_iter * 5 // 4 if max_eval is None else max_eval}
        options |= {"tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        super().__init__(params, {**options, "line_search_fn": line_search_fn})
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS: all parameters are one vector, so there is one group of them")
        self._pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=history_size)  # steps, changes
        self._scale: float | None = None  # the first guess of the inverse curvature
        self._direction: Tensor | None = None
        self._gradient: Tensor | None = None  # at the beginning of the last iteration
        self._last_step = 0.0
        self._iterations = 0

    # -- all parameters as one vector -------------------------------------------------------------

    @property
    def _all(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def _flat_gradient(self) -> Tensor:
        parts = [nm.zeros_like(p) if p.grad is None else p.grad for p in self._all]
        return _evaluated(nm.concat([g.reshape(-1) for g in parts]))

    def _move(self, origin: list[Tensor], direction: Tensor, t: float) -> None:
        start = 0
        with nm.no_grad():
            for p, x in zip(self._all, origin, strict=True):
                part = direction[start : start + p.size].reshape(p.shape)
                p.assign(x + part * t)
                start += p.size
        nm.eval(self._all)

    # -- one step ---------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:
        """Iterate until a limit or a tolerance is reached; gives the loss at the beginning."""
        if closure is None:
            raise ValueError("LBFGS: step needs a closure that computes the loss and its gradients")
        group = self.param_groups[0]

        def measured() -> tuple[float, Tensor]:
            with nm.enable_grad():
                found = closure()
            return float(found), self._flat_gradient()

        with nm.enable_grad():
            first = closure()
        loss, g = float(first), self._flat_gradient()
        evaluations = 1
        if _largest(g) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            self._iterations += 1
            d = self._next_direction(g)
            before, self._gradient = loss, g
            t = group["lr"]
            if self._iterations == 1:
                t *= min(1.0, 1.0 / float(nm.sum(nm.abs(g))))
            slope = _dot(g, d)
            if slope > -group["tolerance_change"]:
                break
            origin = [p.detach().clone() for p in self._all]

            def along(step: float, origin: Any = origin, d: Tensor = d) -> tuple[float, Tensor]:
                self._move(origin, d, step)
                return measured()

            if group["line_search_fn"]:
                t, loss, g, used = strong_wolfe(
                    along, t, d, loss, g, slope, group["tolerance_change"]
                )
                self._move(origin, d, t)
                evaluations += used
            else:
                self._move(origin, d, t)
                if iteration != group["max_iter"]:  # after the last nobody looks at it
                    loss, g = measured()
                    evaluations += 1
            self._last_step = t
            if (
                evaluations >= group["max_eval"]
                or _largest(g) <= group["tolerance_grad"]
                or _largest(d) * t <= group["tolerance_change"]
                or abs(loss - before) < group["tolerance_change"]
            ):
                break
        return first

    def _next_direction(self, g: Tensor) -> Tensor:
        """Against the gradient, turned by what the last steps say of the curvature."""
        if self._direction is not None and self._gradient is not None:
            change = _evaluated(g - self._gradient)
            step = _evaluated(self._direction * self._last_step)
            curvature = _dot(change, step)
            if curvature > 1e-10:
                self._pairs.append((step, change))
                self._scale = curvature / _dot(change, change)
        q = -g
        weights = []
        for step, change in reversed(self._pairs):
            rho = 1.0 / _dot(change, step)
            weights.append(rho * _dot(step, q))
            q = _evaluated(q - change * weights[-1])
        d = q if self._scale is None else q * self._scale
        for step, change in self._pairs:
            rho = 1.0 / _dot(change, step)
            d = _evaluated(d + step * (weights.pop() - rho * _dot(change, d)))
        self._direction = _evaluated(d)
        return self._direction

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters and what is known of the curvature."""
        curvature = {name: getattr(self, f"_{name}") for name in _CURVATURE}
        return {**super().state_dict(), "curvature": {"pairs": list(self._pairs), **curvature}}

    def _prepare_state(self, state_dict: Any) -> Callable[[], None]:
        load = super()._prepare_state(state_dict)
        require(self, state_dict, "curvature")
        saved = state_dict["curvature"]
        require(self, saved, "pairs", *_CURVATURE)
        pairs = [(step, change) for step, change in saved["pairs"]]

        def commit() -> None:
            load()
            self._pairs = deque(pairs, maxlen=self.param_groups[0]["history_size"])
            for name in _CURVATURE:
                setattr(self, f"_{name}", saved[name])

        return commit


def _evaluated(x: Tensor) -> Tensor:
    """Computed now, without history."""
    x = x.detach()
    nm.eval(x)
    return x


def _dot(a: Tensor, b: Tensor) -> float:
    return float(nm.vecdot(a, b))


def _largest(x: Tensor) -> float:
    return float(nm.max(nm.abs(x)))


# -- line search ----------------------------------------------------------------------------------


class _Point(NamedTuple):
    """A step along the line, the loss and gradient after it, and the slope."""

    t: float
    loss: float
    g: Tensor
    slope: float


def _cubic_minimum(a: _Point, b: _Point, low: float, high: float) -> float:
    """Where the cubic through two points with their slopes is least, held within bounds."""
    if a.t > b.t:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if square < 0:
        return (low + high) / 2
    d2 = square**0.5
    found = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    return min(max(found, low), high)


def strong_wolfe(
    along: Value,
    t: float,
    d: Tensor,
    loss: float,
    g: Tensor,
    slope: float,
    tolerance: float,
    c1: float = 1e-4,
    c2: float = 0.9,
    limit: int = 25,
) -> tuple[float, float, Tensor, int]:
    """A step along d after which the loss is lower and the slope flatter, by enough.

    First the step grows until such steps lie inside a bracket; then the bracket is narrowed by
    cubics. Gives the step, its loss and gradient, and how often the loss was evaluated.
    """
    start = _Point(0.0, loss, g, slope)
    evaluations = 0
    longest = _largest(d)

    def at(step: float) -> _Point:
        nonlocal evaluations
        evaluations += 1
        value, gradient = along(step)
        return _Point(step, value, gradient, _dot(gradient, d))

    def too_high(p: _Point) -> bool:
        return p.loss > loss + c1 * p.t * slope

    last, here = start, at(t)
    bracket: list[_Point]
    for turn in range(limit):
        if too_high(here) or (turn > 0 and here.loss >= last.loss):
            bracket = [last, here]
            break
        if abs(here.slope) <= -c2 * slope:
            return here.t, here.loss, here.g, evaluations
        if here.slope >= 0:
            bracket = [last, here]
            break
        low = here.t + 0.01 * (here.t - last.t)
        step = _cubic_minimum(last, here, low, here.t * 10)
        last, here = here, at(step)
    else:
        bracket = [start, here]

    stuck = False
    while evaluations < limit:
        if abs(bracket[1].t - bracket[0].t) * longest < tolerance:
            break
        low, high = sorted(p.t for p in bracket)
        step = _cubic_minimum(bracket[0], bracket[1], low, high)
        # near an end of the bracket twice running, or at it: a tenth of its width inside
        margin = 0.1 * (high - low)
        near_end = min(high - step, step - low) < margin
        if near_end and (stuck or step >= high or step <= low):
            step = high - margin if abs(step - high) < abs(step - low) else low + margin
            near_end = False
        stuck = near_end
        here = at(step)
        best, other = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
        if too_high(here) or here.loss >= bracket[best].loss:
            bracket[other] = here
            continue
        if abs(here.slope) <= -c2 * slope:
            return here.t, here.loss, here.g, evaluations
        if here.slope * (bracket[other].t - bracket[best].t) >= 0:
            bracket[other] = bracket[best]
        bracket[best] = here
    best_point = min(bracket, key=lambda p: p.loss)
    return best_point.t, best_point.loss, best_point.g, evaluations
