"""Gradients between `backward()` and a step: clipped, accumulated, scaled (mixed precision)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numus as nm
from numus.nn.state import require
from numus.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from numus.optim.optimizer import Optimizer, evaluate_all
from numus.tensor import Tensor

__all__ = [
    "GradScaler", "GradientAccumulator", "clip_grad_norm_", "clip_grad_value_", "get_total_norm",
]  # fmt: skip


class GradientAccumulator:
    """One step for the gradients of several batches, as if they had been one.

    >>> from numus import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> gather = optim.GradientAccumulator(optim.SGD(model.parameters(), lr=0.1), every=2)
    >>> for batch in nm.ones((4, 3, 2)):
    ...     with gather.batch() as scale:
    ...         (model(batch).square().mean() * scale).backward()
    >>> gather.steps
    2
    """

    def __init__(self, optimizer: Optimizer, every: int) -> None:
        if every < 1:
            raise ValueError(f"GradientAccumulator: gathers at least one batch, not {every}")
        self.optimizer = optimizer
        self.every = every
        self.batches = 0
        self.steps = 0

    @contextmanager
    def batch(self) -> Iterator[float]:
        """One batch: gives what to scale its loss by; every so often, ends with a step."""
        yield 1.0 / self.every
        self.batches += 1
        if self.batches % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1


class GradScaler:
    """Scales losses, unscales gradients, leaves out steps with gradients that are not finite.

    The scale falls after such a step, and rises after many good ones. Nothing depends on a value in
    Python, so all of it can be traced by `nm.jit`.

    >>> from numus import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> opt, scaler = optim.SGD(model.parameters(), lr=0.1), optim.GradScaler(init_scale=4.0)
    >>> with nm.autocast("f16"):
    ...     loss = model(nm.ones((3, 2))).square().mean()
    >>> scaler.scale(loss).backward()
    >>> scaler.step(opt)
    >>> scaler.update()

    Args:
        init_scale: the first scale.
        growth_factor: what it is multiplied by after `growth_interval` good steps in a row.
        backoff_factor: what it is multiplied by after a step that was left out.
        enabled: whether it does anything at all.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        device: Any = None,
    ) -> None:
        if growth_factor <= 1.0 or not 0.0 < backoff_factor < 1.0:
            raise ValueError(
                f"GradScaler: growth_factor {growth_factor} must be above 1, backoff_factor "
                f"{backoff_factor} between 0 and 1"
            )
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self._enabled = enabled
        self._scale = nm.asarray(init_scale, dtype=nm.float32, device=device)
        self._growth = nm.asarray(0, dtype=nm.int32, device=device)  # good steps since a rise
        self._found = nm.asarray(False, device=device)  # whether a gradient of this round was bad
        self._unscaled: dict[int, Tensor] = {}  # per optimiser, whether its gradients were bad
        nm.eval(self._scale, self._growth, self._found)

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale now."""
        return self._scale.item() if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """A loss (or a container of them) times the scale, in float32."""
        if not self._enabled:
            return outputs
        return nm.tree.map(lambda x: x.astype(nm.float32, copy=False) * self._scale, outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, to look at them or clip them before the step."""
        if not self._enabled:
            return
        if id(optimizer) in self._unscaled:
            raise RuntimeError("GradScaler.unscale_: called twice since the last update()")
        with nm.no_grad():
            back = 1.0 / self._scale
            finite = []
            for p in optimizer._parameters():
                if p.grad is not None:
                    wide = p.grad.astype(nm.float32, copy=False) * back
                    finite.append(nm.all(nm.isfinite(wide)))
                    p.grad = wide.astype(p.grad.dtype, copy=False)
            if not finite:
                raise ValueError(
                    "GradScaler.unscale_: the optimiser's parameters have no gradients"
                )
            bad = ~nm.all(nm.stack(finite))
            self._unscaled[id(optimizer)] = bad
            self._found.assign(self._found | bad)

    def step(self, optimizer: Optimizer) -> None:
        """The optimiser's step; where a gradient is not finite, everything stays as it was."""
        if not self._enabled:
            optimizer.step()
            return
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        optimizer.step_unless(self._unscaled[id(optimizer)])

    def update(self, new_scale: float | None = None) -> None:
        """Let the scale follow what was found; call it once after all steps."""
        if not self._enabled:
            return
        with nm.no_grad():
            if new_scale is not None:
                self._scale.assign(nm.asarray(new_scale, dtype=nm.float32))
            else:
                grown = self._growth + 1
                rises = grown == self.growth_interval
                good = nm.where(rises, self._scale * self.growth_factor, self._scale)
                self._scale.assign(nm.where(self._found, self._scale * self.backoff_factor, good))
                self._growth.assign(nm.where(self._found | rises, 0, grown))
            self._found.assign(nm.zeros_like(self._found))
        self._unscaled.clear()
        evaluate_all((self._scale, self._growth, self._found))

    def state_dict(self) -> dict[str, Any]:
        """The scale, and how it moves."""
        return {
            "scale": self.get_scale(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._growth.item(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave, here or in PyTorch."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: dict[str, Any]) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        factors = ("growth_factor", "backoff_factor", "growth_interval")
        require(self, state_dict, *factors, "scale", "_growth_tracker")
        numbers = {name: state_dict[name] for name in factors}
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise TypeError(f"GradScaler.load_state_dict: {name} is a number, not {number!r}")
        scale = nm.asarray(float(state_dict["scale"]), dtype=nm.float32)
        growth = nm.asarray(operator.index(state_dict["_growth_tracker"]), dtype=nm.int32)

        def commit() -> None:
            vars(self).update(numbers)
            self._scale.assign(scale)
            self._growth.assign(growth)

        return commit
