"""From a loss to a step: gradients, clipping, the update; traced where it can be.

A step that meets a loss that is not finite leaves parameters and state as they were, so that who
looks at the loss later can still find out which operation made it so.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.errors import TracingError
from numus.graph import current_trace
from numus.optim.averaging import EMA
from numus.optim.gradients import GradScaler
from numus.optim.lbfgs import LBFGS
from numus.optim.optimizer import Optimizer
from numus.optim.training.closures import Reached
from numus.optim.training.strategies import Strategy
from numus.tensor import Tensor
from numus.transforms.jit.tracing import handles_of

Computed = tuple[Tensor, dict[str, Any]]  # a loss, and other numbers by name
Compute = Callable[[], Computed]

_MAX_PROGRAMS = 8  # closures that differ more often than this are not worth tracing


@dataclass(eq=False)
class Step:
    """One step of an optimiser, or a part of it where gradients of several batches are gathered."""

    optimizer: Optimizer
    max_grad_norm: float | None
    precision: str | None
    scaler: GradScaler | None
    ema: EMA | None
    accumulate: int
    check_finite: bool
    strategy: Strategy

    def __post_init__(self) -> None:
        # a step that looks at values itself cannot be undone; scalers skip bad steps themselves
        self.guarded = self.check_finite and self.traceable and self.scaler is None

    @property
    def traceable(self) -> bool:
        """Whether the optimiser's step can be part of a program."""
        return type(self.optimizer).step is Optimizer.step

    def tensors(self) -> list[Tensor]:
        """All that a step reads and changes by itself."""
        found = [x for p, state in self.optimizer.state.items() for x in (p, *state.values())]
        for group in self.optimizer.param_groups:
            found += group["params"]
            for p in group["params"]:
                found += [x for x in vars(group.numbers(p)).values() if isinstance(x, Tensor)]
        for part in (self.scaler, self.ema):
            found += [x for x in nm.tree.leaves(vars(part or _NOBODY)) if isinstance(x, Tensor)]
        return found + [p.grad for p in self.optimizer._parameters() if p.grad is not None]

    def losses(self, compute: Compute) -> Computed:
        """The loss in the precision asked for."""
        with nm.autocast(self.precision) if self.precision else contextlib.nullcontext():
            loss, numbers = compute()
        if not isinstance(loss, Tensor) or loss.shape != ():
            kind = f"of shape {loss.shape}" if isinstance(loss, Tensor) else f"{loss!r}"
            raise TypeError(f"Trainer: a loss is one number, not {kind}; take its mean")
        return loss, numbers

    def __call__(self, compute: Compute, first: bool, last: bool) -> Tensor:
        """Gradients of a batch; where it is the last of those gathered, the step.

        Gives the loss and the other numbers in one tensor.
        """
        if isinstance(self.optimizer, LBFGS):
            return self._by_closure(compute)
        if first:
            self.optimizer.zero_grad()
        loss, numbers = self.losses(compute)
        part = loss if self.accumulate == 1 else loss * (1 / self.accumulate)
        (self.scaler.scale(part) if self.scaler else part).backward()
        loss = loss.detach()
        out = packed(loss, numbers)
        if self.strategy.size > 1:  # all ranks decide alike
            out = self.strategy.mean(out)
            loss = out.reshape(-1)[0]
        if last:
            self._update(loss)
        return out

    def _update(self, loss: Tensor) -> None:
        optimizer, scaler = self.optimizer, self.scaler
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = None
        if self.max_grad_norm is not None:
            norm = self.strategy.clip(optimizer, self.max_grad_norm)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif self.guarded:
            finite = nm.isfinite(loss)
            optimizer.step_unless(~(finite if norm is None else finite & nm.isfinite(norm)))
        else:
            optimizer.step()
        optimizer.zero_grad()  # nobody keeps them, so they need not be written
        if self.ema is not None:
            self.ema.update()

    def _by_closure(self, compute: Compute) -> Tensor:
        """A step that computes losses as often as it needs to."""
        first: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss, numbers = self.losses(compute)
            loss.backward()
            first.append(packed(loss.detach(), numbers))
            return loss

        self.optimizer.step(closure)
        if self.ema is not None:
            self.ema.update()
        return first[0]


_NOBODY = type("_NOBODY", (), {})()


def packed(loss: Tensor, numbers: dict[str, Any]) -> Tensor:
    """A loss and other numbers in one tensor, so that they are read at once; a loss alone as is."""
    if not numbers:
        return loss
    parts = [loss, *(nm.asarray(x).to(loss.device) for x in numbers.values())]
    return nm.stack([x.detach().astype(nm.float32, copy=False).reshape(()) for x in parts])


# -- closures -------------------------------------------------------------------------------------


class _UntraceableError(Exception):
    """A closure reads what is not known to be the same at the next call."""


class ClosureSteps:
    """Steps from functions without arguments, each traced once for all that have its code."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._programs: dict[Any, _ClosureProgram] = {}
        self._plain: set[Any] = set()  # codes of functions that are called as they are

    def __call__(self, closure: Callable[[], Any], first: bool, last: bool) -> Tensor:

        def compute() -> Computed:
            return closure(), {}

        code = getattr(closure, "__code__", None)
        if not self._step.traceable or code is None or code in self._plain:
            return self._step(compute, first, last)
        reached = Reached(closure)
        key = reached.key()
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._give_up(code, "the values that it reaches differ at each call")
                return self._step(compute, first, last)
            program = self._programs[key] = _ClosureProgram(self._step)
        try:
            return program(closure, reached, first, last)
        except (TracingError, _UntraceableError) as error:
            self._give_up(code, str(error))
            return self._step(compute, first, last)

    def _give_up(self, code: Any, why: str) -> None:
        self._plain.add(code)
        warnings.warn(
            f"Trainer.train_step: the function at {code.co_filename}, line {code.co_firstlineno} "
            f"is not traced, so its steps are slower: {why}",
            RuntimeWarning,
            stacklevel=5,
        )


class _ClosureProgram:
    """The program of closures that share their code and all that is not a tensor."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._jitted: dict[tuple[bool, bool], Callable[..., Any]] = {}
        self._closure: Any = None
        self._reached: Reached | None = None
        self._referenced: Any = None

    def __call__(self, closure: Any, reached: Reached, first: bool, last: bool) -> Tensor:
        # ids that the key is made of stay theirs
        self._referenced = self._referenced or reached.referenced
        jitted = self._jitted.get((first, last))
        if jitted is None:
            run = functools.partial(self._run, first, last)
            jitted = self._jitted[first, last] = nm.jit(run)
        self._closure, self._reached = closure, reached
        try:
            out: Tensor = jitted(*reached.values())  # by place: the short way of nm.jit
            return out
        finally:
            self._closure = self._reached = None

    def _run(self, first: bool, last: bool, *values: Any) -> Tensor:
        reached, closure = self._reached, self._closure
        assert reached is not None
        out = self._step(lambda: (reached.call_with(closure, values), {}), first, last)
        trace = current_trace()
        if trace is not None:
            _check_trace(trace, [*self._step.tensors(), *reached.tensors()])
        return out


def _check_trace(trace: Any, known: list[Tensor]) -> None:
    """Refuse values that another call would not see changed."""
    if trace.constants:
        node = next(iter(trace.constants))
        raise _UntraceableError(
            f"it makes a {node.dtype.name}{list(node.shape)} of the host's data, which may be "
            "other data at the next call; make it outside, and let the function reach it"
        )
    ids = {id(x) for x in (*known, *trace.grads_read.values())}
    for node in trace.captured:
        handles = handles_of(node)
        if handles and all(id(x) not in ids for x in handles):
            raise _UntraceableError(
                f"it reaches a {node.dtype.name}{list(node.shape)} that is neither a variable, "
                "nor an attribute of an object that it mentions, nor a part of a module"
            )
