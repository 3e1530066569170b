"""Files of weights and trainings: what is written is read, whole or not at all."""

import json
import multiprocessing
import os
import struct
import time

import numpy as np
import pytest
import safetensors.numpy

import numus as nm
from numus import data, nn, optim
from numus import dtypes as dt
from numus.errors import RecordError
from numus.nn.safetensors import atomically


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_every_dtype(tmp_path, dtype):
    x = nm.asarray(np.array([[0, 1, 2], [3, 1, 0]])).astype(dtype)
    state = {"x": x, "empty": nm.zeros((0, 2), dtype=dtype), "one": x[1, 1]}
    nn.save_safetensors(state, tmp_path / "a.safetensors")
    found = nn.load_safetensors(tmp_path / "a.safetensors")
    for name, tensor in state.items():
        assert found[name].dtype is dtype
        assert found[name].shape == tensor.shape
        np.testing.assert_array_equal(found[name].numpy(), tensor.numpy())


def test_others_read_what_we_write_and_we_what_they_do(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "i": np.array([1, -1])}
    nn.save_safetensors(arrays, path, {"made": "here"})
    theirs = safetensors.numpy.load_file(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name], array)
    safetensors.numpy.save_file(arrays, path)
    ours = nn.load_safetensors(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(ours[name].numpy(), array)


def test_views_and_transposes_are_written_in_order(tmp_path):
    x = nm.arange(12).reshape((3, 4))
    nn.save_safetensors({"t": x.T, "s": x[::2, ::-1]}, tmp_path / "a.safetensors")
    found = nn.load_safetensors(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["t"].numpy(), x.T.numpy())
    np.testing.assert_array_equal(found["s"].numpy(), x.numpy()[::2, ::-1])


def test_shards(tmp_path):
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    written = nn.save_model(model, tmp_path / "model.safetensors", max_shard_size="1.2KB")
    names = [p.name for p in written]
    assert names[0] == "model-00001-of-00003.safetensors"
    assert names[-1] == "model.safetensors.index.json"
    index = json.loads(written[-1].read_text())
    assert index["metadata"]["total_size"] == model.num_parameters() * 4
    for source in (tmp_path, tmp_path / "model.safetensors", written[-1]):
        other = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
        nn.load_model(other, source)
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(ValueError, match="not a size"):
        nn.save_model(model, tmp_path / "x.safetensors", max_shard_size="big")


def test_loading_shares_the_file_and_writes_do_not_reach_it(tmp_path):
    path = tmp_path / "a.safetensors"
    nn.save_safetensors({"x": nm.arange(1000.0)}, path)
    before = path.read_bytes()
    x = nn.load_safetensors(path)["x"]
    with x.data_write() as a:
        a[:] = 7
    assert path.read_bytes() == before
    assert nn.load_safetensors(path)["x"][3].item() == 3.0


def test_damaged_files_are_told(tmp_path):
    path = tmp_path / "a.safetensors"
    nn.save_safetensors({"x": nm.arange(100.0)}, path)
    whole = path.read_bytes()
    for cut, message in ((4, "has 4 bytes"), (20, "cut off"), (len(whole) - 1, "x ends at")):
        path.write_bytes(whole[:cut])
        with pytest.raises(RecordError, match=message):
            nn.load_safetensors(path)
    path.write_bytes(struct.pack("<Q", 10) + b"not json!!")
    with pytest.raises(RecordError, match="cannot be read"):
        nn.load_safetensors(path)
    path.write_bytes(whole.replace(b'"F32"', b'"F99"'))
    with pytest.raises(RecordError, match="F99"):
        nn.load_safetensors(path)
    path.write_bytes(whole.replace(b"[100]", b"[101]"))
    with pytest.raises(RecordError, match="400 bytes"):
        nn.load_safetensors(path)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.safetensors"
    nn.save_safetensors({"x": nm.ones(2)}, path)

    class Broken:
        shape, dtype = (2,), np.dtype(np.float32)

        def __array__(self, *_, **__):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        nn.save_safetensors({"x": Broken()}, path)
    assert nn.load_safetensors(path)["x"].tolist() == [1.0, 1.0]
    assert os.listdir(tmp_path) == ["a.safetensors"]


class Training:
    """A model in training, with everything that has a state."""

    def __init__(self):
        nm.random.seed(11)
        self.model = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)
        )
        self.opt = optim.AdamW(self.model.parameters(), lr=0.01, amsgrad=True)
        self.schedule = optim.OneCycleLR(self.opt, 0.05, total_steps=20)
        self.scaler = optim.GradScaler(init_scale=64.0, growth_interval=3)
        self.ema = optim.EMA(self.model, 0.9)
        x = nm.random.normal((24, 3), key=nm.random.key(0))
        self.loader = data.DataLoader(
            data.TensorDataset(x, (x.sum(axis=1) > 0).astype("i64")),
            *(8, True),
            key=nm.random.key(1),
        )
        self.parts = {
            "model": self.model,
            "opt": self.opt,
            "schedule": self.schedule,
            "scaler": self.scaler,
            "ema": self.ema,
            "loader": self.loader,
        }

    def steps(self, save_after=None, path=None):
        losses = []
        for x, y in self.loader:
            self.opt.zero_grad()
            with nm.autocast("f16"):
                loss = nn.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.schedule.step()
            self.ema.update()
            losses.append(loss.item())
            if len(losses) == save_after:
                nn.save_checkpoint(path, **self.parts, note=("a", [1, None]), losses=losses)
        return losses


def test_a_training_goes_on_bit_for_bit(tmp_path):
    path = tmp_path / "step.ckpt"
    first = Training()
    first.steps()
    whole = first.steps(save_after=2, path=path) + first.steps()
    second = Training()
    second.steps()  # it may have gone elsewhere meanwhile
    states = nn.load_checkpoint(path, **second.parts)
    assert states["note"] == ("a", [1, None])
    assert states["losses"] == whole[:2]
    assert second.steps() + second.steps() == whole[2:]
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert first.schedule.get_last_lr() == second.schedule.get_last_lr()
    with pytest.raises(RecordError, match="has no extra"):
        nn.load_checkpoint(path, extra=second.model)
    nn.save_safetensors({"x": nm.ones(1)}, path)
    with pytest.raises(RecordError, match="not a checkpoint"):
        nn.load_checkpoint(path)
    with pytest.raises(TypeError, match="/bad is a set"):
        nn.save_checkpoint(path, bad={1})


def _write_and_wait(path, told):
    def contents(file):
        file.write(b"half")
        file.flush()
        told.send(True)
        time.sleep(60)

    atomically(path, contents)


def test_what_a_killed_writer_left_goes_away(tmp_path):
    path = tmp_path / "step.ckpt"
    context = multiprocessing.get_context("forkserver")
    writers = []
    for _ in range(2):
        hears, told = context.Pipe(duplex=False)
        writer = context.Process(target=_write_and_wait, args=(path, told), daemon=True)
        writer.start()
        assert hears.poll(60)
        writers.append(writer)
    dead, alive = writers
    dead.kill()
    dead.join()
    assert len(list(tmp_path.glob(".step.ckpt.*.part"))) == 2
    other = tmp_path / ".other.ckpt.abc.part"
    other.write_bytes(b"")  # of another target: not looked at
    nn.save_checkpoint(path, step=1)
    assert len(list(tmp_path.glob(".step.ckpt.*.part"))) == 1  # of the writer that is at work
    assert other.exists()
    alive.kill()
    alive.join()
    nn.save_checkpoint(path, step=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.ckpt.abc.part", "step.ckpt"]
    assert nn.load_checkpoint(path)["step"] == 2
