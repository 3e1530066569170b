"""Crash tests of file writers: kill them at random moments, and read the files.

    python -m tools.crash_files                  200 times each: checkpoints and record files
    python -m tools.crash_files --times 20

Checkpoints are replaced atomically. `RecordWriter.recover` finds every record that was flushed.
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


def write_checkpoints(path: Path, sent: Any) -> None:
    """Write checkpoints; send the step after each."""
    for step in range(1, 1_000_000):
        nn.save_checkpoint(path, model={"w": np.full(_SIZE, step, np.float32)}, step=step)
        sent.send(step)


def write_records(path: Path, sent: Any) -> None:
    """Write records; send their number after each flush; finish the file now and then."""
    writer = data.RecordWriter.create(path)
    for i in range(1_000_000):
        writer.write_record({"x": np.full(1000, i, np.int32), "i": i})
        if i % 7 == 6:
            writer.flush()
            sent.send(i + 1)
        if i % 40 == 39:
            writer.finish()
            sent.send(i + 1)
            writer = data.RecordWriter.append(path)


def check_checkpoint(path: Path, least: int) -> None:
    """The checkpoint is complete, and at least as new as the last step sent."""
    if not path.exists():
        assert least == 0, f"step {least} was written, and there is no file"
        return
    states = nn.load_checkpoint(path)
    assert states["step"] >= least, f"step {states['step']}, {least} was written"
    assert (states["model"]["w"].numpy() == states["step"]).all(), "a mixture of two"


def check_records(path: Path, least: int) -> None:
    """Every record sent can be recovered, and all records are complete."""
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
    """Kill writers; the number of those that had written something."""
    write, check = KINDS[kind]
    draw = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numus.nn", "numus.data"])
    useful = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(times):
            path = Path(folder) / f"{i}.file"
            received, sent = context.Pipe(duplex=False)
            writer = context.Process(target=write, args=(path, sent), daemon=True)
            writer.start()
            sent.close()
            received.poll(30 if draw.random() < 0.8 else 0)  # most have started
            time.sleep(draw.uniform(0, 0.05))
            writer.kill()
            writer.join()
            least = 0
            try:
                while received.poll():
                    least = received.recv()
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
            f"{kind}: {options.times} writers killed ({useful} had written something), all files "
            f"readable; {time.perf_counter() - began:.0f} s"
        )


if __name__ == "__main__":
    main()
