"""Layers inside transformations: traced, and batched over examples that are batches themselves."""

import numpy as np
import pytest
from torch_cases import CASES, draw, generator

import numus as nm
from numus import nn

NAMES = (
    "act-GELU act-PReLU-channels act-GLU Linear Bilinear Embedding-padding LayerNorm-two RMSNorm "
    "GroupNorm InstanceNorm2d BatchNorm2d-eval CosineSimilarity MSELoss-mean CrossEntropy-all-mean "
    "CrossEntropy-probabilities BCEWithLogitsLoss TripletMarginLoss Conv2d-all ConvTranspose2d "
    "GRU-state LSTM MHA-masks EncoderLayer MaxPool2d AdaptiveAvgPool2d Upsample-bilinear"
).split()
CHOSEN = [case for case in CASES if case.name in NAMES]


def prepared(case):
    """The module as a function of tensors, and these."""
    rng = generator(case.name + "/options")
    options = {k: _tensor(v, rng) for k, v in case.kwargs.items()}
    given = {k: _tensor(v, rng) for k, v in case.given.items()}
    made = getattr(nn, case.call)(*case.args, **options).eval()
    inputs = [_tensor(spec, rng) for spec in case.inputs]

    def run(*tensors):
        return [x for x in nm.tree.leaves(made(*tensors, **given)) if x is not None]

    return run, inputs


def _tensor(spec, rng):
    drawn = draw(spec, rng)
    return nm.asarray(drawn) if isinstance(drawn, np.ndarray) else drawn


def agree(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)


def test_all_are_there():
    assert len(CHOSEN) == len(NAMES)


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
def test_traced(case):
    run, inputs = prepared(case)
    with nm.no_grad():
        expected = run(*inputs)
        traced = nm.jit(run)
        agree(traced(*inputs), expected)
        agree(traced(*inputs), expected)


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
def test_batched(case):
    run, inputs = prepared(case)
    other = [x * 0.5 if x.dtype.is_floating else x for x in inputs]
    both = [nm.stack([a, b]) for a, b in zip(inputs, other, strict=True)]
    for i, tensors in enumerate((inputs, other)):
        agree([y[i] for y in nm.vmap(run)(*both)], run(*tensors))


@pytest.mark.parametrize("call", [nn.RNN, nn.GRU, nn.LSTM])
def test_derivatives_of_recurrent_layers(call):
    nm.random.seed(0)
    layer = call(2, 3, bidirectional=True, dtype="f64")
    x, v = (nm.random.normal((4, 2, 2), dtype="f64") for _ in range(2))

    def f(x):
        return (layer(x)[0] ** 2).sum()

    step = 1e-5
    slope = ((f(x + step * v) - f(x - step * v)) / (2 * step)).item()
    along = nm.jvp(f, (x,), (v,))[1].item()
    assert abs(along - slope) < 1e-6 * abs(slope)
    assert abs((nm.grad(f)(x) * v).sum().item() - slope) < 1e-6 * abs(slope)
    ends = [nm.grad(f)(x + s * step * v) for s in (1, -1)]
    curved = (ends[0] - ends[1]).numpy() / (2 * step)
    np.testing.assert_allclose(nm.hvp(f, (x,), (v,)).numpy(), curved, rtol=1e-5, atol=1e-6)
