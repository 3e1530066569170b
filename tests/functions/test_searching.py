"""Sorting, searching, counting and sets against NumPy and PyTorch."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError

few = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
fewer = settings(few, max_examples=5)  # each shape compiles many kernels
shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)
numbers = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, np.inf, -np.inf, np.nan])
DTYPES = [np.int8, np.uint16, np.int64, np.float32, np.float64]


def arrays(dtype, shape):
    if np.dtype(dtype).kind == "f":
        return hnp.arrays(dtype, shape, elements=numbers)
    if np.dtype(dtype).kind == "c":
        parts = st.tuples(numbers, numbers).map(lambda p: complex(*p))
        return hnp.arrays(dtype, shape, elements=parts)
    most = 1 if np.dtype(dtype).kind == "b" else 4
    return hnp.arrays(dtype, shape, elements=st.integers(0, most).map(np.dtype(dtype).type))


def same(found, expected):
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            same(f, e)
        return
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype.np == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


# -- sorting --------------------------------------------------------------------------------------


@fewer
@given(shapes, st.sampled_from([*DTYPES, np.complex128]), st.data())
def test_sort(shape, dtype, data):
    x = data.draw(arrays(dtype, shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    t = nm.asarray(x)
    same(nm.argsort(t, axis=axis), np.argsort(x, axis=axis, kind="stable"))
    same(nm.sort(t, axis=axis), np.sort(x, axis=axis, kind="stable"))
    same(nm.sort(t, axis=None), np.sort(x, axis=None))
    # descending: ties keep their order, NaN comes first
    n = shape[axis]
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    expected = np.flip(n - 1 - backwards, axis)
    same(nm.argsort(t, axis=axis, descending=True), expected)
    same(nm.sort(t, axis=axis, descending=True), np.take_along_axis(x, expected, axis))


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_sort_dtypes(dtype):
    x = np.array([1, 0, 1, 0, 1]).astype(dtype.np)
    t = nm.asarray(x)
    assert nm.argsort(t).tolist() == [1, 3, 0, 2, 4]
    assert nm.sort(t, descending=True).dtype is dtype
    assert nm.topk(t, 2).indices.tolist() == [0, 2]
    assert nm.unique_counts(t).counts.tolist() == [2, 3]
    assert nm.isin(t, t[:1]).tolist() == [True, False, True, False, True]
    assert [i.tolist() for i in nm.nonzero(t)] == [[0, 2, 4]]
    if not dtype.is_complex:
        assert nm.argmax(t).item() == 0
        assert nm.argmin(t).item() == 1
        assert nm.searchsorted(nm.sort(t), t[:2]).tolist() == [2, 0]


@few
@given(shapes, st.data())
def test_topk(shape, data):
    torch = pytest.importorskip("torch")
    x = data.draw(arrays(np.float64, shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    largest = data.draw(st.booleans())
    found = nm.topk(nm.asarray(x), k, axis, largest)
    expected = torch.as_tensor(x).topk(k, axis, largest)
    same(found.values, expected.values.numpy())
    same(found.values, np.take_along_axis(x, found.indices.numpy(), axis))


def test_lexsort():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3, (3, 4, 5))
    same(nm.lexsort(nm.asarray(keys)), np.lexsort(keys))
    same(nm.lexsort(tuple(map(nm.asarray, keys)), axis=0), np.lexsort(keys, axis=0))
    with pytest.raises(ShapeError, match="keys of one shape"):
        nm.lexsort((nm.asarray(keys), nm.asarray(keys[0])))


def test_gradients_go_where_the_values_came_from():
    x = np.array([[3.0, 1.0, 2.0], [5.0, 6.0, 4.0]])
    g = np.arange(6.0).reshape(2, 3)
    order = np.argsort(x, axis=1)
    expected = np.zeros_like(x)
    np.put_along_axis(expected, order, g, 1)
    _, pull = nm.vjp(nm.sort, nm.asarray(x))
    same(pull(nm.asarray(g))[0], expected)
    _, pull = nm.vjp(lambda t: nm.topk(t, 2).values, nm.asarray(x))
    expected = np.zeros_like(x)
    np.put_along_axis(expected, order[:, :0:-1], g[:, :2], 1)
    same(pull(nm.asarray(g[:, :2]))[0], expected)
    _, pull = nm.vjp(nm.unique_values, nm.asarray(np.array([2.0, 1.0, 2.0])))
    same(pull(nm.asarray(np.array([5.0, 7.0])))[0], [7.0, 5.0, 0.0])
    _, pull = nm.vjp(lambda z: nm.sort(z), nm.asarray(np.array([2 + 1j, 1, 2])))
    same(pull(nm.asarray(np.array([1, 2j, 3])))[0], [3, 1, 2j])


# -- searching ------------------------------------------------------------------------------------


@few
@given(shapes, st.sampled_from(DTYPES), st.booleans(), st.data())
def test_arg_extremes(shape, dtype, keepdims, data):
    x = data.draw(arrays(dtype, shape))
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    for name in ("argmax", "argmin"):
        if (x.size if axis is None else shape[axis]) == 0:
            with pytest.raises(ShapeError, match="no elements"):
                getattr(nm, name)(nm.asarray(x), axis=axis)
            continue
        found = getattr(nm, name)(nm.asarray(x), axis=axis, keepdims=keepdims)
        same(found, getattr(np, name)(x, axis=axis, keepdims=keepdims))


@few
@given(shapes, st.sampled_from([bool, *DTYPES, np.complex64]), st.data())
def test_nonzero(shape, dtype, data):
    x = data.draw(arrays(dtype, shape))
    t = nm.asarray(x)
    same(nm.nonzero(t), np.nonzero(x))
    same(nm.argwhere(t), np.argwhere(x))
    same(nm.flatnonzero(t), np.flatnonzero(x))


def test_nonzero_without_axes():
    with pytest.raises(ShapeError, match="without axes"):
        nm.nonzero(nm.asarray(np.float32(1)))
    same(nm.argwhere(nm.asarray(np.float32(1))), np.argwhere(np.float32(1)))


@few
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 9),
    shapes,
    st.sampled_from(["left", "right"]),
    st.data(),
)
def test_searchsorted(dtype, n, shape, side, data):
    line = data.draw(arrays(dtype, n))
    values = data.draw(arrays(data.draw(st.sampled_from([dtype, np.float64])), shape))
    order = np.argsort(line)
    t, v = nm.asarray(line), nm.asarray(values)
    expected = np.searchsorted(line[order], values, side=side)
    same(nm.searchsorted(nm.sort(t), v, side=side), expected)
    same(nm.searchsorted(t, v, side=side, sorter=nm.argsort(t)), expected)


def test_searchsorted_line_by_line():
    rng = np.random.default_rng(0)
    lines = np.sort(rng.integers(0, 9, (2, 3, 7)), axis=-1)
    values = rng.integers(0, 9, (2, 3, 4))
    found = nm.searchsorted(nm.asarray(lines), nm.asarray(values), side="right").numpy()
    for place in np.ndindex(2, 3):
        expected = np.searchsorted(lines[place], values[place], side="right")
        np.testing.assert_array_equal(found[place], expected)
    with pytest.raises(ShapeError, match="leading axes"):
        nm.searchsorted(nm.asarray(lines), nm.asarray(values[0]))
    with pytest.raises(ValueError, match="left"):
        nm.searchsorted(nm.asarray(lines), nm.asarray(values), side="middle")


# -- counting -------------------------------------------------------------------------------------


@few
@given(hnp.arrays(np.int32, st.integers(0, 20), elements=st.integers(0, 7)), st.integers(0, 9))
def test_bincount(x, minlength):
    t = nm.asarray(x)
    weights = np.arange(x.size, dtype=np.float64)
    same(nm.bincount(t, minlength=minlength), np.bincount(x, minlength=minlength))
    same(nm.bincount(t, weights), np.bincount(x, weights) if x.size else np.zeros(0))
    same(nm.bincount(t, length=3), np.bincount(x, minlength=3)[:3])


def test_bincount_refuses():
    with pytest.raises(ValueError, match="no bin for -1"):
        nm.bincount(nm.asarray(np.array([1, -1])))
    with pytest.raises(DTypeError, match="vector of integers"):
        nm.bincount(nm.asarray(np.array([1.0])))
    with pytest.raises(ShapeError, match="weights"):
        nm.bincount(nm.asarray(np.array([1, 2])), np.zeros(3))


@few
@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_side=0), elements=st.floats(-10, 10)),
    st.integers(1, 12),
    st.booleans(),
)
def test_histogram(x, bins, density):
    t = nm.asarray(x)
    density = density and x.size > 0
    for given_bins in (bins, np.unique(np.linspace(-5, 9, bins + 1) ** 2)):
        counts, edges = nm.histogram(t, given_bins, density=density)
        with np.errstate(invalid="ignore"):  # nothing falls into the bins: 0 / 0
            expected, expected_edges = np.histogram(x, given_bins, density=density)
        np.testing.assert_allclose(edges.numpy(), expected_edges, rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(counts.numpy(), expected, rtol=1e-13)
    counts, edges = nm.histogram(t, bins, range=(-1, 3), weights=np.ones(x.shape))
    expected, _ = np.histogram(x, bins, range=(-1, 3), weights=np.ones(x.shape))
    same(counts, expected)


def test_histogram_dtypes():
    x = np.array([1, 2, 2, 200], np.uint8)
    counts, edges = nm.histogram(nm.asarray(x), 4)
    assert counts.tolist() == [3, 0, 0, 1]
    assert counts.dtype is dt.int64
    assert edges.dtype is dt.float32
    assert nm.histogram(nm.asarray(np.array([2**40, 2**40 + 1])), 2)[0].tolist() == [1, 1]
    with pytest.raises(ValueError, match="finite"):
        nm.histogram(nm.asarray(x), 4, range=(3, 1))
    with pytest.raises(ValueError, match="at least one bin"):
        nm.histogram(nm.asarray(x), 0)


@few
@given(arrays(np.float64, shapes), st.booleans(), st.booleans(), st.integers(0, 6))
def test_digitize(x, right, falling, n):
    x = np.nan_to_num(x)
    bins = np.linspace(-2, 2, n)[:: -1 if falling else 1]
    same(nm.digitize(nm.asarray(x), nm.asarray(bins), right), np.digitize(x, bins, right))


# -- sets -----------------------------------------------------------------------------------------


@few
@given(shapes, st.sampled_from([bool, *DTYPES, np.complex128]), st.data())
def test_unique(shape, dtype, data):
    x = data.draw(arrays(dtype, shape))
    t = nm.asarray(x)
    found = nm.unique_all(t)
    same(tuple(nm.unique_counts(t)), tuple(np.unique_counts(x)))
    same((found.values, found.counts), tuple(np.unique_counts(x)))
    same(found.values, x.ravel()[found.indices.numpy()])  # of many NaNs any may come first
    same(nm.unique_inverse(t).inverse_indices, found.inverse_indices.numpy())
    same(found.values[found.inverse_indices], x)
    if not np.isnan(x).any():
        same(tuple(found), tuple(np.unique_all(x)))
    same(nm.unique_values(t), np.unique(x, equal_nan=False))
    if np.dtype(dtype).kind == "c":  # NumPy takes 1+nanj and nan+1j as one
        return
    same(nm.unique(t, True, True, True), np.unique(x, True, True, True))
    same(nm.unique(t), np.unique(x))


@fewer
@given(shapes, st.data())
def test_unique_along_an_axis(shape, data):
    x = data.draw(arrays(np.int64, shape)) % 2
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    if 0 in shape and shape[axis]:
        assert nm.unique(nm.asarray(x), axis=axis).shape[axis] == 1
        return
    same(nm.unique(nm.asarray(x), True, True, True, axis), np.unique(x, True, True, True, axis))


@few
@given(st.sampled_from([*DTYPES, np.complex64]), shapes, shapes, st.data())
def test_two_sets(dtype, shape, other, data):
    a, b = data.draw(arrays(dtype, shape)), data.draw(arrays(dtype, other))
    t, u = nm.asarray(a), nm.asarray(b)
    same(nm.isin(t, u), np.isin(a, b))
    same(nm.isin(t, u, invert=True), np.isin(a, b, invert=True))
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    t, u = nm.asarray(a), nm.asarray(b)
    for name in ("intersect1d", "union1d", "setdiff1d", "setxor1d"):
        same(getattr(nm, name)(t, u), getattr(np, name)(a, b))
