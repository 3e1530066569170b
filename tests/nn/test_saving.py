"""Files of weights and trainings: what is written is read, whole or not at all."""

import json
import multiprocessing
import os
import struct
import threading
import time

import numpy as np
import pytest
import safetensors.numpy

import numus as nm
from numus import data, nn, optim
from numus import dtypes as dt
from numus.errors import RecordError
from numus.files import atomically


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


def saved_numbers(folder, first, **options):
    tensors = {f"w{i}": np.full(100, first + i, np.float32) for i in range(4)}
    return nn.save_safetensors(tensors, folder / "m.safetensors", **options)


def loaded_numbers(path):
    return [x[0].item() for _, x in sorted(nn.load_safetensors(path).items())]


def test_a_new_save_switches_from_one_set_of_shards_to_another(tmp_path):
    first = saved_numbers(tmp_path, 0, max_shard_size=800)
    second = saved_numbers(tmp_path, 10, max_shard_size=800)
    assert set(tmp_path.iterdir()) == set(second)
    assert not set(first[:-1]) & set(second[:-1])
    assert loaded_numbers(tmp_path) == [10, 11, 12, 13]
    third = saved_numbers(tmp_path, 20, max_shard_size=400)
    assert set(tmp_path.iterdir()) == set(third)
    assert loaded_numbers(tmp_path / "m.safetensors") == [20, 21, 22, 23]
    whole = saved_numbers(tmp_path, 30)
    assert set(tmp_path.iterdir()) == set(whole)
    assert loaded_numbers(tmp_path) == [30, 31, 32, 33]
    fourth = saved_numbers(tmp_path, 40, max_shard_size=400)
    assert set(tmp_path.iterdir()) == set(fourth)
    assert loaded_numbers(tmp_path / "m.safetensors") == [40, 41, 42, 43]


def test_a_mixture_of_two_saves_is_refused(tmp_path):
    first = saved_numbers(tmp_path, 0, max_shard_size=800)
    old = first[0].read_bytes()
    second = saved_numbers(tmp_path, 10, max_shard_size=800)
    second[0].write_bytes(old)
    with pytest.raises(RecordError, match="the files are a mixture"):
        nn.load_safetensors(tmp_path)
    second[0].unlink()
    with pytest.raises(RecordError, match="files that are not there"):
        nn.load_safetensors(tmp_path)


def test_shards_of_others_are_read(tmp_path):
    for i in range(2):
        nn.save_safetensors({f"w{i}": nm.ones(2)}, tmp_path / f"m-{i}.safetensors")
    where = {f"w{i}": f"m-{i}.safetensors" for i in range(2)}
    index = {"metadata": {"total_size": 16}, "weight_map": where}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(nn.load_safetensors(tmp_path)) == ["w0", "w1"]


def test_loading_while_others_save(tmp_path):
    path = tmp_path / "m.safetensors"
    saved_numbers(tmp_path, 0, max_shard_size=400)
    done = threading.Event()

    def save():
        for i in range(1, 16):
            saved_numbers(tmp_path, 10 * i, max_shard_size=None if i % 5 == 0 else 400)
        done.set()

    savers = [threading.Thread(target=save) for _ in range(2)]
    for saver in savers:
        saver.start()
    while not done.is_set():
        first, *others = loaded_numbers(path)
        assert others == [first + 1, first + 2, first + 3]
    for saver in savers:
        saver.join()
    assert loaded_numbers(path) == [150, 151, 152, 153]


def test_loaded_tensors_are_no_longer_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    nn.save_safetensors({"x": nm.arange(10_000.0), "y": nm.ones(3)}, path)
    whole = path.read_bytes()
    model = nn.Linear(100, 100)
    nn.save_model(model, tmp_path / "model.safetensors")
    nn.load_model(model, tmp_path / "model.safetensors")
    before = model.weight.numpy().copy()
    x = nn.load_safetensors(path)["x"]
    for name in ("a.safetensors", "model.safetensors"):
        with open(tmp_path / name, "r+b") as file:  # overwritten in place, then cut off
            file.write(b"\xff" * 30_000)
            file.truncate(10)
    assert x.numpy().sum() == 49_995_000
    np.testing.assert_array_equal(model.weight.numpy(), before)
    path.write_bytes(whole)
    with x.data_write() as a:
        a[:] = 7
    assert path.read_bytes() == whole


@pytest.mark.on_cpu("mapped files")
def test_mapped_files_are_shared_and_writes_do_not_reach_them(tmp_path):
    path = tmp_path / "a.safetensors"
    nn.save_safetensors({"x": nm.arange(1000.0)}, path)
    before = path.read_bytes()
    x = nn.load_safetensors(path, mmap=True)["x"]
    nn.save_safetensors({"x": nm.zeros(1000)}, path)  # beside it, then in its place
    assert x[3].item() == 3.0
    with x.data_write() as a:
        a[:] = 7
    path.write_bytes(before)
    y = nn.load_safetensors(path, mmap=True)["x"]
    assert y[3].item() == 3.0
    with open(path, "r+b") as file:
        file.seek(len(before) - 4)
        file.write(np.float32(5).tobytes())
    assert y[999].item() == 5.0


def test_links_modes_and_devices(tmp_path):
    path, link = tmp_path / "a.safetensors", tmp_path / "link.safetensors"
    nn.save_safetensors({"x": nm.ones(2)}, path)
    path.chmod(0o600)
    link.symlink_to(path)
    nn.save_safetensors({"x": nm.zeros(2)}, link)
    assert link.is_symlink()
    assert nn.load_safetensors(path)["x"].tolist() == [0.0, 0.0]
    assert path.stat().st_mode & 0o777 == 0o600
    if os.path.exists("/dev/null"):
        nn.save_safetensors({"x": nm.ones(2)}, "/dev/null")
        assert not os.path.isfile("/dev/null")


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


class Counter:
    """A part of a user's own."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        if self.count < 0:
            raise ValueError("a count is not negative")


def snapshot(training, counter):
    arrays = [x.numpy().copy() for x in training.model.state_dict().values()]
    for tensors in training.opt.state.values():
        arrays += [x.numpy().copy() for x in tensors.values()]
    arrays += [x.numpy().copy() for x in training.ema.shadow.values()]
    numbers = [training.schedule.state_dict(), training.scaler.state_dict(), training.ema.decay]
    numbers += [training.loader._skip, training.loader.sampler.state_dict(), counter.count]
    numbers += [[{**g, "params": 0} for g in training.opt.param_groups]]
    return arrays, numbers, nm.random.get_state()


def without(name):
    return lambda state: {k: v for k, v in state.items() if k != name}


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("model", without("0.weight")),
        ("model", lambda s: {**s, "0.weight": nm.ones((8, 4))}),
        ("model", lambda s: {**s, "1.num_batches_tracked": nm.asarray(0.5)}),
        ("opt", without("state")),
        ("opt", lambda s: {**s, "param_groups": s["param_groups"] * 2}),
        ("opt", lambda s: {**s, "state": {**s["state"], 5: {"step": nm.ones(())}}}),
        ("opt", lambda s: {**s, "state": {**s["state"], 5: {**s["state"][5], "exp_avg": 3.0}}}),
        ("opt", lambda s: {**s, "param_groups": [{**s["param_groups"][0], "lr": "fast"}]}),
        ("opt", lambda s: 3),
        ("schedule", without("last_epoch")),
        ("schedule", lambda s: [1]),
        ("scaler", without("scale")),
        ("scaler", lambda s: {**s, "growth_factor": "x"}),
        ("ema", lambda s: {**s, "shadow": {}}),
        ("ema", lambda s: {**s, "decay": 7.0}),
        ("loader", lambda s: {**s, "given": -1}),
        ("loader", lambda s: {**s, "sampler": {"epoch": 0, "key": [1]}}),
        ("counter", lambda s: {"count": -1}),
        ("counter", lambda s: {}),
    ],
)
def test_a_checkpoint_is_loaded_as_a_whole_or_not_at_all(tmp_path, part, damage):
    path = tmp_path / "step.ckpt"
    training, counter = Training(), Counter()
    parts = {"before": Counter(), **training.parts, "counter": counter}
    states = {name: p.state_dict() for name, p in parts.items()}
    states["before"] = {"count": 5}
    nn.save_checkpoint(path, **{**states, part: damage(states[part])})
    for _ in range(2):
        training.steps()
    before = snapshot(training, counter)
    with pytest.raises((ValueError, TypeError, KeyError)) as caught:
        nn.load_checkpoint(path, **parts)
    assert f"{part!r} of {path} cannot be loaded; nothing was changed" in caught.value.__notes__
    after = snapshot(training, counter)
    for a, b in zip(before[0], after[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert before[1:] == after[1:]
    assert parts["before"].count == 0


def test_master_copies_follow_the_weights_that_are_loaded(tmp_path):
    path = tmp_path / "step.ckpt"
    model = nn.Linear(2, 2).to(dtype="bf16")
    nn.save_checkpoint(path, model=model, opt={"state": {}, "param_groups": [{"params": [0, 1]}]})
    other = nn.Linear(2, 2).to(dtype="bf16")
    opt = optim.SGD(other.parameters(), lr=0.0)
    nn.load_checkpoint(path, model=other, opt=opt)
    (other(nm.ones((1, 2), dtype="bf16")).sum()).backward()
    opt.step()
    np.testing.assert_array_equal(other.weight.numpy(), model.weight.numpy())


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
    context.set_forkserver_preload(["numus.optim", "numus.data"])
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
