"""The GPT-2 example: it runs on every device, learns, and learns what PyTorch's learns."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numus as nm

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from bench import gpt2 as beside  # noqa: E402

gpt2 = beside.example()
SMALL = gpt2.Size(layers=1, heads=2, width=16, vocabulary=40, length=16)
DEVICES = [d.kind for d in nm.devices() if d.kind in ("cpu", "webgpu", "cuda")]


def batches(count):
    rng = np.random.default_rng(0)
    return [np.cumsum(rng.integers(0, 3, (4, 13)), axis=1) % 40 for _ in range(count)]


# The narrow floats of WebGPU are tested elsewhere, and so are its kernels: a software driver
# compiles those of a step for half a minute.
CASES = [
    pytest.param(d, p, marks=pytest.mark.slow if d == "webgpu" or p else ())
    for d in DEVICES
    for p in ("", "bf16")
    if (d, p) != ("webgpu", "bf16")
]


@pytest.mark.parametrize(("device", "precision"), CASES)
def test_it_learns(device, precision):
    training = gpt2.Training(SMALL, device, precision, rate=0.01)
    rows = [nm.asarray(b, device=device) for b in batches(1)]
    losses = [training.step(r[:, :-1], r[:, 1:]).item() for r in rows * 8]
    assert abs(losses[0] - np.log(40)) < 0.1
    assert losses[-1] < 0.9 * losses[0]


def test_dropout_is_part_of_the_step():
    device = nm.device().name
    training = gpt2.Training(dataclasses.replace(SMALL, dropout=0.2), device, rate=0.0)
    row = nm.asarray(batches(1)[0])
    losses = {training.step(row[:, :-1], row[:, 1:]).item() for _ in range(3)}
    assert len(losses) == 3  # the weights are the same, what is dropped is not
    training.model.eval()
    losses = {training.step(row[:, :-1], row[:, 1:]).item() for _ in range(3)}
    assert len(losses) == 1


def test_the_losses_are_those_of_pytorch():
    pytest.importorskip("torch")
    options = {"device": "cpu", "precision": "", "rate": 0.003, "warmup": 5, "clip": 1.0}
    given = type("Given", (), options)()
    ours = beside.Numus(gpt2, SMALL, given)
    theirs = beside.Torch(SMALL, ours.weights(), given, compiled=False)
    found = [beside.run(name, side, batches(3), 20) for name, side in (("", ours), ("", theirs))]
    np.testing.assert_allclose(*found, atol=1e-4)


@pytest.mark.slow
def test_the_script_runs():
    command = [
        sys.executable,
        "examples/gpt2.py",
        *("--steps", "4"),
        *("--batch", "4"),
        *("--length", "16"),
        *("--rate", "0.003"),
    ]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        command, cwd=ROOT, env=surroundings, check=True, capture_output=True, text=True
    )
    lines = answer.stdout.splitlines()
    losses = [float(x.split()[-1]) for x in lines if x.startswith("step")]
    assert losses[-1] < losses[0] - 0.1
    assert any(x.endswith("tokens/s") for x in lines)
