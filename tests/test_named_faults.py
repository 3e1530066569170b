"""Expressions that were once wrong, raised or never ended, as users wrote them.

Their classes have tests of their own beside the code; what stands here is the letter.
"""

from __future__ import annotations

import numpy as np
import pytest

import numus as nm
from numus.nn import functional as F


def a(*shape, dtype="float32"):
    return np.arange(1, 1 + np.prod(shape), dtype=dtype).reshape(shape)


# -- compiled code --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8,), (8, 8), (3, 5)])
def test_diagonals_of_diagonals(shape):
    x = a(*shape)
    expected = np.diag(np.diag(x))
    assert np.array_equal(nm.jit(lambda x: nm.diag(nm.diag(x)))(nm.asarray(x)).numpy(), expected)
    pending = nm.asarray(x) + 0
    assert np.array_equal(nm.diag(nm.diag(pending)).numpy(), expected)


# -- integer arguments ----------------------------------------------------------------------------


def test_tensors_of_one_number_as_integers():
    x, two = nm.asarray(a(3, 4)), nm.asarray(2)
    assert nm.narrow(x, 1, two, 2).tolist() == a(3, 4)[:, 2:].tolist()
    values, _ = nm.topk(x, two)
    assert values.shape == (3, 2)
    assert all(type(n) is int for n in (*values.shape, *nm.narrow(x, 1, 0, two).shape))


def test_integers_of_other_dtypes():
    large = nm.asarray([2**63 + 1], dtype="uint64")
    assert not (large == nm.asarray([2**63 - 1])).item()
    assert (large > nm.asarray([2**63 - 1])).item()
    assert (nm.asarray(2**53 + 1) > nm.asarray(2**53, dtype="uint64")).item()
    assert (nm.asarray(-1) ** nm.asarray(-3)).item() == -1
    np.testing.assert_allclose((nm.asarray([6], dtype="uint8") / -3).numpy(), [-2])
    with pytest.raises(IndexError):
        nm.asarray([1.0, 2.0])[nm.asarray([2**63], dtype="uint64")].numpy()


# -- derivatives ----------------------------------------------------------------------------------

SECOND = {
    "softplus": (nm.softplus, 0.25),
    "logsigmoid": (F.logsigmoid, -0.25),
    "BCE with logits": (lambda x: F.binary_cross_entropy_with_logits(x, nm.ones(())), 0.25),
    "soft margin": (lambda x: F.soft_margin_loss(x, nm.ones(())), 0.25),
    "logaddexp": (lambda x: nm.logaddexp(x, nm.zeros(())), 0.25),
    "huber": (lambda x: F.huber_loss(x, nm.zeros(())), 1.0),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, nm.zeros(())), 1.0),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_at_zero(name):
    f, expected = SECOND[name]
    assert nm.grad(nm.grad(f))(nm.zeros(())).item() == pytest.approx(expected, rel=1e-5)


def test_the_slope_of_celu_at_zero():
    assert nm.grad(F.celu)(nm.zeros(())).item() == 1


PARAMETERS = {
    "linspace": (lambda p: nm.linspace(0.0, p, 5).sum(), 2.5),
    "logspace": (lambda p: nm.logspace(0.0, p, 2).sum(), None),
    "arange": (lambda p: nm.arange(0.0, 3.0, p).sum(), None),
    "pad": (lambda p: nm.pad(nm.ones(2), 1, constant_values=p).sum(), 2.0),
    "nan_to_num": (lambda p: nm.nan_to_num(nm.asarray([1.0, np.nan]), nan=p).sum(), 1.0),
    "leaky_relu": (lambda p: nm.leaky_relu(nm.asarray([-2.0]), p).sum(), -2.0),
    "elu": (lambda p: nm.elu(nm.asarray([-1.0]), p).sum(), float(np.expm1(-1))),
    "softplus": (lambda p: nm.softplus(nm.asarray([0.0]), p).sum(), -float(np.log(2))),
    "var": (lambda p: nm.var(nm.asarray([1.0, 2.0, 6.0]), correction=p).sum(), 3.5),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_tensors_as_parameters(name):
    """They have a gradient, or are refused."""
    f, expected = PARAMETERS[name]
    try:
        slope = nm.grad(f)(nm.asarray(1.0)).item()
    except (TypeError, ValueError, nm.errors.NumusError):
        return
    assert slope != 0
    if expected is not None:
        assert slope == pytest.approx(expected, rel=1e-5)


def test_cosine_similarity_of_broadcast_operands():
    x, y = a(2, 1), a(2, 3)
    found = F.cosine_similarity(nm.asarray(x), nm.asarray(y), dim=1).numpy()
    wide = np.broadcast_to(x, y.shape)
    norms = np.linalg.norm(wide, axis=1) * np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(found, (wide * y).sum(1) / norms, rtol=1e-6)


def test_gradients_do_not_pass_through_numpy():
    with pytest.raises(Exception, match=r"(?i)numpy|grad|trace"):
        nm.grad(lambda x: nm.sum(nm.asarray(np.sin(np.asarray(x)))))(nm.ones(3))


# -- values ---------------------------------------------------------------------------------------


def test_floor_divisions_by_infinity():
    """The floor of the quotient, a zero; NumPy has -1 where the signs differ."""
    x = nm.asarray([3.0, -3.0])
    assert str(nm.floor_divide(x, np.inf).tolist()) == "[0.0, -0.0]"
    assert str(nm.floor_divide(x, -np.inf).tolist()) == "[-0.0, 0.0]"


def test_expm1_of_a_complex_zero():
    """+0 + 0j of either zero, as the array API has it."""
    for real in (0.0, -0.0):
        (found,) = nm.expm1(nm.asarray([complex(real, 0.0)])).numpy()
        assert str(complex(found)) == "0j"


def test_mixed_dtypes():
    x = nm.ones(2, dtype="float32")
    assert (x + nm.asarray([1, 2])).dtype is nm.float32
    assert (x * nm.asarray([True, False])).dtype is nm.float32
    assert (x * np.sqrt(2)).dtype is nm.float32


def test_masked_scatter_broadcasts():
    mask, source = np.array([True, False, True]), a(6)
    found = nm.masked_scatter(nm.zeros((2, 3)), nm.asarray(mask), nm.asarray(source)).numpy()
    assert found.tolist() == [[1, 0, 2], [3, 0, 4]]


def test_single_numbers():
    assert nm.asarray(3.0).unfold(0, 1, 1).tolist() == [3.0]
    assert F.multilabel_margin_loss(nm.asarray(2.0), nm.asarray(0)).item() == 0


# -- views ----------------------------------------------------------------------------------------


def item_of_a_row(x):
    x[0][1] = 5


def added_to_a_row(x):
    v = x[0]
    v += 1


def added_to_each_row(x):
    for row in x:
        row += 1


def mask_of_a_slice(x):
    x[1:-1][x[1:-1] > 6] = 1


def transposed(x):
    x.T[...] = x.T * 2


WRITES = [item_of_a_row, added_to_a_row, added_to_each_row, mask_of_a_slice, transposed]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("jitted", [False, True])
def test_writes_through_views(write, jitted):
    expected = a(4, 3)
    write(expected)

    def f(x):
        y = x + 0
        last = y[-1]
        write(y)
        return y, last

    found, last = (nm.jit(f) if jitted else f)(nm.asarray(a(4, 3)))
    assert found.tolist() == expected.tolist()
    assert last.tolist() == expected[-1].tolist()


def test_random_numbers_in_data():
    w = nm.nn.Parameter(nm.zeros(50))
    row = w.data[:10]
    w.data.normal_()
    assert np.abs(w.detach().numpy()).min() > 0
    assert row.tolist() == w.detach().numpy()[:10].tolist()


def test_writes_of_pytorch():
    torch = pytest.importorskip("torch")
    if nm.device().kind != "cpu":
        pytest.skip("memory of the host")
    x = nm.asarray(a(4))
    view, before = x[:2], x * 1
    torch.from_dlpack(x.detach())[0] = 9
    assert before.tolist() == [1, 2, 3, 4]
    assert x.tolist() in ([9, 2, 3, 4], [1, 2, 3, 4])
    assert view.tolist() == x.tolist()[:2]
