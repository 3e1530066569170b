"""x[index] and x[index] = value against NumPy, for random index tuples and all dtypes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, IndexRangeError, ShapeError

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def indexed(draw):
    """A shape and an index into it, made of everything NumPy takes."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    items = []
    axis = 0
    wide = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3))
    while axis < len(shape) and draw(st.integers(0, 9)):
        n = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "new", "array", "point", "mask", "bool"]))
        if kind == "slice":
            items.append(draw(st.slices(n)))
        elif kind == "new":
            items.append(None)
            continue
        elif kind == "bool":
            items.append(draw(st.booleans()) or bool(wide))
            continue
        elif kind == "mask":
            rank = draw(st.integers(1, len(shape) - axis))
            items.append(draw(hnp.arrays(bool, shape[axis : axis + rank])))
            axis += rank
            continue
        elif n == 0:
            items.append(slice(None))
        elif kind == "int":
            items.append(draw(st.integers(-n, n - 1)))
        else:
            given_shape = () if kind == "point" else wide
            dtype = draw(st.sampled_from([np.int64, np.int32, np.int8]))
            items.append(draw(hnp.arrays(dtype, given_shape, elements=st.integers(-n, n - 1))))
        axis += 1
    if draw(st.booleans()):
        # in the middle only where it stands for no axes, so that the others keep theirs
        items.insert(draw(st.integers(0, len(items))) if axis == len(shape) else len(items), ...)
    index = tuple(items)
    return shape, index[0] if len(index) == 1 and draw(st.booleans()) else index


def numpy_takes(x, index):
    try:
        return x[index]
    except IndexError:
        return None


def ours(draw_tensor, index):
    """The index with its arrays as tensors, where asked."""
    if not draw_tensor:
        return index
    turn = lambda i: nm.asarray(i) if isinstance(i, np.ndarray) else i
    return tuple(map(turn, index)) if isinstance(index, tuple) else turn(index)


@few
@given(indexed(), st.booleans())
def test_reading(case, as_tensors):
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    expected = numpy_takes(x, index)
    if expected is None:
        with pytest.raises((IndexRangeError, ShapeError)):
            nm.asarray(x)[ours(as_tensors, index)]
        return
    found = nm.asarray(x)[ours(as_tensors, index)]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)


@few
@given(indexed(), st.booleans(), st.data())
def test_writing(case, as_tensors, data):
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    selected = numpy_takes(x, index)
    if selected is None:
        return
    fits = [(), selected.shape, selected.shape[1:]]
    fits += [(1, *selected.shape)] * bool(selected.shape)  # NumPy refuses this for a scalar
    fits += [tuple(1 if data.draw(st.booleans()) else n for n in selected.shape)]
    value_shape = data.draw(st.sampled_from(fits))
    value = -1 - np.arange(np.prod(value_shape), dtype=np.float64).reshape(value_shape)
    expected = x.copy()
    try:
        expected[index] = value
    except TypeError:  # NumPy takes values of at most one axis for a mask of all axes
        return
    t = nm.asarray(x)
    t[ours(as_tensors, index)] = nm.asarray(value) if as_tensors else value
    np.testing.assert_array_equal(t.numpy(), expected)


@few
@given(indexed(), st.data())
def test_gradients(case, data):
    """The cotangent of x[i] is scattered with addition; that of x[i] = v is blanked and read."""
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    selected = numpy_takes(x, index)
    if selected is None:
        return
    g = np.arange(1.0, selected.size + 1).reshape(selected.shape)
    expected = np.zeros(shape)
    np.add.at(expected, index, g)
    _, pull = nm.vjp(lambda t: t[index], nm.asarray(x))
    np.testing.assert_array_equal(pull(nm.asarray(g))[0].numpy(), expected)

    def put(t, v):
        t = t + 0
        t[index] = v
        return t

    g = np.arange(1.0, x.size + 1).reshape(shape)
    _, pull = nm.vjp(put, nm.asarray(x), nm.asarray(selected.copy()))
    to_base, to_value = pull(nm.asarray(g))
    kept = g.copy()
    kept[index] = 0
    np.testing.assert_array_equal(to_base.numpy(), kept)
    # of several writes to one place the last counts
    order = np.arange(selected.size, dtype=np.int64).reshape(selected.shape)
    last = np.full(shape, -1)
    last[index] = order
    np.testing.assert_array_equal(to_value.numpy(), np.where(last[index] == order, g[index], 0))


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_dtypes(dtype):
    x = np.arange(6).reshape(2, 3).astype(dtype.np)
    t = nm.asarray(x)
    assert t.dtype is dtype
    for index in (0, (slice(None), -1), ([1, 0], [2, 2]), np.array([True, False])):
        np.testing.assert_array_equal(t[index].numpy(), x[index])
        y, u = x.copy(), nm.asarray(x)
        y[index] = u[index] = x.dtype.type(1)
        np.testing.assert_array_equal(u.numpy(), y)


def test_views_share_storage():
    t = nm.asarray(np.arange(12.0).reshape(3, 4))
    part = t[1:, ::-2]
    assert part.strides == (4, -2)
    assert part._node.view.storage is t._node.view.storage


def test_assignment_is_seen_by_views_and_by_no_results():
    t = nm.asarray(np.zeros(3))
    before, row, copy, result = t, t[:], t.copy(), t + 0
    t[0] = 1
    assert before is t
    assert row.tolist() == t.tolist() == [1, 0, 0]
    assert copy.tolist() == result.tolist() == [0, 0, 0]


def test_augmented_assignment():
    t = nm.asarray(np.arange(4.0))
    t[1:3] *= 10
    t[[0, 0]] += 1
    assert t.tolist() == [1, 10, 20, 3]


@pytest.mark.parametrize(
    "index", [3, -4, [0, 3], np.array([-4]), (0, 5), (slice(None), [1, 9]), np.int8(3)]
)
def test_out_of_range_is_named(index):
    t = nm.asarray(np.zeros((3, 4)))
    with pytest.raises(IndexRangeError, match="out of range for axis"):
        t[index]
    with pytest.raises(IndexRangeError, match="out of range for axis"):
        t[index] = 0
    if isinstance(index, (list, np.ndarray)):
        with pytest.raises(IndexError, match="axis 0 with 3 elements"):
            t[nm.asarray(np.asarray(index))]


def test_indices_that_went_to_a_device_are_checked_at_the_call():
    import simt_machine

    simt_machine.install()
    t = nm.asarray(np.arange(3.0), device="simt")
    far = nm.asarray(np.array([1, 7]), device="simt")
    for index in (far, far[1:], far.reshape(2, 1), nm.asarray(np.array([1, 7])).to("simt")):
        with pytest.raises(IndexRangeError, match="index 7 is out of range for axis 0"):
            t[index]
    assert t[far[:1]].tolist() == [1]
    assert t[far + 0].tolist() == [1, 2]  # computed there
    with far.data_write() as array:
        array[1] = 2
    assert t[far].tolist() == [1, 2]


def test_pending_indices_are_clamped_when_read_and_dropped_when_written():
    t = nm.asarray(np.arange(3.0))
    far = nm.asarray(np.array([1, -1, 7, -9])) + 0
    assert t[far].tolist() == [1, 2, 2, 0]
    t[far + 0] = 5
    assert t.tolist() == [0, 5, 5]


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_a_wider_kind_is_refused(dtype):
    t = nm.asarray(np.zeros(3, dtype))
    with pytest.raises(DTypeError, match="astype"):
        t[0] = 1j
    with pytest.raises(DTypeError, match="astype"):
        t[:2] = np.zeros(2, np.complex64)
    if dtype != "float32":
        with pytest.raises(DTypeError, match="astype"):
            t[0] = 1.5
    t[0] = True
    assert t.tolist()[0] == 1


def test_integers_must_fit():
    t = nm.asarray(np.zeros(3, np.uint8))
    t[1] = 255
    assert t.tolist() == [0, 255, 0]
    with pytest.raises(OverflowError):
        t[1] = 256


def test_errors_name_the_way_out():
    t = nm.asarray(np.zeros((2, 3)))
    with pytest.raises(IndexRangeError, match="too many indices"):
        t[0, 0, 0]
    with pytest.raises(IndexRangeError, match="one ellipsis"):
        t[..., ...]
    with pytest.raises(IndexRangeError, match="boolean index of shape"):
        t[np.zeros(3, bool)]
    with pytest.raises(DTypeError, match="integers"):
        t[1.0]
    with pytest.raises(DTypeError, match="integers"):
        t[nm.asarray(np.zeros(2))]
    with pytest.raises(ShapeError, match="does not broadcast"):
        t[0] = np.zeros(2)
    with pytest.raises(ShapeError, match="index arrays"):
        t[[0, 1], [0, 1, 2]]
    with pytest.raises(IndexRangeError, match="empty"):
        nm.asarray(np.zeros((0, 2)))[nm.asarray(np.array([0]))]


def test_mask_assignment_of_one_value_evaluates_nothing():
    t = nm.asarray(np.arange(6.0).reshape(2, 3))
    mask = t > 2
    t[mask] = 0.0
    assert t._node.view is None
    assert mask._node.view is None
    assert t.tolist() == [[0, 1, 2], [0, 0, 0]]


@pytest.mark.parametrize(
    ("shape", "mask"),
    [((5,), (0,)), ((5, 3), (0, 3)), ((5, 3), (5, 0)), ((5, 3), (0,)), ((0, 1), (0, 0))],
)
def test_an_empty_mask_fits_any_axis(shape, mask):
    a, m = np.ones(shape), np.zeros(mask, bool)
    t = nm.asarray(a)
    for key in (m, nm.asarray(m)):
        assert t[key].shape == a[m].shape
        t[key] = 2.0
        t[key] = nm.zeros(a[m].shape)
    assert t.tolist() == a.tolist()


def test_assignment_on_the_tape():
    w = nm.asarray(np.arange(4.0))
    w.requires_grad = True
    y = w * 2
    y[1:3] = w[:2] * 10
    y[[0, 3]] *= 3
    y.sum().backward()
    assert w.grad.tolist() == [16, 10, 0, 6]
    with nm.no_grad():
        w[0] = 7.0
    assert w.is_leaf
    assert w.tolist() == [7, 1, 2, 3]


def test_rows_are_iterated_over():
    t = nm.asarray(np.arange(6.0).reshape(2, 3))
    assert [row.tolist() for row in t] == t.tolist()


def test_assigned_values_are_copies():
    """As in NumPy: a write to the memory of one is not seen by the other."""
    x, y = nm.zeros(3), nm.asarray([1.0, 2.0, 3.0])
    for assign in (x.assign, lambda v: x.__setitem__(..., v)):
        assign(y)
        with y.data_write() as a:
            a[0] += 5
        with x.data_write() as a:
            a[1] += 7
        assert x.tolist() != y.tolist()
        assert x.tolist()[0] == y.tolist()[0] - 5


def test_assign_broadcasts_and_keeps_dtype_and_grad():
    x = nm.zeros((2, 3))
    assert x.assign([1, 2, 3]) is x
    assert x.dtype is nm.float32
    assert x.tolist() == [[1, 2, 3]] * 2
    x.requires_grad = True
    (x * x).sum().backward()
    with nm.no_grad():
        x.assign(x - x.grad)
    assert x.requires_grad
    assert x.grad.tolist() == [[2, 4, 6]] * 2
    assert x.tolist() == [[-1, -2, -3]] * 2
    with pytest.raises(TypeError, match="assignment"):
        nm.zeros(2, dtype=nm.int32).assign(1.5)


def test_indices_that_come_again_on_other_layouts():
    a = np.arange(6 * 8, dtype=np.float32).reshape(6, 8)
    x = nm.asarray(a)
    nm.eval(x)
    indices = [
        *(0, -1, slice(None, None, 2), slice(4, 1, -1), (slice(1, 3), 2), (1, 2), None, Ellipsis),
        *((Ellipsis, 1), (slice(None), None), (None, 0, slice(2, None)), (), slice(5, 2)),
        *((slice(None, None, -1), slice(None, None, 3)), (Ellipsis, None, slice(0, 4))),
    ]
    for _ in range(3):
        for view, want in (
            (x, a),
            (x[1:5, 1:5], a[1:5, 1:5]),
            (x.T, a.T),
            (x[::-1, 2:], a[::-1, 2:]),
        ):
            for index in indices:
                found = view[index]
                np.testing.assert_array_equal(found.numpy(), want[index])
                assert found.shape == want[index].shape
            for wrong in (8, (0, 9), (0, 0, 0), (Ellipsis, Ellipsis)):
                with pytest.raises(IndexError):
                    view[wrong]
            with pytest.raises(nm.errors.DTypeError):
                view[1.0]
