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
