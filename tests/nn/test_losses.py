"""Losses that PyTorch lacks, or whose gradients it defines in its own way."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch_cases import CTC, CTC_SCORES, draw, generator

import numus as nm
from numus import nn
from numus.errors import ShapeError

STORED = load_file(Path(__file__).parent.parent / "fixtures" / "torch_layers.safetensors")


@pytest.mark.parametrize("name", CTC)
def test_ctc(name):
    targets, inputs, lengths, options = CTC[name]
    scores = nm.asarray(draw(CTC_SCORES, generator("ctc")), requires_grad=True)
    out = nn.CTCLoss(**options)(
        *(nn.log_softmax(scores, -1), nm.asarray(targets), nm.asarray(inputs), nm.asarray(lengths))
    )
    np.testing.assert_allclose(out.numpy(), STORED[f"{name}:out"], rtol=1e-5)
    out.sum().backward()
    wanted = STORED[f"{name}:grad"]
    np.testing.assert_allclose(scores.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_ctc_impossible_and_single():
    logs = nn.log_softmax(nm.random.normal((2, 1, 3), key=nm.random.key(0)), -1)
    loss = nn.ctc_loss(logs, nm.asarray([[1, 1]]), nm.asarray([2]), nm.asarray([2]))
    assert loss.item() == np.inf  # equal classes need a blank between them
    alone = nn.ctc_loss(
        logs[:, 0], nm.asarray([1]), nm.asarray([2]), nm.asarray([1]), reduction="sum"
    )
    p = np.exp(logs.numpy()[:, 0])
    paths = p[0, 1] * p[1, 1] + p[0, 0] * p[1, 1] + p[0, 1] * p[1, 0]
    assert alone.item() == pytest.approx(-np.log(paths), rel=1e-5)
    with pytest.raises(ShapeError, match="do not fit"):
        nn.ctc_loss(logs, nm.asarray([[1]]), nm.asarray([3]), nm.asarray([1]))


def test_focal():
    x = nm.random.normal((6, 4), key=nm.random.key(1))
    t = nm.asarray([0, 1, 2, 3, -100, 1])
    plain = nn.FocalLoss(gamma=0.0)(x, t)
    assert plain.item() == pytest.approx(nn.cross_entropy(x, t).item(), rel=1e-6)
    p = nn.softmax(x).numpy()[[0, 1, 2, 3, 5], [0, 1, 2, 3, 1]]
    expected = (-((1 - p) ** 2) * np.log(p)).mean()
    assert nn.focal_loss(x, t).item() == pytest.approx(expected, rel=1e-5)


def test_sigmoid_focal():
    x = nm.random.normal((5,), key=nm.random.key(2), dtype="f64")
    t = nm.asarray([0.0, 1.0, 1.0, 0.0, 1.0], dtype="f64")
    p = 1 / (1 + np.exp(-x.numpy()))
    right = np.where(t.numpy() == 1, p, 1 - p)
    weight = np.where(t.numpy() == 1, 0.25, 0.75)
    expected = -weight * (1 - right) ** 2 * np.log(right)
    np.testing.assert_allclose(nn.sigmoid_focal_loss(x, t).numpy(), expected, rtol=1e-9)


def test_contrastive():
    a, b = nm.asarray([[0.0, 0.0], [0.0, 0.0]]), nm.asarray([[0.3, 0.4], [0.3, 0.4]])
    loss = nn.ContrastiveLoss(margin=2.0, reduction="none")(a, b, nm.asarray([1, 0]))
    np.testing.assert_allclose(loss.numpy(), [0.25, 2.25], rtol=1e-4)


def test_gated_halves():
    x = nm.random.normal((3, 8), key=nm.random.key(3))
    a, b = x[:, :4], x[:, 4:]
    for module, gate in ((nn.SwiGLU(), nm.silu), (nn.GeGLU(), nm.gelu)):
        np.testing.assert_allclose(module(x).numpy(), (gate(a) * b).numpy(), rtol=1e-6)
    with pytest.raises(ShapeError, match="halves"):
        nn.GLU()(nm.ones((2, 3)))


def test_weights_of_losses_move_with_them():
    loss = nn.CrossEntropyLoss(weight=nm.ones(3), label_smoothing=0.1)
    assert list(loss.state_dict()) == ["weight"]
    assert loss.double().weight.dtype is nm.float64
    assert (
        repr(loss) == "CrossEntropyLoss(ignore_index=-100, reduction='mean', label_smoothing=0.1)"
    )


def test_derivatives_by_differences():
    """Second derivatives and forward mode go through compositions as they do through primitives."""
    x = nm.random.normal((3, 4), key=nm.random.key(4), dtype="f64")
    t = nm.asarray([1, 0, 3])
    for f in (
        lambda v: nn.cross_entropy(v, t, label_smoothing=0.2),
        lambda v: nn.batch_norm(v, training=True).square().sum() * 0.5 + (v**3).sum(),
        lambda v: nn.huber_loss(v, nm.zeros((3, 4), dtype="f64")),
        lambda v: nn.mish(v).sum(),
    ):
        g = nm.grad(f)(x)
        direction = nm.random.normal((3, 4), key=nm.random.key(5), dtype="f64")
        _, tangent = nm.jvp(f, (x,), (direction,))
        assert tangent.item() == pytest.approx((g * direction).sum().item(), rel=1e-8)
        step = 1e-5
        ahead, behind = f(x + step * direction).item(), f(x - step * direction).item()
        assert tangent.item() == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-7)
        second = nm.hvp(f, (x,), (direction,))
        change = (nm.grad(f)(x + step * direction) - nm.grad(f)(x - step * direction)) / (2 * step)
        np.testing.assert_allclose(second.numpy(), change.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "dim"),
    [
        ((3, 4), (3, 1), 1),
        ((3, 1), (3, 4), 1),
        ((3, 4), (4,), 1),
        ((3, 4), (1, 4), 0),
        ((2, 1), (), 0),
    ],
)
def test_cosine_similarity_broadcasts_before_it_measures(first, second, dim):
    """An operand that is repeated along the reduced axis is as long as its repetition."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(first), rng.standard_normal(second)
    wide = np.broadcast_arrays(a, b)
    lengths = [np.linalg.norm(x, axis=dim) for x in wide]
    expected = np.sum(a * b, axis=dim) / (lengths[0] * lengths[1])
    found = nn.functional.cosine_similarity(nm.asarray(a), nm.asarray(b), dim)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
