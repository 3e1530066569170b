"""Strategies of `optim.Trainer`: the same training script on one process and on many.

The batches that a loader gives are those of all ranks: each rank gets its part, so that a training
is that of one process, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler
from numus.distributed.checkpoint import checkpoint_exists, load_checkpoint, save_checkpoint
from numus.distributed.collectives import all_reduce
from numus.distributed.data_parallel import DistributedDataParallel
from numus.distributed.fsdp import FullyShardedDataParallel
from numus.distributed.groups import world
from numus.distributed.layers import clip_grad_norm_
from numus.optim.optimizer import Optimizer
from numus.optim.training.strategies import Strategy
from numus.tensor import Tensor
from numus.transforms import tree

__all__ = ["DDPStrategy", "FSDPStrategy", "RayStrategy", "shard_loader", "strategy"]


class DDPStrategy(Strategy):
    """Every rank has the whole model: `DistributedDataParallel`, with its options.

    >>> from numus import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> trainer = optim.Trainer(
    ...     optim.SGD(model.parameters(), lr=0.1), model, nn.mse_loss, strategy="ddp"
    ... )
    >>> batches = [(nm.ones((4, 2)), nm.zeros((4, 1)))] * 4
    >>> history = trainer.fit(batches, epochs=2, progress=False)
    >>> history[1]["loss"] < history[0]["loss"]
    True
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    @property
    def size(self) -> int:
        """The number of ranks."""
        return world().size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return world().rank == 0

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        if isinstance(model, (DistributedDataParallel, FullyShardedDataParallel)):
            return model
        return DistributedDataParallel(model, **self._options)

    def loader(self, loader: Any) -> Any:
        return shard_loader(loader)

    def mean(self, x: Tensor) -> Tensor:
        return all_reduce(x, "mean")

    def total(self, values: list[float]) -> list[float]:
        found: list[float] = all_reduce(nm.asarray(values, dtype=nm.float64)).tolist()
        return found

    def save(self, path: Path, **parts: Any) -> None:
        save_checkpoint(path, **parts)

    def load(self, path: Path, **parts: Any) -> dict[str, Any]:
        return load_checkpoint(path, **parts)

    def exists(self, path: Path) -> bool:
        return checkpoint_exists(path)


class FSDPStrategy(DDPStrategy):
    """Every rank has a part of the model: `FSDP`, with its options.

    >>> nm.distributed.FSDPStrategy(cpu_offload=True).size
    1
    """

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        if isinstance(model, FullyShardedDataParallel):
            return model
        if len(optimizer.param_groups) != 1:
            raise ValueError(
                f"FSDP: {type(optimizer).__name__} has {len(optimizer.param_groups)} groups of "
                "parameters, which flat ones cannot tell apart; give a model that is wrapped in "
                "nm.distributed.FSDP, and an optimiser of its parameters"
            )
        found = FullyShardedDataParallel(model, **self._options)
        (group,) = optimizer.param_groups
        options = {name: value for name, value in group.items() if name != "params"}
        optimizer.param_groups = []
        optimizer.state = {}
        optimizer.add_param_group({**options, "params": list(found.parameters())})
        return found

    def clip(self, optimizer: Optimizer, max_norm: float) -> Tensor:
        return clip_grad_norm_(optimizer._parameters(), max_norm)


class RayStrategy(Strategy):
    """`Trainer.fit` on the workers of a Ray cluster; afterwards the trainer here has the weights,
    the optimiser's state and the history. A worker that dies is started again with all others, and
    the training goes on from the last checkpoint, where `fit` has a folder that all nodes see.

    Args:
        num_workers, resources, max_restarts, timeout: see `nm.distributed.ray.run`.
        inner: the strategy of the workers: "ddp" or "fsdp".

    >>> nm.distributed.RayStrategy(4, max_restarts=2).runs_elsewhere
    True
    """

    runs_elsewhere = True

    def __init__(
        self,
        num_workers: int = 1,
        *,
        inner: str = "ddp",
        resources: Mapping[str, float] | None = None,
        max_restarts: int = 0,
        timeout: float = 600.0,
    ) -> None:
        if inner not in ("ddp", "fsdp"):
            raise ValueError(f"RayStrategy: inner {inner!r} is ddp or fsdp")
        self._inner = inner
        self._options: dict[str, Any] = {
            **{"num_workers": num_workers, "resources": resources},
            **{"max_restarts": max_restarts, "timeout": timeout},
        }

    def fit(self, trainer: Any, loader: Any, epochs: int, options: dict[str, Any]) -> Any:
        from numus.distributed import ray

        found = ray.run(_fit, trainer, self._inner, loader, epochs, options, **self._options)
        state, optimizer, history, step = found[0]
        trainer.model.load_state_dict(state)
        if optimizer is not None:
            trainer.optimizer.load_state_dict(optimizer)
        trainer.history, trainer.epoch, trainer.step = history, len(history), step
        return history


def _fit(trainer: Any, inner: str, loader: Any, epochs: int, options: dict[str, Any]) -> Any:
    """A training on a worker; gives the weights, the optimiser's state and the history."""
    trainer.set_strategy(strategy(inner))
    history = trainer.fit(loader, epochs, **options)
    state = trainer.model.state_dict()
    if inner == "ddp":
        state = {name.removeprefix("module."): x for name, x in state.items()}
        return state, trainer.optimizer.state_dict(), history, trainer.step
    return state, None, history, trainer.step  # parts of ranks are of no use to one process


_NAMES = {"ddp": DDPStrategy, "fsdp": FSDPStrategy, "ray": RayStrategy}


def strategy(name: str, **options: Any) -> Strategy:
    """A strategy of `optim.Trainer` by its name: "ddp", "fsdp" or "ray".

    >>> type(nm.distributed.strategy("fsdp")).__name__
    'FSDPStrategy'
    """
    if name not in _NAMES:
        raise ValueError(f"strategy {name!r} must be one of {', '.join(_NAMES)}")
    return _NAMES[name](**options)


# -- batches --------------------------------------------------------------------------------------


def shard_loader(loader: Any) -> Any:
    """A loader of this rank's part of each batch. The order of the examples is that of one process:
    a `DataLoader` gets a `DistributedSampler` with the same key, the batches of others are cut.

    >>> loader = nm.data.DataLoader(nm.data.TensorDataset(nm.arange(6)), batch_size=2)
    >>> len(nm.distributed.shard_loader(loader))
    3
    """
    group = world()
    if group.size == 1:
        return loader
    if not isinstance(loader, DataLoader) or loader._streamed or loader.batch_size is None:
        return _Cut(loader)
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return loader  # which gives parts already
    if type(sampler) not in (RandomSampler, SequentialSampler):
        return _Cut(loader)
    if loader.batch_size % group.size:
        raise ValueError(
            f"shard_loader: batches of {loader.batch_size} are not to be divided among "
            f"{group.size} ranks; take a multiple of it"
        )
    shuffles = isinstance(sampler, RandomSampler)
    if shuffles and (sampler.replacement or len(sampler) != len(loader.dataset)):
        return _Cut(loader)
    key = nm.distributed.broadcast(sampler._key, group.ranks[0]) if shuffles else None
    kind = _Share if shuffles else DistributedSampler
    mine = kind(loader.dataset, group.size, group.rank, shuffles, loader.drop_last, key=key)
    if shuffles:
        mine.epoch = sampler.epoch
    return DataLoader(
        loader.dataset,
        loader.batch_size // group.size,
        sampler=mine,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        worker_type=loader.worker_type,
        device=loader.device,
    )


class _Share(DistributedSampler):
    """This rank's share of the order that a `RandomSampler` with the same key has."""

    def _order(self) -> np.ndarray[Any, Any]:
        whole = RandomSampler(self.data_source, key=self._key)
        whole.epoch = self.epoch
        self.epoch += 1
        shares = np.resize(whole._order(), len(self) * self.num_replicas)
        return shares[self.rank :: self.num_replicas]


class _Cut:
    """Batches of all ranks, of which this rank takes its part."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        group = world()

        def part(x: Any) -> Any:
            if getattr(x, "ndim", 0) == 0:
                return x
            count = x.shape[0]
            if count % group.size:
                raise ValueError(
                    f"a batch of {count} examples is not to be divided among {group.size} ranks"
                )
            low, high = (count * r // group.size for r in (group.rank, group.rank + 1))
            return x[low:high]

        for batch in self._loader:
            yield tree.map(part, batch)
