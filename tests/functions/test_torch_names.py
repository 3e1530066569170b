"""Functions and methods under PyTorch's names: what they give, and that they are loaded late."""

import numpy as np
import pytest

import numus as nm
from numus.functions import lazy
from numus.tensor import Tensor

X = np.array([[3.0, -1.0, 2.0], [0.5, 4.0, -2.5]])
x = nm.asarray(X)


VALUES = {
    "addcdiv": lambda: (nm.addcdiv(x, x, x + 5, value=2), X + 2 * X / (X + 5)),
    "addcmul": lambda: (x.addcmul(x, x, value=0.5), X + 0.5 * X * X),
    "addmv": lambda: (nm.addmv(nm.ones(2), x, nm.ones(3), beta=2, alpha=3), 2 + 3 * X.sum(1)),
    "addmv without x": lambda: (nm.addmv(nm.ones(2) * np.nan, x, nm.ones(3), beta=0), X.sum(1)),
    "addr": lambda: (nm.addr(x, nm.ones(2), nm.arange(3.0)), X + np.arange(3.0)),
    "aminmax": lambda: (x.aminmax(dim=1), (X.min(1), X.max(1))),
    "bucketize": lambda: (
        nm.bucketize(x, nm.asarray([-1.0, 2.0])), np.searchsorted([-1.0, 2.0], X),
    ),
    "cartesian_prod": lambda: (
        nm.cartesian_prod(nm.arange(2), nm.arange(2)), [[0, 0], [0, 1], [1, 0], [1, 1]],
    ),
    "clamp_min": lambda: (x.clamp_min(0), np.maximum(X, 0)),
    "clamp_max": lambda: (nm.clamp_max(x, 1.0), np.minimum(X, 1)),
    "combinations": lambda: (nm.combinations(nm.arange(3), with_replacement=True).shape, (6, 2)),
    "cumulative_trapezoid": lambda: (
        nm.cumulative_trapezoid(x, dx=2), np.array([[2, 3], [4.5, 6]]),
    ),
    "diag_embed": lambda: (nm.diag_embed(x, 1)[1], np.diag(X[1], 1)),
    "diag_embed below": lambda: (nm.diag_embed(x, -2)[0], np.diag(X[0], -2)),
    "diagonal_scatter": lambda: (x.diagonal_scatter(nm.zeros(2))[1, 1], 0.0),
    "dist": lambda: (x.dist(nm.zeros((2, 3)), 1), np.abs(X).sum()),
    "div": lambda: (nm.div(nm.asarray([-7, 7]), 2, rounding_mode="floor"), [-4, 3]),
    "div of floats": lambda: (x.div(0.7, rounding_mode="trunc"), np.trunc(X / 0.7)),
    "eq": lambda: (x.eq(2), X == 2),
    "frac": lambda: (x.frac(), X - np.trunc(X)),
    "histc": lambda: (nm.histc(x, 4, -3, 5), np.histogram(X, 4, (-3, 5))[0]),
    "index_copy": lambda: (x.index_copy(1, nm.asarray([2, 0]), nm.zeros((2, 2)))[:, 1], X[:, 1]),
    "index_fill": lambda: (x.index_fill(1, nm.asarray([0, 2]), 9.0)[0], [9, -1, 9]),
    "index_reduce": lambda: (
        nm.index_reduce(nm.ones(2), 0, nm.asarray([1, 1]), nm.asarray([2.0, 3.0]), "amax"),
        [1.0, 3.0],
    ),
    "kthvalue": lambda: (x.kthvalue(2), ([2.0, 0.5], [2, 0])),
    "logit": lambda: (nm.logit(nm.asarray([0.2, 0.5])), np.log(np.float32([0.25, 1.0]))),
    "logit with bounds": lambda: (nm.logit(nm.asarray(0.0, dtype=nm.float64), 0.25), np.log(1 / 3)),
    "mode": lambda: (nm.mode(nm.asarray([[2, 1, 2, 1], [3, 3, 0, 0]])), ([1, 0], [3, 3])),
    "msort": lambda: (nm.msort(x), np.sort(X, 0)),
    "new_full": lambda: (x.new_full((2,), 3), [3.0, 3.0]),
    "numel": lambda: (x.numel(), 6),
    "polar": lambda: (nm.polar(nm.asarray([2.0]), nm.asarray([np.pi / 2]))[0].imag, 2.0),
    "put_": lambda: (nm.zeros(3).put_(nm.asarray([0, 0]), nm.ones(2), accumulate=True), [2, 0, 0]),
    "range": lambda: (nm.range(1, 2, 0.5), [1, 1.5, 2]),
    "renorm": lambda: (x.renorm(1, 0, 3.5), X * np.array([[3.5 / 6], [0.5]])),
    "select_scatter": lambda: (x.select_scatter(nm.zeros(2), 1, 2)[:, 2], [0, 0]),
    "sgn": lambda: (x.sgn(), np.sign(X)),
    "slice_scatter": lambda: (nm.slice_scatter(nm.zeros(4), nm.ones(2), 0, 0, 4, 2), [1, 0, 1, 0]),
    "split_with_sizes": lambda: (x.split_with_sizes([1, 2], 1)[1], X[:, 1:]),
    "std_mean": lambda: (x.std_mean(1), (X.std(1), X.mean(1))),
    "sum_to_size": lambda: (x.sum_to_size(1, 3), X.sum(0, keepdims=True)),
    "t": lambda: (x.t(), X.T),
    "take_along_dim": lambda: (x.take_along_dim(nm.asarray([[1], [0]]), 1), [[-1.0], [0.5]]),
    "tensor_split": lambda: (x.tensor_split(2, 1)[1], X[:, 2:]),
    "unbind": lambda: (nm.unbind(x, 1)[0], X[:, 0]),
    "unique_consecutive": lambda: (
        nm.unique_consecutive(nm.asarray([1, 1, 2, 1]), True, True),
        ([1, 2, 1], [0, 0, 1, 2], [2, 1, 1]),
    ),
    "unique_consecutive rows": lambda: (
        nm.unique_consecutive(nm.asarray([[1, 2], [1, 2], [3, 2]]), dim=0), [[1, 2], [3, 2]],
    ),
    "view_as_real": lambda: (nm.view_as_real(nm.asarray([1 + 2j])), [[1.0, 2.0]]),
    "where": lambda: (x.where(x > 0, 0.0), np.where(X > 0, X, 0)),
    "xlogy": lambda: (
        nm.xlogy(nm.asarray([0.0, 0.0, 2.0]), nm.asarray([0.0, np.nan, 1.0])), [0, np.nan, 0],
    ),
    "inverse": lambda: (nm.inverse(nm.eye(2) * 2), np.eye(2) / 2),
    "matrix_exp": lambda: (nm.matrix_exp(nm.zeros((2, 2))), np.eye(2)),
    "hann_window": lambda: (nm.hann_window(8), np.hanning(9)[:-1].astype(np.float32)),
    "hann_window, symmetric": lambda: (nm.hann_window(8, False), np.hanning(8).astype(np.float32)),
    "complex": lambda: (nm.complex(x, x)[0, 0].imag, 3.0),
    "type_as": lambda: (x.type_as(nm.ones(1, dtype=nm.int32)), X.astype(np.int32)),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    found, want = VALUES[name]()
    for got, expected in zip(
        found if isinstance(found, tuple) else (found,),
        want if isinstance(want, tuple) else (want,),
        strict=True,
    ):
        got = got.numpy() if isinstance(got, nm.Tensor) else got
        assert np.shape(got) == np.shape(expected)
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.on_cpu("where tensors are")
def test_questions_about_tensors():
    assert (x.dim(), x.nelement(), x.element_size(), x.stride(), x.stride(0)) == (
        2,
        6,
        8,
        (3, 1),
        3,
    )
    assert x.is_floating_point()
    assert x.is_signed()
    assert not x.is_complex()
    assert x.is_same_size(x.clone())
    assert nm.is_tensor(x)
    assert not nm.is_tensor(X)
    assert x.is_cpu
    assert not x.is_cuda
    assert x.get_device() == -1
    assert x.type() == "float64"
    assert x.type(nm.int32).dtype is nm.int32
    assert x.tobytes() == X.tobytes()
    assert x.short().dtype is nm.int16
    assert x.equal(x.clone())
    assert not x.equal(x + 1)
    assert nm.shares_memory(x, x[1:])
    assert not nm.shares_memory(x, x + 0)


def test_in_place_forms_write_through_views():
    y = nm.asarray(X)
    y[0].multiply_(2).sgn_()
    y[1].clamp_min_(0)
    np.testing.assert_array_equal(y, [[1, -1, 1], [0.5, 4, 0]])
    y.ge_(1)
    np.testing.assert_array_equal(y, [[1, 0, 1], [0, 1, 0]])
    y.fill_diagonal_(7)
    assert y.tolist() == [[7, 0, 1], [0, 7, 0]]


def test_random_numbers_of_the_top():
    nm.manual_seed(3)
    first = nm.rand(4)
    nm.manual_seed(3)
    np.testing.assert_array_equal(nm.rand(4), first)
    assert nm.rand_like(x).dtype is nm.float64
    assert nm.randn_like(nm.ones(3, dtype=nm.int32)).dtype is nm.float32
    drawn = nm.randint(2, 5, (100,))
    assert drawn.min().item() == 2
    assert drawn.max().item() == 4
    assert nm.randint_like(x, 3).dtype is nm.float64
    assert sorted(nm.randperm(5).tolist()) == [0, 1, 2, 3, 4]
    assert set(nm.bernoulli(nm.full((50,), 0.5)).tolist()) == {0.0, 1.0}
    assert nm.normal(nm.zeros(3), 2.0).shape == (3,)


def test_multinomial_draws_by_weight():
    weights = nm.asarray([[0.0, 3.0, 1.0], [1.0, 0.0, 0.0]])
    drawn = nm.multinomial(weights, 4000, replacement=True, key=nm.random.key(0)).numpy()
    assert drawn.shape == (2, 4000)
    assert not (drawn[1]).any()
    assert abs((drawn[0] == 1).mean() - 0.75) < 0.05
    assert not (drawn[0] == 0).any()
    without = nm.multinomial(nm.ones(5), 5).tolist()
    assert sorted(without) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="without replacement"):
        nm.multinomial(nm.ones(2), 3)


def test_the_tables_of_late_modules_are_true():
    for room, names in lazy.FUNCTIONS.items():
        module = __import__(f"numus.{room}", fromlist=["_"])
        assert names.split() == sorted(module.__all__), room
    for room, names in lazy.METHODS.items():
        for name in names.split():
            getattr(Tensor, name)
            assert not isinstance(vars(Tensor)[name], lazy.LazyMethod), (room, name)


def test_type_checkers_know_the_late_modules():
    import inspect

    text = inspect.getsource(nm)
    for room in lazy.FUNCTIONS:
        assert f"from numus.{room} import *" in text
