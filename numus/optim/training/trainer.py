"""Trainer: steps by themselves, or whole trainings with all that belongs to them."""

from __future__ import annotations

import contextlib
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.errors import TracingError
from numus.nn.state import require
from numus.optim.averaging import EMA
from numus.optim.gradients import GradScaler
from numus.optim.lr_scheduler import ReduceLROnPlateau
from numus.optim.optimizer import Optimizer
from numus.optim.training.callbacks import Callback, monitored
from numus.optim.training.fitting import Fit
from numus.optim.training.losses import Losses, Sums, Taken
from numus.optim.training.progress import Bar
from numus.optim.training.records import Record, Records
from numus.optim.training.steps import ClosureSteps, Compute, Computed, Step, packed
from numus.optim.training.strategies import Strategy, strategy_of
from numus.tensor import Tensor

__all__ = ["Trainer"]

Metric = Callable[[Tensor, Tensor], Any]
Run = Callable[..., Tensor]
_LOOK_SECONDS = 0.1  # how often losses are looked at: looking waits for the device
_MAX_WAITING = 256


class Trainer:
    """Takes steps of an optimiser and keeps count of their losses.

    With functions that compute a loss, in a loop of your own:

    >>> from numus import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> trainer = Trainer(optim.AdamW(model.parameters(), lr=0.01))
    >>> x, y = nm.ones((4, 2)), nm.zeros((4, 1))
    >>> for _ in range(3):
    ...     loss = trainer.train_step(lambda: nn.mse_loss(model(x), y))
    >>> trainer.epoch_avg_loss() > 0
    True

    Or with a model and a loss, for whole trainings:

    >>> trainer = Trainer(optim.AdamW(model.parameters()), model, nn.mse_loss)
    >>> history = trainer.fit([(x, y)] * 8, epochs=2, progress=False)
    >>> history[1]["loss"] < history[0]["loss"]
    True

    Args:
        model, loss: a batch is (inputs..., targets), its loss `loss(model(inputs...), targets)`.
        compute: instead of `loss`, for other batches: a function of (model, batch) that gives the
            loss, or the loss and a dict of other numbers.
        metrics: functions of (outputs, targets), by name; numbers or tensors of one element.
        scheduler: stepped after every step of the optimiser; `ReduceLROnPlateau` after every epoch.
        scheduler_every: "step" or "epoch".
        max_grad_norm: gradients are scaled down to it.
        accumulate: the number of batches whose gradients make one step.
        precision: "bf16" or "f16" for products (`nm.autocast`); "f16" brings a `GradScaler`.
        ema: an average of the weights that goes along, and is what validations look at.
        jit: trace steps; where one cannot be, a warning says why, and it runs as it is.
        check_finite: raise `NonFiniteError` when a loss is not finite, naming the operation.
        strategy: "ddp" or "fsdp" on the ranks of a job (`numus launch`), a Ray cluster's workers
            by `nm.distributed.RayStrategy`: see docs/distributed.md. The model is wrapped, and the
            loader's batches are those of all ranks, each of which gets its part.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module | None = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        *,
        compute: Callable[[Any, Any], Any] | None = None,
        metrics: Mapping[str, Metric] | None = None,
        scheduler: Any = None,
        scheduler_every: str | None = None,
        max_grad_norm: float | None = None,
        accumulate: int = 1,
        precision: str | None = None,
        scaler: GradScaler | None = None,
        ema: EMA | None = None,
        jit: bool = True,
        check_finite: bool = True,
        strategy: str | Strategy | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"Trainer: model is a Module, not a {type(model).__name__}")
        if loss is not None and compute is not None:
            raise ValueError("Trainer: give loss or compute, not both")
        if compute is not None and metrics:
            raise ValueError(
                "Trainer: metrics= needs loss=; compute() must return (loss, metrics: dict)"
            )
        if accumulate < 1:
            raise ValueError(f"Trainer: accumulate is at least 1, not {accumulate}")
        if scheduler_every not in (None, "step", "epoch"):
            raise ValueError(f"Trainer: scheduler_every {scheduler_every!r} is step or epoch")
        if scaler is None and precision in ("f16", "float16", nm.float16):
            scaler = GradScaler()
        self.optimizer = optimizer
        self.model = model
        self.loss = loss
        self.compute = compute
        self.metrics = dict(metrics or {})
        self.scheduler = scheduler
        self.scaler = scaler
        self.ema = ema
        self.accumulate = accumulate
        self.epoch = 0  # that have ended
        self.step = 0  # batches so far
        self.history: list[Record] = []
        self.should_stop = False
        plateau = isinstance(scheduler, ReduceLROnPlateau)
        self._scheduler_every = scheduler_every or ("epoch" if plateau else "step")
        options = (max_grad_norm, precision, scaler, ema, accumulate, check_finite)
        self._step = Step(optimizer, *options, Strategy())
        self.strategy: Strategy = self._step.strategy
        self.set_strategy(strategy_of(strategy))
        self._losses = Losses(self._step, check_finite)
        self._jit = jit and self._step.traceable
        self._start()
        self._names: list[str] = []  # of the metrics that compute() returns
        self._sums = Sums()
        self._look_at = 0.0  # when losses are looked at next

    def set_strategy(self, strategy: Strategy) -> None:
        """Train by another strategy; one of several ranks wraps the model."""
        if strategy.size > 1 and not self._step.traceable:
            name = type(self.optimizer).__name__
            raise ValueError(f"Trainer: {name} looks at losses of this process alone: no strategy")
        if type(strategy) is not Strategy and not strategy.runs_elsewhere:
            if self.model is None:
                raise ValueError("Trainer: a strategy of several ranks needs a model to wrap")
            before = list(self.optimizer._parameters())
            self.model = strategy.prepare(self.model, self.optimizer)
            moved = [p is not q for p, q in zip(before, self.optimizer._parameters(), strict=False)]
            if any(moved) and (self.ema is not None or self.scaler is not None):
                raise ValueError(
                    "Trainer: ranks have parts of parameters, of which neither an EMA nor a "
                    "GradScaler knows; leave ema out, and take precision='bf16'"
                )
        self.strategy = self._step.strategy = strategy

    def _start(self) -> None:
        """What belongs to this process: programs, and open files."""
        self._closures = ClosureSteps(self._step)
        self._jitted_step = nm.jit(self._batch_step)
        self._jitted_losses = nm.jit(self._batch_losses)
        self.records: Records | None = None  # where they are written

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy compiles programs of its own, and writes no records."""
        self._look()
        mine = ("_closures", "_jitted_step", "_jitted_losses", "records")
        return {name: value for name, value in self.__dict__.items() if name not in mine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # -- single steps -----------------------------------------------------------------------------

    def train_step(self, compute_loss: Callable[[], Tensor]) -> Tensor:
        """One step from the loss that a function computes; gives the loss.

        The function is traced once for all that have its code, and replayed: tensors that it
        reaches (variables, globals, attributes) are those of each call.
        """
        first, last = self._accumulation_phase()
        if self._jit:
            out = self._closures(compute_loss, first, last)
        else:
            out = self._step(lambda: (compute_loss(), {}), first, last)
        self._after_step(out, 1.0, lambda: (compute_loss(), {}))
        return out

    def epoch_avg_loss(self) -> float:
        """The mean of the losses since the last time this was asked."""
        self._look()
        if not self._sums.weight:
            raise ValueError("epoch_avg_loss: no step was taken since it was asked last")
        mean = self._sums.means([])["loss"]
        self._sums = Sums()
        return mean

    def stop(self) -> None:
        """End `fit` after the batch that runs."""
        self.should_stop = True

    def _accumulation_phase(self) -> tuple[bool, bool]:
        """Whether the next batch is the first, and the last, of those that make one step."""
        phase = self.step % self.accumulate
        return phase == 0, phase == self.accumulate - 1

    def _after_step(self, out: Tensor, weight: float, compute: Compute) -> None:
        _, last = self._accumulation_phase()
        rate = self.optimizer.param_groups[0]["lr"]
        self.step += 1
        if last and self.scheduler is not None and self._scheduler_every == "step":
            self.scheduler.step()
        self._losses.add(Taken(self.step, weight, rate), out, compute)
        if len(self._losses) >= _MAX_WAITING or time.perf_counter() > self._look_at:
            self._look()

    def _look(self) -> None:
        """Read the numbers of steps that have been taken."""
        for step in self._losses.read():
            self._sums.add(step.values, step.weight)
            if self.records is not None:
                record = {"step": step.number, "loss": step.values[0], "lr": step.rate}
                self.records.add_step(record)
        self._look_at = time.perf_counter() + _LOOK_SECONDS

    # -- batches ----------------------------------------------------------------------------------

    def _computed(self, batch: Any) -> Computed:
        """The loss of a batch and its other numbers."""
        if self.model is None or (self.loss is None and self.compute is None):
            raise ValueError("Trainer: fit and evaluate need a model, and a loss (or compute)")
        if self.compute is not None:
            found = self.compute(self.model, batch)
            loss, numbers = found if isinstance(found, tuple) else (found, {})
        else:
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise TypeError(
                    f"Trainer: a batch is (inputs..., targets), not a {type(batch).__name__}; for "
                    "others, give compute=, a function of (model, batch)"
                )
            *inputs, targets = batch
            assert self.loss is not None
            outputs = self.model(*inputs)
            loss = self.loss(outputs, targets)
            with nm.no_grad():
                seen = nm.tree.map(lambda x: x.detach() if isinstance(x, Tensor) else x, outputs)
                numbers = {name: f(seen, targets) for name, f in self.metrics.items()}
        self._names = list(numbers)
        return loss, numbers

    def _batch_step(self, batch: Any, first: bool, last: bool) -> Tensor:
        return self._step(lambda: self._computed(batch), first, last)

    def _batch_losses(self, batch: Any) -> Tensor:
        with nm.no_grad():
            loss, numbers = self._step.losses(lambda: self._computed(batch))
            return packed(loss, numbers)

    def _run(self, jitted: Run, plain: Run, *args: Any) -> Tensor:
        """A traced call, where it can be traced."""
        if self._jit:
            try:
                return jitted(*args)
            except TracingError as error:
                self._jit = False
                warnings.warn(
                    f"Trainer: steps are not traced, so they are slower: {error}",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return plain(*args)

    def _placed(self, batch: Any) -> tuple[Any, int]:
        """A batch on the model's device, and how many examples it has."""
        dev = next(self.optimizer._parameters()).device

        def put(x: Any) -> Any:
            if isinstance(x, np.ndarray):
                x = nm.asarray(x)
            return x.to(dev) if isinstance(x, Tensor) and x.device != dev else x

        batch = nm.tree.map(put, batch)
        sizes = [x.shape[0] for x in nm.tree.leaves(batch) if isinstance(x, Tensor) and x.ndim]
        return batch, sizes[0] if sizes else 1

    # -- whole trainings --------------------------------------------------------------------------

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The mean loss and metrics of the model in evaluation mode, weighted by examples."""
        if self.model is None:
            raise ValueError("Trainer: evaluate needs a model, and a loss (or compute)")
        training = self.model.training
        sums = Sums()
        self.model.eval()
        try:
            with self.ema.applied() if self.ema else contextlib.nullcontext():
                for batch in self.strategy.loader(loader):
                    placed, size = self._placed(batch)
                    out = self._run(self._jitted_losses, self._batch_losses, placed)
                    sums.add([float(x) for x in out.numpy().ravel()], size)
        finally:
            self.model.train(training)
        if self.strategy.size > 1:
            sums.weight, *sums.totals = self.strategy.total([sums.weight, *sums.totals])
        if not sums.weight:
            raise ValueError("Trainer.evaluate: the loader gave no batch")
        return sums.means(self._names)

    def fit(
        self,
        loader: Iterable[Any],
        epochs: int,
        *,
        validation: Iterable[Any] | None = None,
        callbacks: Sequence[Callback] = (),
        folder: str | Path | None = None,
        resume: bool = True,
        checkpoint_every: int | None = None,
        monitor: str | None = None,
        progress: bool = True,
    ) -> list[Record]:
        """Train to a total of `epochs`; gives a record of numbers for each.

        Args:
            validation: batches to look at after every epoch, their numbers named `val_...`.
            folder: where `last.ckpt`, `best.ckpt`, `steps.jsonl`, `epochs.csv`, `curves.png` and,
                with TensorBoard installed, its events go.
            resume: go on from the folder's `last.ckpt`, if there is one, bit for bit.
            checkpoint_every: also write `last.ckpt` after this number of batches.
            monitor: which number tells the best epoch (its least; `val_loss`, else `loss`).
            progress: show a bar, and a line for every epoch.
        """
        if self.model is None:
            raise ValueError("Trainer: fit needs a model, and a loss (or compute)")
        if self.strategy.runs_elsewhere:
            more: dict[str, Any] = {"validation": validation, "callbacks": callbacks}
            more |= {"folder": folder, "resume": resume, "monitor": monitor}
            more["checkpoint_every"] = checkpoint_every
            found: list[Record] = self.strategy.fit(
                self, loader, epochs, {**more, "progress": progress}
            )
            return found
        loader = self.strategy.loader(loader)
        run = Fit(self, loader, callbacks, Path(folder) if folder else None, checkpoint_every)
        self.should_stop = False
        self._sums = Sums()
        if resume:
            run.resume()
        bar = Bar(epochs) if progress and self.strategy.is_first else None
        self.model.train()
        try:
            run.begin()
            while self.epoch < epochs and not self.should_stop:
                self._fit_epoch(run, bar, validation, monitor)
        finally:
            run.end()
            if bar is not None:
                bar.close()
        return self.history

    def _fit_epoch(
        self, run: Fit, bar: Bar | None, validation: Iterable[Any] | None, monitor: str | None
    ) -> None:
        began, at_step = time.perf_counter(), self.step
        if bar is not None:
            bar.begin(self.epoch + 1, run.batches_per_epoch(), run.done)
        for callback in run.callbacks:
            callback.on_epoch_begin(self)
        items = 0
        for batch in run.batches():
            placed, size = self._placed(batch)
            first, last = self._accumulation_phase()
            out = self._run(self._jitted_step, self._batch_step, placed, first, last)
            items += size * self.strategy.size
            run.done += 1
            self._after_step(out, size, lambda placed=placed: self._computed(placed))  # type: ignore[misc]
            if bar is not None and len(self._losses) == 0:
                rate = self.optimizer.param_groups[0]["lr"]
                speed = items / (time.perf_counter() - began)
                bar.show(run.done, self._sums.recent, rate, speed, self._memory())
            run.after_step()
            if self.should_stop and not run.is_over():
                return self._look()
        self._look()
        if self.step == at_step and not self._sums.weight:
            raise ValueError("Trainer.fit: the loader gave no batch")
        record: Record = {"epoch": self.epoch + 1, "step": self.step}
        record |= self._sums.means(self._names)
        seconds = time.perf_counter() - began
        if validation is not None:
            record |= {f"val_{k}": v for k, v in self.evaluate(validation).items()}
        record["lr"] = self.optimizer.param_groups[0]["lr"]
        if self.scheduler is not None and self._scheduler_every == "epoch":
            plateau = isinstance(self.scheduler, ReduceLROnPlateau)
            self.scheduler.step(*([monitored(record, monitor)] if plateau else []))
        record |= {"seconds": time.perf_counter() - began}
        record |= {"items_per_s": items / seconds, "memory": self._memory()}
        self._sums = Sums()
        self.epoch += 1
        run.done = 0
        for callback in run.callbacks:
            callback.on_epoch_end(self, record)
        self.history.append(record)
        run.after_epoch(monitored(record, monitor))
        if bar is not None:
            bar.end(record)

    def _memory(self) -> int:
        return nm.memory_stats(next(self.optimizer._parameters()).device)["in_use"]

    # -- checkpoints ------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        parts |= {"scheduler": self.scheduler, "scaler": self.scaler, "ema": self.ema}
        return {name: part for name, part in parts.items() if part is not None}

    def state_dict(self) -> dict[str, Any]:
        """Where the training is, without its parts."""
        self._look()
        counts = {"epoch": self.epoch, "step": self.step, "history": self.history}
        return {**counts, "sums": self._sums.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was asked for."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: dict[str, Any]) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, "epoch", "step", "history", "sums")
        epoch, step = operator.index(state_dict["epoch"]), operator.index(state_dict["step"])
        history = [dict(record) for record in state_dict["history"]]
        load = self._sums._prepare_state(state_dict["sums"])

        def commit() -> None:
            self.epoch, self.step, self.history = epoch, step, history
            load()

        return commit

    def save(self, path: str | Path, **more: Any) -> None:
        """Write the model, the optimiser and all that goes with them to one file; with a strategy
        of several ranks to a folder, by all of them."""
        self._look()
        if self.records is not None:
            self.records.flush()  # before the checkpoint: the log has every step up to it
        self.strategy.save(Path(path), trainer=self, **self._parts(), **more)

    def load(self, path: str | Path, **more: Any) -> dict[str, Any]:
        """Take what `save` wrote, and go on from there."""
        return self.strategy.load(Path(path), trainer=self, **self._parts(), **more)
