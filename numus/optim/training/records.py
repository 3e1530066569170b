"""The files of a training: CSV, JSON lines, TensorBoard's events, and a picture."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from pathlib import Path
from typing import Any, TextIO

from numus.files import atomically, refusals
from numus.png import curves, write_png

Record = dict[str, Any]


class Records:
    """The files of a training's folder.

    `steps.jsonl` has a line for every logged step, `epochs.csv` a row for every epoch,
    `curves.png` shows both. Events for TensorBoard are written where it is installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Go on from a step: what was written of later ones, before an interruption, is dropped."""
        path = folder / "steps.jsonl"
        with refusals(path):
            folder.mkdir(parents=True, exist_ok=True)
            self.folder = folder
            self.steps, size = _read_lines(path, step)
            self._lines: TextIO = open(path, "a")  # noqa: SIM115
            self._lines.truncate(size)
        self._events = _events(folder)

    def add_step(self, record: Record) -> None:
        """A step's numbers."""
        self.steps.append(record)
        with refusals(self.folder / "steps.jsonl"):
            self._lines.write(json.dumps(record) + "\n")
        self._send(record, record["step"])

    def add_epoch(self, history: list[Record]) -> None:
        """The last epoch's numbers; its files are written so that they can be looked at."""
        self.flush()
        names = list(dict.fromkeys(name for record in history for name in record))
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, names)
        writer.writeheader()
        writer.writerows(history)
        text = table.getvalue().encode()
        atomically(self.folder / "epochs.csv", lambda file: file.write(text))
        self._send({f"epoch/{k}": v for k, v in history[-1].items()}, history[-1]["step"])
        write_png(self.folder / "curves.png", picture(self.steps, history))

    def _send(self, record: Record, step: int) -> None:
        if self._events is not None:
            self._events(record, step)

    def flush(self) -> None:
        """Hand the lines of all steps to the disk."""
        with refusals(self.folder / "steps.jsonl"):
            self._lines.flush()
            os.fsync(self._lines.fileno())

    def close(self) -> None:
        """Write what is left."""
        with refusals(self.folder / "steps.jsonl"):
            self._lines.close()
        if self._events is not None:
            self._events(None, 0)


def _read_lines(path: Path, last: int) -> tuple[list[Record], int]:
    """The records up to a step, and the size of their lines; an interrupted line ends them."""
    found: list[Record] = []
    size = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            record = json.loads(line)
            whole = line.endswith(b"\n") and record["step"] <= last and "loss" in record
        except (ValueError, TypeError, KeyError, RecursionError):
            break
        if not whole or (found and record["step"] <= found[-1]["step"]):
            break
        found.append(record)
        size += len(line)
    return found, size


_NO_CURVES = ("epoch", "step", "seconds", "items_per_s", "memory")


def picture(steps: list[Record], history: list[Record]) -> Any:
    """Curves: losses together, then each metric with its validation, then the rate."""
    panels: dict[str, dict[str, Any]] = {"loss": {}}
    panels["loss"]["training"] = [(r["step"], r["loss"]) for r in steps]
    for name in dict.fromkeys(k for record in history for k in record):
        if name in _NO_CURVES or name == "loss":
            continue
        points = [(r["step"], r[name]) for r in history if isinstance(r.get(name), (int, float))]
        if not points:
            continue
        title = name.removeprefix("val_")
        panels.setdefault(title, {})["validation" if name != title else "training"] = points
    every = [y for line in panels["loss"].values() for _, y in line]
    logarithmic = ["loss"] if every and min(every) > 0 and max(every) > 10 * min(every) else []
    return curves(panels, logarithmic=logarithmic)


def _events(folder: Path) -> Any:
    """A function that writes numbers for TensorBoard; None where that is not installed."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    writer = EventFileWriter(str(folder / "tensorboard"))

    def write(record: Record | None, step: int) -> None:
        if record is None:
            return writer.close()
        values = [
            Summary.Value(tag=name, simple_value=float(x))
            for name, x in record.items()
            if isinstance(x, (int, float)) and math.isfinite(x)
        ]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    return write
