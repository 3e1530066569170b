"""Crash tests of file writers: kill them at random moments, and read the files.

    python -m tools.crash_files                  200 times each kind of save
    python -m tools.crash_files --times 20 --kinds shards trainings

Checkpoints, weights in shards and record files are replaced atomically: what is read is one
version, at least as new as the last save that returned. `RecordWriter.recover` finds every record
that was flushed. A training that is resumed has every step in its log, once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus import data, nn, optim

_SIZE = 40_000  # elements of a tensor: enough that writing takes a while


def write_checkpoints(path: Path, sent: Any) -> None:
    """Write checkpoints; send the step after each."""
    for step in range(1, 1_000_000):
        nn.save_checkpoint(path, model={"w": np.full(_SIZE, step, np.float32)}, step=step)
        sent.send(step)


def write_shards(path: Path, sent: Any) -> None:
    """Write weights in some shards, in others, in one file; send the version after each."""
    for step in range(1, 1_000_000):
        tensors = {f"w{i}": np.full(_SIZE // 8, step, np.float32) for i in range(6)}
        size = (None, 25_000, 45_000, 25_000)[step % 4]
        nn.save_safetensors(tensors, path, max_shard_size=size)
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


def write_versions(path: Path, sent: Any) -> None:
    """Replace a record file; send the version after each."""
    for version in range(1, 1_000_000):
        with data.RecordWriter.create(path) as writer:
            for _ in range(10):
                writer.write_record(np.full(4000, version, np.int32))
        sent.send(version)


_STEPS = 48


def train(folder: Path, sent: Any = None) -> None:
    """Train a small model; send the number of steps after each."""

    class Told(optim.Callback):
        def on_step_end(self, trainer: Any) -> None:
            if sent is not None:
                sent.send(trainer.step)
                time.sleep(0.002)

    nm.random.seed(0)
    model = nn.Linear(4, 1)
    x = nm.random.normal((_STEPS, 4), key=nm.random.key(1))
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.01), model, nn.mse_loss)
    loader = data.DataLoader(data.TensorDataset(x, x.sum(axis=1, keepdims=True)), 3)
    options = {"folder": folder, "checkpoint_every": 5, "progress": False}
    trainer.fit(loader, _STEPS // len(loader), callbacks=[Told()], **options)


def check_checkpoint(path: Path, least: int) -> None:
    """The checkpoint is complete, and at least as new as the last step sent."""
    if not path.exists():
        assert least == 0, f"step {least} was written, and there is no file"
        return
    states = nn.load_checkpoint(path)
    assert states["step"] >= least, f"step {states['step']}, {least} was written"
    assert (states["model"]["w"].numpy() == states["step"]).all(), "a mixture of two"


def check_shards(path: Path, least: int) -> None:
    """The weights are of one version, at least as new as the last sent, and alone after a save."""
    try:
        found = nn.load_safetensors(path)
    except FileNotFoundError:
        assert least == 0, f"version {least} was written, and there is no file"
    else:
        versions = {n for x in found.values() for n in np.unique(x.numpy()).tolist()}
        assert len(versions) == 1, f"a mixture of {versions}"
        assert versions.pop() >= least, f"version {least} was written"
    written = nn.save_safetensors({"w": nm.ones(100), "v": nm.ones(100)}, path, max_shard_size=400)
    left = {p for p in path.parent.iterdir() if p.name.lstrip(".").startswith(f"{path.stem}-")}
    assert left == set(written[:-1]), f"{left} are left, {written} were written"
    assert not path.exists(), f"{path} is left, which would be loaded instead of the shards"


def check_records(path: Path, least: int) -> None:
    """Every record sent can be recovered, and all records are complete."""
    try:
        data.RecordWriter.recover(path)
    except FileNotFoundError:
        assert least == 0, f"{least} records were written, and there is no file"
        return
    records = data.RecordDataset.open(path)
    assert len(records) >= least, f"{len(records)} records, {least} were written"
    for i, record in enumerate(records):
        assert record["i"] == i
        assert (record["x"] == i).all()


def check_versions(path: Path, least: int) -> None:
    """The file is whole, of one version, at least as new as the last one sent."""
    if not path.exists():
        assert least == 0, f"version {least} was written, and there is no file"
        return
    found = np.stack(list(data.RecordDataset.open(path)))
    assert len(found) == 10
    assert (found == found[0, 0]).all(), "a mixture"
    assert found[0, 0] >= least, f"version {found[0, 0]}, {least} was written"


def check_training(path: Path, least: int) -> None:
    """Resumed, the training's log has all steps."""
    train(path)
    steps = [json.loads(line)["step"] for line in (path / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(1, _STEPS + 1)), f"after {least} steps, the log has {steps}"


KINDS = {
    "checkpoints": (write_checkpoints, check_checkpoint),
    "shards": (write_shards, check_shards),
    "records": (write_records, check_records),
    "replaced records": (write_versions, check_versions),
    "trainings": (train, check_training),
}


def process_context() -> Any:
    """A fork server that has imported numus; where that starts a GPU, which no fork can use, new
    processes."""
    if not nm.default_device().on_host:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numus.optim", "numus.data"])
    return context


def crash(kind: str, times: int, seed: int = 0) -> int:
    """Kill writers; the number of those that had written something."""
    write, check = KINDS[kind]
    draw = random.Random(seed)
    context = process_context()
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
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    for kind in options.kinds:
        began = time.perf_counter()
        useful = crash(kind, options.times)
        print(
            f"{kind}: {options.times} writers killed ({useful} had written something), all files "
            f"readable; {time.perf_counter() - began:.0f} s"
        )


if __name__ == "__main__":
    main()
