"""Averages of a model's weights along its training."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numus as nm
from numus.nn import Module
from numus.nn.state import require
from numus.optim.optimizer import evaluate_all
from numus.tensor import Tensor

__all__ = [
    "EMA", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn",
    "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
Averages = Callable[[list[Tensor], list[Tensor], Tensor], None]


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Of the old average a share `decay`, of the new weights the rest."""
    return lambda averaged, new, count: averaged + (new - averaged) * (1 - decay)


def get_swa_avg_fn() -> Average:
    """The mean of all weights so far."""
    return _mean


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """`get_ema_avg_fn` for lists of averages, which it writes to, and of new weights."""
    return _multi(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """`get_swa_avg_fn` for lists of averages, which it writes to, and of new weights."""
    return _multi(_mean)


def _multi(average: Average) -> Averages:
    def update(averaged: list[Tensor], new: list[Tensor], count: Tensor) -> None:
        for own, other in zip(averaged, new, strict=True):
            own.assign(average(own, other, count.to(own.device).astype(own.dtype, copy=False)))

    return update


def _mean(averaged: Tensor, new: Tensor, count: Tensor) -> Tensor:
    return averaged + (new - averaged) / (count + 1)


class AveragedModel(Module):
    """A copy of a model that holds the average of its weights: `update_parameters` after steps.

    Args:
        device: where the averages are; where the weights are, unless it is given.
        avg_fn: the new average from (average, weights, how many were averaged); their mean, unless
            it is given.
        multi_avg_fn: in its place, a function that writes to a list of averages, from a list of
            weights and how many were averaged.
        use_buffers: average buffers as well, instead of taking the model's.
    """

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: takes avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.module.requires_grad_(False)
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers
        self.n_averaged: Tensor
        self.register_buffer("n_averaged", nm.zeros((), dtype=nm.int64))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the weights that the model has now into the average."""
        average = self.avg_fn or _mean
        with nm.no_grad():
            count = self.n_averaged.astype(nm.float32, copy=False)
            pairs = [(own, new.to(own.device)) for own, new in self._pairs(model, averaged=True)]
            if self.multi_avg_fn is not None and self.n_averaged.item():
                self.multi_avg_fn(
                    [own for own, _ in pairs], [new.detach() for _, new in pairs], count
                )
                pairs = []
            for own, new in pairs:
                mixed = average(
                    own, new.detach(), count.to(own.device).astype(own.dtype, copy=False)
                )
                own.assign(nm.where(self.n_averaged.to(own.device) == 0, new.detach(), mixed))
            for own, new in self._pairs(model, averaged=False):
                own.assign(new.detach().to(own.device))
            self.n_averaged += 1
        evaluate_all([*self.parameters(), *self.buffers()])

    def _pairs(self, model: Module, averaged: bool) -> Iterator[tuple[Tensor, Tensor]]:
        if averaged:
            yield from zip(self.module.parameters(), model.parameters(), strict=True)
        if averaged == self.use_buffers:
            for own, new in zip(self.module.buffers(), model.buffers(), strict=True):
                if averaged == own.dtype.is_floating or not averaged:
                    yield own, new


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Let batch norms have the statistics of a model's weights as they are, after averaging.

    Args:
        loader: batches: inputs, or tuples whose first part they are.
    """
    norms: list[Any] = [
        m for m in model.modules() if getattr(m, "num_batches_tracked", None) is not None
    ]
    if not norms:
        return
    training, momenta = model.training, [m.momentum for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # all batches count alike
    model.train()
    try:
        with nm.no_grad():
            for batch in loader:
                x = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(nm.asarray(x) if device is None else nm.asarray(x).to(device))
                evaluate_all(model.buffers())
    finally:
        model.train(training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class EMA:
    """An exponential moving average of a model's weights that can stand in for them.

    >>> from numus import nn, optim
    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = optim.EMA(model, decay=0.5)
    >>> nn.init.zeros_(model.weight).tolist()
    [[0.0]]
    >>> ema.update()
    >>> with ema.applied():
    ...     halfway = model.weight.item()
    >>> model.weight.item(), halfway != 0
    (0.0, True)

    Args:
        trainable_only: leave out parameters that are fixed, whose average they are.
    """

    def __init__(
        self, model: Module, decay: float = 0.999, *, trainable_only: bool = False
    ) -> None:
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"EMA: decay={decay} must be between 0 and 1")
        self.model = model
        self.decay = decay
        self.shadow = {
            n: _wide(p).clone()
            for n, p in model.named_parameters()
            if p.requires_grad or not trainable_only
        }

    def update(self) -> None:
        """Take the weights that the model has now into the average."""
        with nm.no_grad():
            for name, p in self._averaged(self.model):
                average = self.shadow[name]
                average.assign(average + (_wide(p) - average) * (1 - self.decay))
        evaluate_all(self.shadow.values())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model with its averages, for the length of a `with`."""
        before = {n: p.detach().clone() for n, p in self._averaged(self.model)}
        self.copy_to(self.model)
        try:
            yield
        finally:
            with nm.no_grad():
                for name, p in self._averaged(self.model):
                    p.assign(before[name])

    def copy_to(self, model: Module) -> None:
        """Give a model the averages for its weights."""
        with nm.no_grad():
            for name, p in self._averaged(model):
                p.assign(self.shadow[name])

    def _averaged(self, model: Module) -> Iterator[tuple[str, Tensor]]:
        """The parameters that are averaged."""
        return ((n, p) for n, p in model.named_parameters() if n in self.shadow)

    def state_dict(self) -> dict[str, Any]:
        """The averages by name."""
        return {"decay": self.decay, "shadow": {n: x.detach() for n, x in self.shadow.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._prepare_state(state_dict)()

    def _prepare_state(self, state_dict: dict[str, Any]) -> Callable[[], None]:
        """Check a state; gives the function that takes it."""
        require(self, state_dict, "decay", "shadow")
        decay = float(state_dict["decay"])
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"EMA.load_state_dict: decay={decay} must be between 0 and 1")
        require(self, state_dict["shadow"], *self.shadow)
        saved = state_dict["shadow"]
        given = {n: nm.asarray(saved[n]).astype(x.dtype) for n, x in self.shadow.items()}
        for name, value in given.items():
            if value.shape != self.shadow[name].shape:
                raise ValueError(
                    f"EMA.load_state_dict: {name} of shape {value.shape} does not fit "
                    f"{self.shadow[name].shape}"
                )

        def commit() -> None:
            self.decay = decay
            for name, value in given.items():
                self.shadow[name].assign(value.to(self.shadow[name].device))

        return commit


def _wide(p: Tensor) -> Tensor:
    """Averages of 16-bit floats are float32: their steps are too small for less."""
    values = p.detach()
    return values.astype(nm.float32) if values.dtype.is_low_precision else values
