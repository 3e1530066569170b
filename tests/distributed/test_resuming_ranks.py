"""Trainings that fail, and go on from checkpoints of other numbers of ranks."""

import os
import re
import subprocess
import sys

import jobs
import numpy as np
import pytest

import numus as nm
from numus import nn
from numus.errors import RecordError

jobs.require_mpich()
import rank_resuming as job  # noqa: E402


def launch(ranks, folder, end, *rest, options=(), **variables):
    """The output of `numus launch`, which ends well."""
    script = [str(jobs.HERE / "rank_resuming.py"), str(folder), str(end), *map(str, rest)]
    command = [sys.executable, "-m", "numus", "launch", "-n", str(ranks), *map(str, options)]
    environment = {**os.environ, "NUMUS_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        command + script, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout, done.stderr


def weights(folder):
    return nn.load_safetensors(folder / "weights" / "end.safetensors")


def go_on_alone(folder, end, sharded):
    """The weights after this process has gone on from a checkpoint of several."""
    parts = job.parts(sharded)
    step = nm.distributed.load_checkpoint(folder, **parts)["step"]
    return job.train(parts, step, end)


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name].numpy(), other[name].numpy(), atol=1e-6)


@pytest.mark.slow
def test_killed_twice_and_resumed_by_one_process(tmp_path):
    """A rank is killed in the first attempt; in the second, the first rank while it commits a
    checkpoint. The third ends with the bits of a training that nobody disturbed."""
    got, said = launch(2, tmp_path, 8, 0.1, options=("--max-restarts", 2), KILL="1@3", COMMIT="6")
    assert re.findall(r"bits (\w+)", got) == re.findall(r"undisturbed (\w+)", got)
    assert "rank 1 has ended (killed, crashed, or left without a word)" in got
    assert "rank 0 has ended (killed, crashed, or left without a word)" in got
    assert "rank 1 ended by signal 9 (SIGKILL)" in said
    steps = [int(step) for step in re.findall(r"goes on from step (\d+)", got)]
    assert steps == [0, 0, 2, 2, 4, 4]
    assert len(list(tmp_path.glob("*.safetensors"))) == 2  # of the last generation alone
    whole = go_on_alone(tmp_path, 12, sharded=True)
    assert_close(go_on_alone(tmp_path, 12, sharded=False), whole)


@pytest.mark.slow
def test_a_restart_with_fewer_ranks(tmp_path):
    options = ("--max-restarts", 1, "--min-ranks", 1)
    got, said = launch(2, tmp_path, 6, options=options, KILL="1@3")
    assert got.count("goes on from step 2") == 1
    assert "starting again (1 of 1) with 1 rank" in said
    assert_close(weights(tmp_path), job.train(job.parts(), 0, 6))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_four_ranks_resumed_by_others(tmp_path, ranks):
    launch(4, tmp_path, 4)
    launch(ranks, tmp_path, 10)
    assert_close(weights(tmp_path), job.train(job.parts(), 0, 10))


@pytest.mark.slow
def test_a_random_rank_is_killed_thirty_times():
    command = [sys.executable, "-m", "tools.kill_ranks", "--kills", "30"]
    subprocess.run(command, check=True, timeout=1500, cwd=jobs.HERE.parents[1])


def test_checkpoints_that_do_not_fit(tmp_path):
    dist = nm.distributed
    model = dist.FSDP(nn.Linear(2, 3))
    dist.save_checkpoint(tmp_path, model=model, notes={"x": nm.arange(3)})
    before = model.state_dict()["bias"].tolist()
    found = dist.load_checkpoint(tmp_path, model=model)
    assert found["notes"]["x"].tolist() == [0, 1, 2]
    with pytest.raises(RecordError, match="has no optimizer; it has notes, model"):
        dist.load_checkpoint(tmp_path, model=model, optimizer=nm.optim.SGD(model, lr=1.0))
    with pytest.raises(RecordError, match=r"weight: \[3, 2\] there, \[2, 4\] here"):
        dist.load_checkpoint(tmp_path, model=nn.Linear(4, 2, bias=False))
    assert model.state_dict()["bias"].tolist() == before
    with pytest.raises(RecordError, match="has no checkpoint"):
        dist.load_checkpoint(tmp_path / "other", model=model)
    (shard,) = tmp_path.glob("*.safetensors")
    os.truncate(shard, 40)
    with pytest.raises(RecordError):
        dist.load_checkpoint(tmp_path, model=model)
