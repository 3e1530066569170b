"""Whole models: PyTorch's state dicts load by name and give PyTorch's outputs and gradients."""

from pathlib import Path

import models
import numpy as np
import pytest
from safetensors.numpy import load_file
from torch_cases import draw_state, generator

import numus as nm
from numus import nn

STORED = load_file(Path(__file__).parent.parent / "fixtures" / "torch_models.safetensors")


def inputs(name):
    rng = generator(name)
    out = []
    for spec in models.MODELS[name][1]:
        if isinstance(spec[-1], tuple):
            low, high, shape = spec
            out.append(np.floor(low + rng.random(shape) * (high - low)).astype(np.int64))
        else:
            out.append((rng.random(spec) * 2 - 1).astype(np.float32))
    return out


@pytest.mark.parametrize(
    ("name", "train"),
    [
        pytest.param(n, t, marks=[pytest.mark.slow] * (n == "resnet" and not t))
        for t in (True, False)
        for n in models.MODELS
    ],
)
def test_model(name, train):
    model = models.MODELS[name][0](nn).train(train)
    floats = {n: t.shape for n, t in model.state_dict().items() if t.dtype.is_floating}
    model.load_state_dict(draw_state(name, floats), strict=False)
    out = model(*(nm.asarray(x) for x in inputs(name)))
    key = f"{name}:{'train' if train else 'eval'}"
    expected = STORED[f"{key}:out"]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5 * scale)
    (out * out).mean().backward()
    for part, p in model.named_parameters():
        if f"{key}:{part}" in STORED:
            wanted = STORED[f"{key}:{part}"]
            scale = np.abs(wanted).max()
            # against float64, gradients of either library are off by up to 1.6e-5 of the largest
            np.testing.assert_allclose(p.grad.numpy(), wanted, rtol=2e-5, atol=3e-5 * scale)
    assert any(f"{key}:{part}" in STORED for part, _ in model.named_parameters())
