"""`numus plan MODEL.toml`: memory, traffic and time of a training step on ranks that are not there.

docs/distributed.md has the keys of the file.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from numus.cli.config import Config, ConfigError, meant
from numus.distributed.planning import MACHINES, Layout, Machine, Transformer, estimate, search
from numus.distributed.planning.layout import AXES
from numus.distributed.planning.report import table_of, text_of
from numus.errors import DistributedError

_OVERRIDES = {
    "memory": "memory_gib",
    "node_link": "node_gbs",
    "network_link": "network_gbs",
    "per_node": "devices_per_node",
}


def run(
    config: Path,
    *,
    gpus: int | None,
    mesh: str | None,
    machine: str,
    microbatch: int,
    search: bool,
    **overrides: Any,
) -> None:
    """Print the plan; what cannot be planned ends with a message."""
    try:
        _run(config, gpus, mesh, machine, microbatch, search, overrides)
    except (ConfigError, DistributedError) as error:
        print(f"numus plan: {error}", file=sys.stderr)
        sys.exit(2)


def _run(
    config: Path,
    gpus: int | None,
    mesh: str | None,
    machine: str,
    microbatch: int,
    searching: bool,
    overrides: dict[str, Any],
) -> None:
    sizes = read(config)
    where = _machine(machine, overrides)
    if searching:
        found = search(sizes, gpus or 1, where)
        print(table_of(found) + "\n\n" + text_of(found[0], where))
        return
    layout = parse_mesh(mesh or f"data={gpus or 1}", microbatch)
    if gpus is not None and layout.ranks != gpus:
        raise ConfigError(f"the mesh {mesh} has {layout.ranks} ranks, not --gpus {gpus}")
    print(text_of(estimate(sizes, layout, where), where))


def read(path: Path) -> Transformer:
    """The model and its training."""
    config = Config(path)
    config.check_tables(("model", "training"))
    model, training = config.table("model", needed=True), config.table("training", needed=True)
    kind = model.take("kind", str, "gpt")
    if kind != "gpt":
        raise model.error("kind", f"is 'gpt', not {kind!r}")
    sizes = {
        key: model.take(key, int, needed=True)
        for key in ("vocabulary", "width", "layers", "heads", "length")
    }
    sizes["feedforward"] = model.take("feedforward", int, 0)
    model.end()
    sizes["batch"] = training.take("batch", int, needed=True)
    dtype = training.take("dtype", str, "float32")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise training.error("dtype", f"is float32, bfloat16 or float16, not {dtype!r}")
    optimizer = training.take("optimizer", str, "AdamW")
    from numus.cli.train import OPTIMIZERS

    if optimizer not in OPTIMIZERS:
        raise training.error(
            "optimizer", f"{optimizer!r} is not known{meant(optimizer, OPTIMIZERS)}"
        )
    checkpointing = training.take("checkpointing", bool, False)
    training.end()
    for name, number in sizes.items():
        if number < (name != "feedforward"):
            raise ConfigError(f"{path}: {name} has to be at least 1, not {number}")
    if sizes["width"] % sizes["heads"]:
        raise model.error("width", f"{sizes['width']} is no multiple of {sizes['heads']} heads")
    return Transformer(**sizes, dtype=dtype, optimizer=optimizer, checkpointing=checkpointing)


def parse_mesh(text: str, microbatch: int) -> Layout:
    """A layout from "data=64,tensor=8,pipe=2"."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in AXES:
            raise ConfigError(f"--mesh: {name!r} is no axis{meant(name, AXES)}")
        if not number.isdecimal() or int(number) < 1 or name in axes:
            raise ConfigError(f"--mesh: {part.strip()!r}: takes each axis once, as in data=64")
        axes[name] = int(number)
    return Layout(**axes, microbatch=microbatch)


def _machine(name: str, overrides: dict[str, Any]) -> Machine:
    if name not in MACHINES:
        raise ConfigError(f"--machine: {name!r} is not known{meant(name, MACHINES)}")
    given = {field: overrides[key] for key, field in _OVERRIDES.items() if overrides.get(key)}
    return dataclasses.replace(MACHINES[name], **given)
