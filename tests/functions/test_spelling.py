"""Other libraries' words for parameters, and messages that name the right one."""

import pytest

import numus as nm
from numus import nn, optim

X = nm.asarray([[1.0, 5.0, 3.0], [7.0, 2.0, 6.0]])


@pytest.mark.parametrize(
    "name",
    "sum mean max min prod std var all any argmax argmin logsumexp amax nansum median ptp".split(),
)
def test_dim_is_axis(name):
    function = getattr(nm, name)
    assert nm.array_equal(function(X, dim=1), function(X, axis=1))
    assert nm.array_equal(function(X, dim=0, keepdim=True), function(X, axis=0, keepdims=True))
    assert nm.array_equal(getattr(X, name)(dim=1), function(X, axis=1))


def test_dim_where_tensors_are_joined_and_ordered():
    assert nm.concat([X, X], dim=1).shape == nm.stack([X, X, X], dim=0)[:2].reshape(2, 6).shape
    assert nm.sort(X, dim=0).tolist() == [[1, 2, 3], [7, 5, 6]]
    assert nm.cumsum(X, dim=1)[:, -1].tolist() == [9, 15]
    assert nm.softmax(X, dim=-1).sum(dim=-1).tolist() == pytest.approx([1, 1])


def test_shapes_as_arguments_and_dtypes_by_position():
    assert nm.zeros(2, 3).shape == nm.zeros((2, 3)).shape == (2, 3)
    assert nm.ones((2, 3), nm.int32).dtype is nm.int32
    assert nm.ones(2, 3, nm.int8).dtype is nm.int8
    assert nm.empty(4).shape == (4,)
    assert nm.asarray([1, 2], nm.float32).dtype is nm.float32
    assert nm.full((2,), 1, nm.int16).dtype is nm.int16
    assert nm.arange(0, 4, 1, nm.float32).dtype is nm.float32
    assert nm.zeros_like(X, nm.int32).dtype is nm.int32
    with pytest.raises(TypeError, match="two dtypes"):
        nm.zeros((2,), nm.int8, dtype=nm.int8)


class Tensor:
    """Stands for another library's."""


Tensor.__module__ = "torch"


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: nm.std(X, ddof=1), TypeError, "correction="),
        (lambda: nm.sum(X, axis=1, dim=1), TypeError, "the same"),
        (lambda: nm.sum(X, colour=1), TypeError, "it takes axis, dtype, initial, keepdims, where$"),
        (lambda: nm.random.integers(10, (3,)), nm.errors.DTypeError, "shape="),
        (lambda: X + Tensor(), TypeError, r"a torch\.Tensor"),
        (lambda: Tensor() * X, TypeError, r"nm\.asarray"),
        (lambda: nn.Linear(3, 1)(Tensor()), TypeError, r"a torch\.Tensor; make one with"),
        (lambda: optim.Adam(nn.Linear(2, 1), lr="1e-3"), TypeError, "the text '1e-3'"),
        (lambda: nm.grad(lambda x: (x, x))(1.0), nm.errors.GradientError, "a tuple of 2 values"),
        (
            lambda: nm.jit(lambda x: x if x.sum() > 0 else -x)(X),
            nm.errors.TracingError,
            "if, while",
        ),
    ],
)
def test_messages(call, kind, says):
    with pytest.raises(kind, match=says):
        call()
