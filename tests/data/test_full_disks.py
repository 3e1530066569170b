"""Disks that are full or refuse: the old file stays, and the error names the new one."""

import contextlib
import errno
import os
import sys

import numpy as np
import pytest

import numus as nm
from numus import data, nn, optim
from numus.optim.training.records import Records
from numus.png import write_png

resource = pytest.importorskip("resource", reason="no limits on the size of files")

SMALL, LARGE, LIMIT_BYTES = 100, 60_000, 100_000


@contextlib.contextmanager
def full_disk():
    """No file grows beyond a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def weights(path, size):
    nn.save_safetensors({"x": np.full(size, size, np.float32)}, path)


def shards(path, size):
    tensors = {f"x{i}": np.full(size, size, np.float32) for i in range(3)}
    nn.save_safetensors(tensors, path, max_shard_size=size * 4)


def checkpoint(path, size):
    nn.save_checkpoint(path, model={"x": np.full(size, size, np.float32)})


def records(path, size):
    with data.RecordWriter.create(path) as writer:
        for _ in range(4):
            writer.write_record(np.full(size // 2, size, np.float32))


def appended(path, size):
    with data.RecordWriter.append(path) if path.exists() else data.RecordWriter(path) as writer:
        for _ in range(4):
            writer.write_record(np.full(size // 2, size, np.float32))


def image(path, size):
    pixels = np.random.default_rng(size).integers(0, 256, (size // 10, 20, 3)).astype(np.uint8)
    write_png(path, pixels)


def epochs(path, size):
    if path.parent.joinpath("steps.jsonl").exists():
        path.parent.joinpath("steps.jsonl").unlink()
    log = Records(path.parent, 0)
    try:
        log.add_epoch([{"step": 1, "loss": 0.0, "epoch": 1, "note": "x" * size * 4}])
    finally:
        log.close()


def values(path):
    """What can be read from a file, or from the files of an index."""
    if path.suffix == ".rrec":
        return [float(x[0]) for x in data.RecordDataset.open(path)]
    if path.suffix in (".png", ".csv"):
        return path.read_bytes()
    if path.suffix == ".ckpt":
        return nn.load_checkpoint(path)["model"]["x"].tolist()
    return {name: x.tolist() for name, x in nn.load_safetensors(path).items()}


SAVERS = {
    weights: "a.safetensors",
    shards: "a.safetensors",
    checkpoint: "a.ckpt",
    records: "a.rrec",
    appended: "a.rrec",
    image: "a.png",
    epochs: "epochs.csv",
}


@pytest.mark.parametrize("save", SAVERS, ids=lambda save: save.__name__)
def test_a_full_disk_keeps_the_old_file(tmp_path, save):
    path = tmp_path / SAVERS[save]
    save(path, SMALL)
    before, names = values(path), set(os.listdir(tmp_path))
    opened = data.RecordDataset.open(path) if path.suffix == ".rrec" else None
    with full_disk(), pytest.raises(OSError, match="was not written") as caught:
        save(path, LARGE)
    assert caught.value.errno == errno.EFBIG
    assert path.stem in str(caught.value)
    assert values(path) == before
    left = set(os.listdir(tmp_path)) - {n for n in os.listdir(tmp_path) if n.endswith(".part")}
    assert left == names
    save(path, SMALL)  # there is room again
    assert {n for n in os.listdir(tmp_path) if n.endswith(".part")} == set()
    if opened is not None:  # a reader of the old file
        assert [float(x[0]) for x in opened] == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_device_without_room():
    with pytest.raises(OSError, match="/dev/full was not written: No space left"):
        nn.save_safetensors({"x": nm.ones(100)}, "/dev/full")
    with pytest.raises(OSError, match="/dev/full was not written: it is a device"):
        data.RecordWriter.create("/dev/full")


@pytest.mark.parametrize("save", SAVERS, ids=lambda save: save.__name__)
def test_folders_that_refuse(tmp_path, save):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / SAVERS[save]).mkdir(parents=True)
    with pytest.raises(OSError, match="file"):
        save(tmp_path / "file" / SAVERS[save], SMALL)
    with pytest.raises(OSError, match=SAVERS[save]):
        save(tmp_path / "folder" / SAVERS[save], SMALL)
    if os.name == "posix" and os.getuid() and sys.platform != "win32":
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(PermissionError, match="was not written"):
            save(tmp_path / "closed" / SAVERS[save], SMALL)


def test_a_training_on_a_full_disk_keeps_its_checkpoint(tmp_path):
    def fit(epochs, size=4):
        nm.random.seed(0)
        model = nn.Linear(size, 1)
        trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.0), model, nn.mse_loss)
        batches = [(nm.ones((2, size)), nm.ones((2, 1)))] * 3
        return trainer.fit(batches, epochs, folder=tmp_path, resume=size == 4, progress=False)

    fit(1)
    before = (tmp_path / "last.ckpt").read_bytes()
    with full_disk(), pytest.raises(OSError, match="ckpt was not written"):
        fit(1, size=LARGE)
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert len(fit(2)) == 2
