"""Trainers on several ranks: by a strategy, by `numus train`, and on a Ray cluster."""

import os
import subprocess
import sys
import textwrap

import jobs
import pytest

import numus as nm
from numus import nn, optim

jobs.require_mpich()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_strategies_of_a_trainer(tmp_path, ranks):
    jobs.run(ranks, "rank_trainer.py", tmp_path)


CONFIG = """
[run]
epochs = 2
folder = "out"
device = "cpu"
[model]
layers = [{type = "Linear", in_features = 3, out_features = 2}]
[data]
train = "rows.py:rows"
batch_size = 4
[loss]
name = "mse_loss"
"""
ROWS = """
import numus as nm
def rows():
    return nm.data.TensorDataset(nm.ones((16, 3)), nm.zeros((16, 2)))
"""


@pytest.mark.slow
def test_parallel_table(tmp_path):
    """`[parallel]` starts ranks, whose weights are those of one process."""
    (tmp_path / "rows.py").write_text(textwrap.dedent(ROWS))
    found = []
    for extra in ("", '[parallel]\nranks = 2\nstrategy = "fsdp"\n'):
        (tmp_path / "c.toml").write_text(CONFIG.replace('"out"', f'"out{len(found)}"') + extra)
        command = [sys.executable, "-m", "numus", "train", "c.toml", "--allow", "rows.py"]
        environment = {**os.environ, "NUMUS_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        path = tmp_path / f"out{len(found)}" / "model.safetensors"
        found.append(nn.load_safetensors(path)["0.weight"].numpy())
    assert abs(found[0] - found[1]).max() < 1e-6
    assert done.stdout.count("parameters on") == 1  # one rank speaks


def test_arguments():
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="'zero' must be one of ddp, fsdp, ray"):
        optim.Trainer(optimizer, model, nn.mse_loss, strategy="zero")
    with pytest.raises(TypeError, match="not a int"):
        optim.Trainer(optimizer, model, nn.mse_loss, strategy=3)
    with pytest.raises(ValueError, match="needs a model to wrap"):
        optim.Trainer(optimizer, strategy="ddp")
    with pytest.raises(ValueError, match="inner 'pipe' is ddp or fsdp"):
        nm.distributed.RayStrategy(2, inner="pipe")
    groups = [{"params": [p]} for p in model.parameters()]
    with pytest.raises(ValueError, match="has 2 groups of parameters"):
        optim.Trainer(optim.SGD(groups, lr=0.1), model, nn.mse_loss, strategy="fsdp")
