"""Arguments of losses and embeddings that make no sense, and single numbers, which do."""

import numpy as np
import pytest
import simt_machine

import numus as nm
import numus.nn.functional as F
from numus import nn
from numus.errors import DTypeError, IndexRangeError, ShapeError

SCORES = nm.asarray(np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32))
ONE, FLOATS = nm.asarray([1.0]), nm.asarray([0.0, 1.0])
NUMBER = nm.asarray(0.5)


def at_hand(*values):
    """On the CPU: elements are looked at where that takes no wait for a device."""
    return nm.asarray(values, device="cpu")


WRONG = {
    "a name as the ignored class": (
        lambda: F.cross_entropy(SCORES, nm.asarray([0, 1]), ignore_index="x"),
        *(DTypeError, "cross_entropy: ignore_index must be an integer, not 'x'"),
    ),
    "a fraction as the ignored class": (
        lambda: F.nll_loss(SCORES, nm.asarray([0, 1]), ignore_index=0.5),
        *(DTypeError, "nll_loss: ignore_index must be an integer"),
    ),
    "fractional rows of an Embedding": (
        lambda: nn.Embedding(5, 2)(nm.asarray([1.7, 0.2])),
        *(DTypeError, "embedding: indices must be integers, not float32"),
    ),
    "whole floats as rows": (
        lambda: F.embedding(ONE, SCORES),
        *(DTypeError, "embedding: indices must be integers"),
    ),
    "bags of floats": (
        lambda: F.embedding_bag(nm.asarray([[1.0]]), SCORES),
        *(DTypeError, "embedding_bag: indices must be integers"),
    ),
    "fractional rows of a lookup": (
        lambda: nm.embedding_lookup(SCORES.to("cpu"), at_hand(0.5)),
        *(DTypeError, "whole numbers"),
    ),
    "probability above 1": (
        lambda: F.binary_cross_entropy(at_hand(0.2, 1.5), at_hand(0.0, 1.0)),
        *(ValueError, r"input has 1.5.*\[0, 1\].*with_logits"),
    ),
    "probability below 0": (
        lambda: nn.BCELoss()(at_hand(-0.5), at_hand(1.0)),
        *(ValueError, "input has -0.5"),
    ),
    "target above 1": (
        lambda: F.binary_cross_entropy(at_hand(0.5), at_hand(2)),
        *(ValueError, "target has 2"),
    ),
    "probabilities that are integers": (
        lambda: F.binary_cross_entropy(nm.asarray([1]), ONE),
        *(DTypeError, "float input"),
    ),
    "complex target": (
        lambda: F.binary_cross_entropy_with_logits(ONE, nm.asarray([1j])),
        *(DTypeError, "complex64"),
    ),
    "float classes": (
        lambda: F.cross_entropy(SCORES, FLOATS),
        *(DTypeError, r"class indices must be integers, not float32.*\(2, 3\)"),
    ),
    "bool classes": (
        lambda: F.cross_entropy(SCORES, nm.asarray([True, False])),
        *(DTypeError, "class indices are integers, not bool"),
    ),
    "float classes of nll_loss": (
        lambda: F.nll_loss(SCORES, FLOATS),
        *(DTypeError, "nll_loss: class indices"),
    ),
    "float classes of focal_loss": (
        lambda: F.focal_loss(SCORES, FLOATS),
        *(DTypeError, "focal_loss: class indices"),
    ),
    "float classes of multi_margin_loss": (
        lambda: F.multi_margin_loss(SCORES, FLOATS),
        *(DTypeError, "multi_margin_loss: class indices"),
    ),
    "float classes of multilabel_margin_loss": (
        lambda: F.multilabel_margin_loss(SCORES, SCORES),
        *(DTypeError, "multilabel_margin_loss: class indices"),
    ),
    "a class that there is not": (
        lambda: F.multilabel_margin_loss(SCORES[0].to("cpu"), at_hand(0, 7, -1)),
        *(IndexRangeError, "class 7 is not one of 3"),
    ),
    "float classes of ctc_loss": (
        lambda: F.ctc_loss(nm.zeros((4, 1, 3)), nm.asarray([[1.0]]), [4], [1]),
        *(DTypeError, "ctc_loss: targets"),
    ),
    "complex residuals": (
        lambda: F.mse_loss(nm.asarray([1j]), nm.asarray([2j])),
        *(DTypeError, "mse_loss: takes real"),
    ),
    "a negative variance": (
        lambda: F.gaussian_nll_loss(at_hand(1.0), at_hand(1.0), at_hand(-3.0)),
        *(ValueError, "var must not be negative"),
    ),
    "vectors that are numbers": (
        lambda: F.cosine_embedding_loss(NUMBER, NUMBER, nm.asarray(1)),
        *(ShapeError, "single numbers"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise(name):
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call()


def test_numbers_that_nobody_looks_at_give_nan():
    """On a GPU, where that would wait for the device, and in a trace."""
    simt_machine.install()
    one = nm.asarray([1.0], device="simt")
    for p in (1.5, -0.5):
        assert np.isnan(F.binary_cross_entropy(one * p, one).item())
    assert np.isnan(F.gaussian_nll_loss(one, one, one * -3).item())
    assert np.isnan(nm.jit(F.gaussian_nll_loss)(one, one, -one).item())
    assert F.gaussian_nll_loss(one, one, one * 0).item() == pytest.approx(np.log(1e-6) / 2)
    slope = nm.grad(lambda var: F.gaussian_nll_loss(one, one, var))
    assert np.isnan(slope(-one).item())
    assert slope(one * 4).item() == 0.125


def test_ends_of_probabilities_and_unknown_ones_pass():
    loss = F.binary_cross_entropy(nm.asarray([0.0, 1.0]), nm.asarray([0, 1]))
    assert loss.item() == 0
    assert np.isnan(F.binary_cross_entropy(nm.asarray([np.nan]), ONE).item())
    jitted = nm.jit(lambda p: F.binary_cross_entropy(p, ONE))
    assert jitted(NUMBER[None]).item() == pytest.approx(np.log(2))


SINGLE = {  # PyTorch's results for tensors without axes
    "multilabel_margin_loss": (lambda: F.multilabel_margin_loss(NUMBER, nm.asarray(0)), 0.0),
    "unlisted": (lambda: F.multilabel_margin_loss(NUMBER, nm.asarray(-1)), 0.0),
    "multi_margin_loss": (lambda: F.multi_margin_loss(NUMBER, nm.asarray(0)), 0.0),
    "multilabel_soft_margin_loss": (
        lambda: F.multilabel_soft_margin_loss(NUMBER, nm.asarray(1.0)),
        np.log1p(np.exp(-0.5)),
    ),
    "soft_margin_loss": (
        lambda: F.soft_margin_loss(NUMBER, nm.asarray(1.0)),
        np.log1p(np.exp(-0.5)),
    ),
    "pairwise_distance": (lambda: F.pairwise_distance(NUMBER, NUMBER + 2, eps=0.0), 2.0),
    "triplet_margin_loss": (
        lambda: F.triplet_margin_loss(NUMBER, NUMBER + 2, NUMBER + 1, eps=0.0),
        2.0,
    ),
    "cosine_similarity": (lambda: F.cosine_similarity(NUMBER, -NUMBER, dim=0), -1.0),
    "normalize": (lambda: F.normalize(-NUMBER, dim=0), -1.0),
    "softmax": (lambda: F.softmax(NUMBER, dim=0), 1.0),
    "softmin": (lambda: F.softmin(NUMBER, dim=-1), 1.0),
    "log_softmax": (lambda: F.log_softmax(NUMBER, dim=0), 0.0),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_numbers(name):
    call, expected = SINGLE[name]
    found = call()
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), expected, rtol=1e-6)


def test_gradients_of_single_numbers():
    slope = nm.grad(lambda x: F.multilabel_soft_margin_loss(x, nm.asarray(1.0)))(NUMBER)
    assert slope.item() == pytest.approx(-1 / (1 + np.exp(0.5)))
    assert nm.grad(lambda x: F.multilabel_margin_loss(x, nm.asarray(0)))(NUMBER).item() == 0
