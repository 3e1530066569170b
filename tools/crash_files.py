"""Kill writers at random moments, and see that what they leave behind can be read.

    python -m tools.crash_files                  200 times each: checkpoints and record files
    python -m tools.crash_files --times 20

A checkpoint that was there stays until the next is whole. Of a record file, `RecordWriter.recover`
finds every record that the writer had handed over.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from numus import data, nn
from numus.errors import RecordError

_SIZE = 40_000  # elements of a tensor: enough that writing takes a while


def write_checkpoints(path: Path, told: Any) -> None:
    """Checkpoint after checkpoint, each told when it is written."""
    for step in range(1, 1_000_000):
        nn.save_checkpoint(path, model={"w": np.full(_SIZE, step, np.float32)}, step=step)
        told.send(step)


def write_records(path: Path, told: Any) -> None:
    """Record after record, told when they are handed over; now and then a file is finished."""
    writer = data.RecordWriter.create(path)
    for i in range(1_000_000):
        writer.write_record({"x": np.full(1000, i, np.int32), "i": i})
        if i % 7 == 6:
            writer.flush()
            told.send(i + 1)
        if i % 40 == 39:
            writer.finish()
            told.send(i + 1)
            writer = data.RecordWriter.append(path)


def check_checkpoint(path: Path, least: int) -> None:
    """The file is whole, and no older than what was told of."""
    if not path.exists():
        assert least == 0, f"step {least} was written, and there is no file"
        return
    states = nn.load_checkpoint(path)
    assert states["step"] >= least, f"step {states['step']}, {least} was written"
    assert (states["model"]["w"].numpy() == states["step"]).all(), "a mixture of two"


def check_records(path: Path, least: int) -> None:
    """Every record that was told of can be recovered, and those there are, are whole."""
    if not path.exists() or path.stat().st_size < 64:
        assert least == 0, f"{least} records were written, and there is no file"
        return
    try:
        data.RecordDataset.open(path)
    except RecordError:
        data.RecordWriter.recover(path)
    records = data.RecordDataset.open(path)
    assert len(records) >= least, f"{len(records)} records, {least} were written"
    for i, record in enumerate(records):
        assert record["i"] == i
        assert (record["x"] == i).all()


KINDS = {
    "checkpoints": (write_checkpoints, check_checkpoint),
    "records": (write_records, check_records),
}


def crash(kind: str, times: int, seed: int = 0) -> int:
    """Kill so many writers; gives how many had written something by then."""
    write, check = KINDS[kind]
    draw = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numus.nn", "numus.data"])
    useful = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(times):
            path = Path(folder) / f"{i}.file"
            hears, told = context.Pipe(duplex=False)
            writer = context.Process(target=write, args=(path, told), daemon=True)
            writer.start()
            told.close()
            hears.poll(30 if draw.random() < 0.8 else 0)  # most have begun, some have not
            time.sleep(draw.uniform(0, 0.05))
            writer.kill()
            writer.join()
            least = 0
            try:
                while hears.poll():
                    least = hears.recv()
            except (EOFError, OSError):
                pass
            check(path, least)
            useful += least > 0
    return useful


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=200)
    options = parser.parse_args()
    for kind in KINDS:
        began = time.perf_counter()
        useful = crash(kind, options.times)
        print(
            f"{kind}: {options.times} writers killed ({useful} had written something), always a "
            f"state that can be read; {time.perf_counter() - began:.0f} s"
        )


if __name__ == "__main__":
    main()
