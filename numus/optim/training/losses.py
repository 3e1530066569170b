"""The numbers that steps give, looked at now and then, and their means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numus as nm
from numus.errors import NonFiniteError
from numus.nn.state import require
from numus.optim.training.steps import Compute, Step
from numus.tensor import Tensor


@dataclass(slots=True)
class Taken:
    """A step that was taken."""

    number: int
    weight: float  # how many examples it counts for
    rate: float  # of learning
    values: list[float] = field(default_factory=list)  # the loss, and what else there is


class Losses:
    """Numbers of steps that were not looked at yet: looking at them waits for the device."""

    def __init__(self, step: Step, check_finite: bool) -> None:
        self._step = step
        self._check = check_finite
        self._waiting: list[tuple[Taken, Tensor, Compute]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, step: Taken, out: Tensor, compute: Compute) -> None:
        """A step, the numbers that it gave, and how they were computed."""
        self._waiting.append((step, out, compute))

    def read(self) -> Iterator[Taken]:
        """The steps since the last time, with their numbers, up to one that is not finite."""
        waiting, self._waiting = self._waiting, []
        for step, out, compute in waiting:
            step.values = [float(x) for x in out.numpy().ravel()]
            if self._check and not math.isfinite(step.values[0]):
                self._complain(step.number, step.values[0], compute)
            yield step

    def _complain(self, number: int, loss: float, compute: Compute) -> None:
        """Say where a loss that is not finite came from."""
        what = f"Trainer: the loss of step {number} is {loss}"
        bad = [p for p in self._step.optimizer._parameters() if not nm.all(nm.isfinite(p)).item()]
        if bad:
            raise NonFiniteError(
                f"{what}, and so are {len(bad)} parameters: a step before it had gradients that "
                "were not finite. `with nm.debug_nans():` around the training names the operation"
            )
        # a NaN is looked for by itself first: there are infinities that do no harm
        for infs in (False, True) if math.isnan(loss) else (True,):
            try:
                with nm.debug_nans(infs=infs):
                    loss_again, _ = self._step.losses(compute)
                    loss_again.backward()
            except NonFiniteError as error:
                raise NonFiniteError(f"{what}: {error}") from None
            finally:
                self._step.optimizer.zero_grad()
        raise NonFiniteError(
            f"{what}; computed again it is not. `with nm.debug_nans():` around the training names "
            "the operation when it happens"
        )


class Sums:
    """Sums of numbers over batches, weighted by their examples."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.totals: list[float] = []
        self.recent = math.nan  # the last loss

    def add(self, values: list[float], weight: float) -> None:
        self.totals = self.totals or [0.0] * len(values)
        self.totals = [t + v * weight for t, v in zip(self.totals, values, strict=True)]
        self.weight += weight
        self.recent = values[0]

    def means(self, names: Sequence[str]) -> dict[str, float]:
        return {
            name: total / self.weight
            for name, total in zip(["loss", *names], self.totals, strict=False)
        }

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "totals": self.totals, "recent": self.recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._prepare_state(state)()

    def _prepare_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state, "weight", "totals", "recent")
        weight, recent = float(state["weight"]), float(state["recent"])
        totals = [float(x) for x in state["totals"]]

        def commit() -> None:
            self.weight, self.totals, self.recent = weight, totals, recent

        return commit
