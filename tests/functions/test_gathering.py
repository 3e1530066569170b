"""take, gather, scatter and their relatives against NumPy and PyTorch, with gradients."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm
from numus.errors import DTypeError, IndexRangeError, ShapeError

torch = pytest.importorskip("torch")

few = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
solid = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def count(shape, dtype=np.float64):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def same(found, expected):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype.np == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@st.composite
def lines(draw):
    """An array, an axis, an index by PyTorch's rules and a source as large as it."""
    shape = draw(solid)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    at = [draw(st.integers(0, n)) for n in shape]
    at[axis] = draw(st.integers(0, 5))
    index = draw(hnp.arrays(np.int64, tuple(at), elements=st.integers(0, shape[axis] - 1)))
    numbers = st.integers(-3, 3).map(float)
    x = draw(hnp.arrays(np.float64, shape, elements=numbers))
    extra = tuple(n + draw(st.integers(0, 1)) for n in at)
    return x, axis, index, draw(hnp.arrays(np.float64, extra, elements=numbers))


@few
@given(solid, st.data())
def test_take(shape, data):
    x = count(shape)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = shape[axis]
    at = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    index = data.draw(hnp.arrays(np.int64, at, elements=st.integers(-n, n - 1)))
    t = nm.asarray(x)
    same(nm.take(t, nm.asarray(index), axis=axis), np.take(x, index, axis=axis))
    same(nm.take(t, index % n), np.take(x, index % n))
    if index.ndim == 1:
        same(nm.index_select(t, axis, index), np.take(x, index, axis=axis))


@few
@given(solid, st.data())
def test_along_axis(shape, data):
    x = count(shape)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = shape[axis]
    at = [1 if data.draw(st.booleans()) else m for m in shape]
    at[axis] = data.draw(st.integers(0, 3))
    index = data.draw(hnp.arrays(np.int64, tuple(at), elements=st.integers(-n, n - 1)))
    t = nm.asarray(x)
    found = nm.take_along_axis(t, nm.asarray(index), axis=axis)
    same(found, np.take_along_axis(x, index, axis=axis))
    np.put_along_axis(x, index, -1.0, axis=axis)
    assert nm.put_along_axis(t, index, -1.0, axis=axis) is t
    same(t, x)


@few
@given(lines())
def test_gather_and_scatter(case):
    x, axis, index, src = case
    t, at, s = nm.asarray(x), nm.asarray(index), nm.asarray(src)
    px, pi, ps = map(torch.as_tensor, (x, index, src))
    same(nm.gather(t, axis, at), px.gather(axis, pi).numpy())
    same(nm.scatter_add(t, axis, at, s), px.scatter_add(axis, pi, ps).numpy())
    same(nm.scatter(t, axis, at, 7), px.scatter(axis, pi, 7.0).numpy())
    for reduce in REDUCTIONS:
        for own in (True, False):
            found = nm.scatter_reduce(t, axis, at, s, reduce, include_self=own)
            same(found, px.scatter_reduce(axis, pi, ps, reduce, include_self=own).numpy())


@few
@given(lines())
def test_scatter_keeps_the_last_of_several_writes(case):
    x, axis, index, src = case
    expected = x.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[axis] = index[place]
        expected[tuple(target)] = src[place]
    same(nm.scatter(nm.asarray(x), axis, index, src), expected)


@few
@given(lines(), st.sampled_from(REDUCTIONS[:3]), st.booleans())
def test_scatter_gradients(case, reduce, own):
    x, axis, index, src = case
    src = src[tuple(map(slice, index.shape))]  # PyTorch's gradient fails on a larger source
    function = lambda t, s: nm.scatter_reduce(t, axis, index, s, reduce, include_self=own)
    px, ps = (torch.tensor(a, requires_grad=True) for a in (x, src))
    out = px.scatter_reduce(axis, torch.as_tensor(index), ps, reduce, include_self=own)
    g = count(x.shape) + 1
    out.backward(torch.as_tensor(g))
    _, pull = nm.vjp(function, nm.asarray(x), nm.asarray(src))
    to_x, to_src = pull(nm.asarray(g))
    same(to_x, px.grad.numpy())
    same(to_src, ps.grad.numpy())


@pytest.mark.parametrize("mode", ["amax", "amin"])
def test_ties_share_the_gradient(mode):
    _, pull = nm.vjp(
        lambda t, s: nm.scatter_reduce(t, 0, [0, 0, 1], s, mode),
        nm.asarray(np.array([2.0, 5.0])),
        nm.asarray(np.array([2.0, 2.0, 5.0])),
    )
    to_x, to_src = pull(nm.asarray(np.array([6.0, 4.0])))
    np.testing.assert_allclose(to_x.numpy(), [2, 2])
    np.testing.assert_allclose(to_src.numpy(), [2, 2, 2])


def test_index_put_and_index_add():
    x = count((3, 4))
    t = nm.asarray(x)
    rows, columns = np.array([0, 2, 0]), np.array([1, 1, 1])
    px = torch.as_tensor(x)
    at = (torch.as_tensor(rows), torch.as_tensor(columns))
    for accumulate in (False, True):
        expected = px.index_put(at, torch.tensor(9.0, dtype=px.dtype), accumulate)
        same(nm.index_put(t, (rows, columns), 9, accumulate), expected.numpy())
    source = count((3, 3)) + 1
    index = np.array([3, 3, 0])
    expected = px.index_add(1, torch.as_tensor(index), torch.as_tensor(source), alpha=2)
    same(nm.index_add(t, 1, index, source, alpha=2), expected.numpy())
    mask = x > 4
    same(nm.index_put(t, (mask,), 1, accumulate=True), x + mask)


def test_gather_nd():
    x = count((2, 3, 4))
    t = nm.asarray(x)
    same(nm.gather_nd(t, [[1, 2, 3], [0, -1, 0]]), [x[1, 2, 3], x[0, -1, 0]])
    points = np.array([[[1], [0]]])
    same(nm.gather_nd(t, nm.asarray(points)), x[points[..., 0]])
    with pytest.raises(IndexRangeError, match="axis 1 with 3"):
        nm.gather_nd(t, [[0, 3]])
    with pytest.raises(ShapeError, match="points of 4"):
        nm.gather_nd(t, np.zeros((1, 4), int))


def test_masked_scatter():
    x = count((2, 3))
    mask = np.array([[True, False, True], [False, True, True]])
    source = -1 - count(6)
    expected = torch.as_tensor(x).masked_scatter(torch.as_tensor(mask), torch.as_tensor(source))
    same(nm.masked_scatter(nm.asarray(x), mask, source), expected.numpy())
    _, pull = nm.vjp(lambda s: nm.masked_scatter(nm.asarray(x), mask, s), nm.asarray(source))
    same(pull(nm.asarray(x))[0], [0.0, 2.0, 4.0, 5.0, 0.0, 0.0])


def test_put():
    x, t = count((2, 3)), nm.asarray(count((2, 3)))
    np.put(x, [0, -1, 2], [7, 8])
    nm.put(t, [0, -1, 2], [7, 8])
    same(t, x)
    nm.put(t, [], [])
    same(t, x)


def test_embedding():
    weight = nm.asarray(count((5, 2), np.float32))
    index = np.array([[4, 0], [4, 1]])
    expected = count((5, 2), np.float32)[index]
    same(nm.embedding_lookup(weight, index), expected)
    same(nm.asarray(index.astype(np.float32)).embedding_forward(weight), expected)
    _, pull = nm.vjp(lambda w: nm.embedding_lookup(w, index), weight)
    g = np.ones((2, 2, 2), np.float32)
    same(pull(nm.asarray(g))[0], np.float32([[1, 1], [1, 1], [0, 0], [0, 0], [2, 2]]))
    with pytest.raises(IndexRangeError, match="index 5 is out of range for axis 0 with 5"):
        nm.embedding_lookup(weight, [5])


def test_slice_assign():
    x = count((3, 4))
    found = nm.slice_assign(nm.asarray(x), np.zeros((3, 2)), axis=1, start=1)
    x[:, 1:3] = 0
    same(found, x)
    with pytest.raises(ShapeError, match="does not fit"):
        nm.slice_assign(nm.asarray(x), np.zeros((3, 2)), axis=1, start=3)


def test_scalars_and_empty_arrays():
    point = nm.asarray(np.float64(3))
    zero = nm.asarray(np.int64(0))
    same(nm.gather(point, 0, zero), np.float64(3))
    same(nm.scatter_add(point, 0, zero, 1), np.float64(4))
    same(nm.take(point, [0, 0]), np.array([3.0, 3.0]))
    empty = nm.asarray(np.zeros((0, 3)))
    same(nm.take(empty, [2], axis=1), np.zeros((0, 1)))
    same(nm.gather(empty, 0, np.zeros((0, 2), int)), np.zeros((0, 2)))
    with pytest.raises(IndexRangeError, match="empty"):
        nm.take(empty, [0], axis=0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: nm.gather(t, 0, [0]), ShapeError, "as many axes"),
        (lambda t: nm.gather(t, 0, [[0, 0, 0, 0]]), ShapeError, "none but axis 0"),
        (lambda t: nm.scatter(t, 0, [[0, 1]], [[1.0]]), ShapeError, "no element for every index"),
        (lambda t: nm.scatter(t, 0, [[0]], 1, "median"), ValueError, "no reduction 'median'"),
        (lambda t: nm.take(t, [0.5]), DTypeError, "integers"),
        (lambda t: nm.take(t, [7], axis=1), IndexRangeError, "axis 1 with 3"),
        (lambda t: nm.masked_fill(t, t, 1), DTypeError, "of bool"),
        (lambda t: nm.masked_fill(t, t > 1, 1j), DTypeError, "astype"),
        (lambda t: nm.take_along_axis(t, [0]), ShapeError, "same number of axes"),
        (lambda t: nm.index_add(t, 0, [[0]], t), ShapeError, "vector of indices"),
        (lambda t: nm.embedding_lookup(t[0, 0], [0]), ShapeError, "rows"),
    ],
)
def test_errors_name_the_way_out(call, error, message):
    with pytest.raises(error, match=message):
        call(nm.asarray(count((2, 3))))
