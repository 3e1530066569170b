"""`numus train CONFIG.toml`: a training that is written down. docs/training.md has all its keys."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numus as nm
from numus import data, nn, optim
from numus.cli import launch
from numus.cli.config import Config, ConfigError, Table, meant, named
from numus.distributed.environment import detect
from numus.errors import NonFiniteError, NumusError, OutOfMemoryError
from numus.tensor import Tensor

__all__ = ["run"]

TABLES = (
    "run",
    "model",
    "data",
    "loss",
    "metrics",
    "optimizer",
    "scheduler",
    "trainer",
    "parallel",
)


def _classes(module: Any, base: type) -> dict[str, Any]:
    return {k: v for k, v in vars(module).items() if inspect.isclass(v) and issubclass(v, base)}


OPTIMIZERS = _classes(optim, optim.Optimizer)
SCHEDULERS = _classes(optim.lr_scheduler, object)
del OPTIMIZERS["Optimizer"], SCHEDULERS["LRScheduler"]  # which are abstract
LAYERS = _classes(nn, nn.Module)
LOSSES = {
    name: function
    for name, function in vars(nn.functional).items()
    if name.endswith(("_loss", "cross_entropy", "with_logits", "kl_div"))
}


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The part of examples whose highest score is that of their class."""
    right: Tensor = (nm.argmax(outputs, axis=-1) == targets).mean(dtype=nm.float32)
    return right


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean distance from the targets."""
    distance: Tensor = nm.abs(outputs - targets).mean()
    return distance


History = list[dict[str, Any]]
METRICS = {"accuracy": accuracy, "mean_absolute_error": mean_absolute_error}


def run(
    config: Path,
    *,
    epochs: int | None = None,
    device: str | None = None,
    allow: Sequence[str] = (),
) -> History:
    """Train as a file says; options that are given here override those of the file.

    Args:
        allow: modules and Python files whose code the file may name.
    """
    try:
        return _run(Config(config, allow), epochs, device, allow)
    except ConfigError as error:
        print(f"numus train: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def _run(config: Config, epochs: int | None, device: str | None, allow: Sequence[str]) -> History:
    config.check_tables(TABLES)
    strategy = _strategy(config, epochs, device, allow)
    table = config.table("run")
    name = table.take("name", str, config.path.stem)
    folder = config.path.parent / table.take("folder", str, f"out/{name}")
    best = next((str(d) for d in nm.devices() if str(d).startswith("cuda")), "cpu")
    written, configured = table.take("epochs", int, 10), table.take("device", str, best)
    if written < 1:
        raise table.error("epochs", f"is at least 1, not {written}")
    if epochs is not None and epochs < 1:
        raise ConfigError(f"--epochs is at least 1, not {epochs}")
    epochs, device = epochs or written, _of_rank(device or configured, strategy)
    with table.errors():
        nm.random.seed(table.take("seed", int, 0))
        nm.zeros(1, device=device)
    table.end()

    model = _model(config.table("model", needed=True))
    with table.errors(f"the model on {device}"):
        model.to(device)
    train, validation = _loaders(config.table("data", needed=True))
    optimizer = _optimizer(config.table("optimizer"), model)
    loss = _loss(config.table("loss", needed=True))
    trainer_table = config.table("trainer")
    callbacks, every = _callbacks(trainer_table)
    metrics = _metrics(config.table("metrics"))
    scheduler = _scheduler(config.table("scheduler"), optimizer, len(train) * epochs)
    size = model.num_parameters()
    trainer = _trainer(trainer_table, optimizer, model, loss, metrics, scheduler, strategy)
    is_first = trainer.strategy.is_first
    if is_first:
        print(f"{name}: {size:,} parameters on {device}, files in {folder}")
    options = {"validation": validation, "callbacks": callbacks, "checkpoint_every": every}
    with _failures(config):
        history = trainer.fit(train, epochs, folder=folder, **options)
        state = _weights(trainer.model)
        if is_first:
            nn.save_safetensors(state, folder / "model.safetensors")
    if is_first:
        print(f"weights {folder / 'model.safetensors'}\ncurves  {folder / 'curves.png'}")
    return history


# -- several ranks --------------------------------------------------------------------------------


def _strategy(
    config: Config, epochs: int | None, device: str | None, allow: Sequence[str]
) -> optim.Strategy | None:
    """What `[parallel]` says; starts the ranks where this process is none of them."""
    table = config.table("parallel")
    if not table:
        return None
    ranks, restarts = table.take("ranks", int, 1), table.take("max_restarts", int, 0)
    name = table.take("strategy", str, "ddp")
    options: dict[str, Any] = {}
    if name == "fsdp":
        options = {"cpu_offload": table.take("cpu_offload", bool, False)}
        options["reshard_after_forward"] = table.take("reshard_after_forward", bool, True)
    table.end()
    if name not in ("ddp", "fsdp"):
        raise table.error("strategy", f"is ddp or fsdp, not {name!r}")
    if ranks < 1 or restarts < 0:
        raise table.error("ranks", f"is at least 1, not {ranks}, and max_restarts at least 0")
    if ranks > 1 and detect().launcher == "alone":
        given = {"--epochs": epochs, "--device": device}
        command = [sys.executable, "-m", "numus", "train", str(config.path)]
        command += [str(x) for pair in given.items() if pair[1] is not None for x in pair]
        command += [x for entry in allow for x in ("--allow", entry)]
        raise SystemExit(launch.run_command(ranks, command, restarts=restarts))
    return nm.distributed.strategy(name, **options)


def _of_rank(device: str, strategy: optim.Strategy | None) -> str:
    """The device of this rank, where there are several of a kind."""
    gpus = [d for d in nm.devices() if str(d).startswith("cuda")]
    if strategy is None or device != "cuda" or len(gpus) < 2:
        return device
    return f"cuda:{nm.distributed.local_rank() % len(gpus)}"


def _weights(model: Any) -> dict[str, Tensor]:
    """The state of a model, by the names that it has without ranks."""
    plain = isinstance(model, nm.distributed.DistributedDataParallel)
    state: dict[str, Tensor] = (model.module if plain else model).state_dict()
    return state


_WRONG_VALUES = (NumusError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


@contextlib.contextmanager
def _failures(config: Config) -> Iterator[None]:
    """Errors of a training as messages; those that code of the user's own raised stay as they are.

    A value of the configuration may turn out to be wrong in the first step alone.
    """
    try:
        yield
    except (OSError, NonFiniteError, OutOfMemoryError) as error:
        raise SystemExit(f"numus train: {error}") from error
    except _WRONG_VALUES as error:
        if config.runs_code and not isinstance(error, NumusError):
            raise
        said = error.args[0] if error.args else type(error).__name__
        raise ConfigError(f"{config.path}: in the training: {said}") from error


def _model(table: Table) -> nn.Module:
    """A model from a function or class, or from a list of layers."""
    layers = table.take("layers", list)
    if layers is None:
        made = table.made(named(table, "factory", LAYERS), "the factory")
        if not isinstance(made, nn.Module):
            raise table.error("factory", f"gives a {type(made).__name__}, not a module")
        return made
    table.end()
    found = []
    for i, entry in enumerate(layers):
        if not isinstance(entry, dict):
            raise table.error("layers", f"are tables such as {{type = 'ReLU'}}, not {entry!r}")
        part = Table(table.config, f"model.layers[{i}]", entry)
        kind = named(part, "type", LAYERS)
        found.append(part.made(kind, _name(kind)))
    with table.errors("layers"):
        return nn.Sequential(*found)


def _loaders(table: Table) -> tuple[Any, Any]:
    sets: list[Any] = [_dataset(table, key) for key in ("train", "validation")]
    share = table.take("validation_share", float, 0.0)
    if sets[0] is None:
        raise table.error("train", "is missing")
    if share:
        if sets[1] is not None or not 0 < share < 1:
            raise table.error("validation_share", "is between 0 and 1, and stands for validation")
        with table.errors("validation_share"):
            sets = list(data.random_split(sets[0], [1 - share, share], key=nm.random.key(0)))
    inputs, target = table.take("inputs", list), table.take("target", str)
    size = table.take("batch_size", int, 32)
    shuffle, drop_last = table.take("shuffle", bool, True), table.take("drop_last", bool, False)
    workers = table.take("num_workers", int, 0)
    table.end()
    if (inputs is None) != (target is None):
        raise table.error("inputs and target", "go together: the names of a record's entries")
    if inputs is not None:
        names = [*inputs, target]
        for entry in names:
            _check_entry(table, sets[0], entry)
        sets = [None if s is None else _SelectedEntries(s, names) for s in sets]
    loader = functools.partial(data.DataLoader, batch_size=size, num_workers=workers)
    with table.errors():
        train = loader(sets[0], shuffle=shuffle, drop_last=drop_last, key=nm.random.key(1))
        if len(train) == 0:
            raise ValueError(f"{len(sets[0])} examples give no batch of {size}")
        return train, None if sets[1] is None else loader(sets[1])


def _check_entry(table: Table, dataset: Any, name: Any) -> None:
    """Refuse the name of an entry that the first record lacks."""
    if not isinstance(name, str):
        raise table.error("inputs and target", f"are names of a record's entries, not {name!r}")
    if len(dataset):
        with table.errors("train"):
            record = dataset[0]
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise table.error("inputs", f"are entries of records that are dicts, not a {kind}")
        if name not in record:
            raise table.error("inputs and target", f"name {name!r}{meant(name, record)}")


def _dataset(table: Table, key: str) -> Any:
    """Records in a file, or what a function gives."""
    name = table.take(key, str)
    if name is None:
        return None
    if ":" in name:
        function = table.config.code(name, f"[{table.name}] {key}")
        made = Table(table.config, table.name, {}).made(function, f"{key} = {name!r}")
        if not hasattr(made, "__getitem__") or not hasattr(made, "__len__"):
            raise table.error(key, f"gives a {type(made).__name__}, not a dataset with a length")
        return made
    path = table.config.path.parent / name
    if not path.is_file():
        raise table.error(key, f"is a record file or file.py:function; there is no {path}")
    with table.errors(key):
        return data.RecordDataset.open(path)


class _SelectedEntries(data.Dataset):
    """Of each record, which is a dict, the entries of some names."""

    def __init__(self, dataset: Any, names: list[str]) -> None:
        self.dataset = dataset
        self.names = names

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        record = self.dataset[index]
        return tuple(record[name] for name in self.names)


def _loss(table: Table) -> Any:
    function = named(table, "name", LOSSES)
    return functools.partial(function, **table.options(function, "the loss", given=2))


def _metrics(table: Table) -> dict[str, Any]:
    names = table.take("names", list, [])
    table.end()
    found = {}
    for name in names:
        function = named(Table(table.config, "metrics", {"names": name}), "names", METRICS)
        if not callable(function):
            raise table.error("names", f"{name} is a {type(function).__name__}, not a function")
        found[name.rpartition(":")[2]] = function
    return found


def _optimizer(table: Table, model: nn.Module) -> optim.Optimizer:
    kind = named(table, "name", OPTIMIZERS, default="AdamW")
    made = table.made(kind, _name(kind), model.parameters())
    if not isinstance(made, optim.Optimizer):
        raise table.error("name", f"gives a {type(made).__name__}, not an optimiser")
    return made


def _name(thing: Any) -> str:
    return str(getattr(thing, "__name__", thing))


def _scheduler(table: Table, optimizer: optim.Optimizer, steps: int) -> Any:
    if not table:
        return None
    every = table.take("every", str, "step")
    kind = named(table, "name", SCHEDULERS)
    options = inspect.signature(kind).parameters if callable(kind) else {}
    entries = table.rest()
    for name in ("total_steps", "T_max", "total_iters"):  # the length of the training, unless given
        if name in options and name not in entries and "epochs" not in entries and every == "step":
            entries[name] = steps
    part = Table(table.config, table.name, entries)
    made = part.made(kind, _name(kind), optimizer)
    if not hasattr(made, "step") or not hasattr(made, "state_dict"):
        raise table.error("name", f"gives a {type(made).__name__}, not a schedule")
    return made, every


def _callbacks(table: Table) -> tuple[list[optim.Callback], int | None]:
    stopping = table.take("early_stopping", dict)
    every = table.take("checkpoint_every", int)
    if stopping is None:
        return [], every
    part = Table(table.config, "trainer.early_stopping", stopping)
    return [part.made(optim.EarlyStopping, "EarlyStopping")], every


def _trainer(
    table: Table,
    optimizer: Any,
    model: Any,
    loss: Any,
    metrics: Any,
    scheduler: Any,
    strategy: optim.Strategy | None,
) -> optim.Trainer:
    decay = table.take("ema", float)
    options: dict[str, Any] = {
        "precision": table.take("precision", str),
        "accumulate": table.take("accumulate", int, 1),
        "max_grad_norm": table.take("max_grad_norm", float),
        "jit": table.take("jit", bool, True),
    }
    table.end()
    if scheduler is not None:
        options["scheduler"], options["scheduler_every"] = scheduler
        if isinstance(options["scheduler"], optim.ReduceLROnPlateau):
            options["scheduler_every"] = "epoch"
    with table.errors():
        if decay is not None:
            options["ema"] = optim.EMA(model, decay)
        options["strategy"] = strategy
        return optim.Trainer(optimizer, model, loss, metrics=metrics, **options)
