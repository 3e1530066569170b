"""Shapes, axes, parts, joins and repeats against NumPy (and PyTorch where the name is its)."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm
from numus.errors import ShapeError

few = settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
fewer = settings(few, max_examples=6)  # each shape compiles many kernels
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
solid = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


def count(shape, dtype=np.float64):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def same(found, expected):
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            same(f, e)
        return
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype.np == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)


# name: function of a library (numus or NumPy) and an array, and shapes to try it on
CASES = {
    "atleast_1d": (lambda xp, x: xp.atleast_1d(x), [(), (3,), (2, 3)]),
    "atleast_2d": (lambda xp, x: xp.atleast_2d(x), [(), (3,), (2, 3), (2, 3, 4)]),
    "atleast_3d": (lambda xp, x: xp.atleast_3d(x), [(), (3,), (2, 3), (2, 3, 4)]),
    "column_stack": (lambda xp, x: xp.column_stack((x, x)), [(3,), (2, 3)]),
    "diag": (lambda xp, x: [xp.diag(x, k) for k in range(-4, 5)], [(3,), (0,), (2, 3), (0, 2)]),
    "dstack": (lambda xp, x: xp.dstack((x, x)), [(), (3,), (2, 3), (2, 3, 4)]),
    "flip": (lambda xp, x: xp.flip(x), [(), (3,), (2, 3), (0, 2)]),
    "hstack": (lambda xp, x: xp.hstack((x, x)), [(), (3,), (2, 3)]),
    "moveaxis": (lambda xp, x: xp.moveaxis(x, (0, -1), (1, 0)), [(2, 3), (2, 3, 4)]),
    "ravel": (lambda xp, x: xp.ravel(x), [(), (2, 3), (0, 2)]),
    "repeat": (lambda xp, x: xp.repeat(x, 3), [(), (2, 3), (0, 2)]),
    "repeat each": (lambda xp, x: xp.repeat(x, [2, 0, 1], axis=1), [(2, 3), (0, 3), (2, 3, 2)]),
    "roll": (lambda xp, x: xp.roll(x, 4), [(), (3,), (2, 3), (0, 2)]),
    "roll axes": (lambda xp, x: xp.roll(x, (1, -5), axis=(0, 1)), [(2, 3), (0, 2), (2, 3, 2)]),
    "rot90": (lambda xp, x: [xp.rot90(x, k, (-1, 0)) for k in range(-1, 5)], [(2, 3), (2, 3, 4)]),
    "squeeze": (lambda xp, x: xp.squeeze(x), [(), (1,), (2, 1, 3, 1), (1, 0)]),
    "stack": (lambda xp, x: xp.stack((x, x), axis=-1), [(), (3,), (2, 0)]),
    "swapaxes": (lambda xp, x: xp.swapaxes(x, 0, -1), [(3,), (2, 3, 4)]),
    "tile": (lambda xp, x: xp.tile(x, (2, 1, 3)), [(), (3,), (2, 3), (2, 2, 0, 2)]),
    "transpose": (lambda xp, x: xp.transpose(x), [(), (3,), (2, 3, 4)]),
    "vstack": (lambda xp, x: xp.vstack((x, x)), [(), (3,), (2, 3)]),
    "T": (lambda xp, x: x.T, [(2, 3), (2, 3, 4)]),
    "mT": (lambda xp, x: x.mT, [(2, 3), (2, 3, 4)]),
    "split": (lambda xp, x: xp.split(x, 3), [(3,), (6, 2), (0,)]),
    "split at": (lambda xp, x: xp.split(x, [1, -1, 9], axis=-1), [(3,), (6, 4), (0,)]),
    "array_split": (lambda xp, x: xp.array_split(x, 4, axis=-1), [(3,), (2, 7), (0,)]),
    "concat flat": (lambda xp, x: xp.concat((x, x), axis=None), [(), (2, 3)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "bool", "complex64"])
def test_against_numpy(name, dtype):
    function, tried = CASES[name]
    for shape in tried:
        x = count(shape, dtype)
        same(function(nm, nm.asarray(x)), function(np, x))
        # elements that do not lie in row-major order
        same(function(nm, nm.asarray(x.T.copy()).T), function(np, x))


@few
@given(shapes, st.data())
def test_reshape(shape, data):
    x = count(shape)
    order = data.draw(st.permutations(shape))
    target = tuple(order)
    if x.size and target and data.draw(st.booleans()):
        gap = data.draw(st.integers(0, len(target) - 1))
        target = (*target[:gap], -1, *target[gap + 1 :])
    same(nm.reshape(nm.asarray(x), target), x.reshape(target))
    same(nm.asarray(x).view(target), x.reshape(target))
    same(nm.asarray(x).T.reshape(*target), x.T.reshape(target))


@few
@given(shapes, st.data())
def test_permutation_and_insertion(shape, data):
    x = count(shape)
    axes = data.draw(st.permutations(range(len(shape))))
    same(nm.permute_dims(nm.asarray(x), tuple(axes)), np.transpose(x, axes))
    same(nm.asarray(x).permute(*axes), np.transpose(x, axes))
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    wide = nm.expand_dims(nm.asarray(x), axis=axis)
    same(wide, np.expand_dims(x, axis))
    same(nm.squeeze(wide, axis), x)
    same(nm.asarray(x).unsqueeze(axis), np.expand_dims(x, axis))


@few
@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3, min_side=0))
def test_broadcasting(case):
    arrays = [count(s) for s in case.input_shapes]
    same(nm.broadcast_arrays(*map(nm.asarray, arrays)), np.broadcast_arrays(*arrays))
    for x in arrays:
        same(
            nm.broadcast_to(nm.asarray(x), case.result_shape), np.broadcast_to(x, case.result_shape)
        )


@fewer
@given(solid, st.data())
def test_pad(shape, data):
    x = count(shape)
    sides = st.tuples(st.integers(0, 5), st.integers(0, 5))
    width = data.draw(st.one_of(st.integers(0, 5), sides, st.tuples(*[sides] * len(shape))))
    for mode in ("edge", "wrap", "reflect", "symmetric", "constant"):
        same(nm.pad(nm.asarray(x), width, mode), np.pad(x, width, mode))
    values = data.draw(st.one_of(st.integers(-2, 2), sides, st.tuples(*[sides] * len(shape))))
    same(
        nm.pad(nm.asarray(x), width, constant_values=values),
        np.pad(x, width, constant_values=values),
    )


def test_pad_by_axis():
    x = count((2, 3))
    same(nm.pad(nm.asarray(x), {-1: (1, 2)}), np.pad(x, ((0, 0), (1, 2))))
    with pytest.raises(ShapeError, match="for each of 2 axes"):
        nm.pad(nm.asarray(x), ((1, 1), (1, 1), (1, 1)))
    with pytest.raises(ShapeError, match="empty"):
        nm.pad(nm.asarray(np.zeros(0)), 1, "edge")
    with pytest.raises(ValueError, match="no mode"):
        nm.pad(nm.asarray(x), 1, "mirror")


@few
@given(solid, st.data())
def test_windows_and_diagonals(shape, data):
    torch = pytest.importorskip("torch")
    x = count(shape)
    t = nm.asarray(x)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = data.draw(st.integers(1, shape[axis]))
    step = data.draw(st.integers(1, 3))
    same(t.unfold(axis, size, step), torch.as_tensor(x).unfold(axis, size, step).numpy())
    window = tuple(data.draw(st.integers(1, n)) for n in shape)
    same(nm.sliding_window_view(t, window), np.lib.stride_tricks.sliding_window_view(x, window))
    if len(shape) > 1:
        a, b = data.draw(st.permutations(range(len(shape))))[:2]
        offset = data.draw(st.integers(-4, 4))
        same(nm.diagonal(t, offset, a, b), np.diagonal(x, offset, a, b))


@pytest.mark.parametrize(("extent", "chunks"), [(7, 3), (6, 3), (2, 5), (0, 2), (1, 1)])
def test_chunk(extent, chunks):
    torch = pytest.importorskip("torch")
    x = count((extent, 2))
    expected = [p.numpy() for p in torch.as_tensor(x).chunk(chunks)]
    same(nm.chunk(nm.asarray(x), chunks), expected)


def test_unstack_select_narrow_flatten():
    x = count((2, 3, 4))
    t = nm.asarray(x)
    same(nm.unstack(t, axis=1), [x[:, i] for i in range(3)])
    same(t.select(1, -1), x[:, -1])
    same(nm.narrow(t, 2, -3, 2), x[:, :, 1:3])
    same(t.flatten(1), x.reshape(2, 12))
    same(t.flatten(0, 1), x.reshape(6, 4))
    same(nm.asarray(np.float32(3)).flatten(), np.float32([3]))
    same(t.unflatten(2, (2, -1)), x.reshape(2, 3, 2, 2))
    same(t.expand(2, -1, 4), x)
    same(t.transpose_tracked(0, 2), x.swapaxes(0, 2))
    same(t.batched_transpose(), x.mT)
    same(t.transpose(2, 0, 1), x.transpose(2, 0, 1))
    same(t.broadcast_add(t), x + x)
    same(t.broadcast_sub(1), x - 1)
    same(t.broadcast_mul(t[0]), x * x[0])


def test_dtypes_are_promoted():
    a, b = np.arange(2, dtype=np.int8), np.arange(2, dtype=np.float32)
    same(nm.concat((nm.asarray(a), nm.asarray(b))), np.concat((a, b)))
    same(nm.stack((nm.asarray(a), nm.asarray(b))), np.stack((a, b)))


def test_views_share_storage():
    t = nm.asarray(count((4, 6)))
    for view in (
        t.T,
        t.reshape(2, 12),
        t[None],
        nm.flip(t),
        nm.broadcast_to(t, (3, 4, 6)),
        nm.diagonal(t, 1),
        t.unfold(1, 3, 2),
        nm.moveaxis(t, 0, 1),
        *nm.split(t, 2, axis=1),
    ):
        assert view._node.view is not None
        assert view._node.view.storage is t._node.view.storage
    assert t.clone()._node.view is None


def test_contiguous():
    t = nm.asarray(count((2, 3)))
    assert t.contiguous() is t
    turned = t.T.contiguous()
    assert turned.is_contiguous()
    same(turned, count((2, 3)).T)


def test_reshape_without_copy():
    t = nm.asarray(count((2, 3)))
    same(nm.reshape(t, (6,), copy=False), np.arange(6.0))
    with pytest.raises(ShapeError, match="copy=False"):
        nm.reshape(t.T, (6,), copy=False)
    copied = nm.reshape(t, (6,), copy=True)
    same(copied, np.arange(6.0))
    assert copied._node.view.storage is not t._node.view.storage


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: nm.reshape(t, (4, 2)), "does not take the shape"),
        (lambda t: nm.reshape(t, (-1, -1)), "only one extent"),
        (lambda t: nm.squeeze(t, 0), "only axes of extent 1"),
        (lambda t: nm.expand_dims(t, axis=4), "out of range"),
        (lambda t: t.transpose(0), "use swapaxes"),
        (lambda t: nm.permute_dims(t, (0, 0)), "repeated axis"),
        (lambda t: nm.broadcast_to(t, (2, 4)), "does not broadcast"),
        (lambda t: nm.concat((t, t.T)), "differ in more than axis 0"),
        (lambda t: nm.concat((t[0, 0], t[0, 0])), "use stack"),
        (lambda t: nm.concat(()), "at least one"),
        (lambda t: nm.stack((t, t.T)), "must be equal"),
        (lambda t: nm.split(t, 2, axis=1), "array_split"),
        (lambda t: nm.repeat(t, [1, 2, 3], axis=0), "one for each"),
        (lambda t: nm.repeat(t, -1), "-1 times"),
        (lambda t: nm.roll(t, (1, 2, 3), axis=(0, 1)), "3 shifts for 2 axes"),
        (lambda t: nm.narrow(t, 1, 2, 2), "do not lie within"),
        (lambda t: t[0].mT, "at least two axes"),
        (lambda t: t.unfold(0, 3, 1), "do not fit"),
        (lambda t: nm.diag(t[None]), "a vector or a matrix"),
        (
            lambda t: nm.moveaxis(t, (0, 1), 0),
            "as many destinations as sources are needed, not 1 for 2",
        ),
    ],
)
def test_errors_name_the_way_out(call, message):
    with pytest.raises(ShapeError, match=message):
        call(nm.asarray(count((2, 3))))


@pytest.mark.parametrize(
    "call",
    [
        lambda t: nm.reshape(t, (2, 3)),
        lambda t: t.flatten(0, 0),
        lambda t: nm.squeeze(t),
        lambda t: nm.broadcast_to(t, (2, 3)),
        lambda t: t.permute(0, 1),
        lambda t: nm.flip(t, axis=()),
        lambda t: nm.split(t, 1)[0],
        lambda t: nm.concat((t,)),
        lambda t: nm.tile(t, 1),
        lambda t: nm.roll(t, 0, axis=0),
        lambda t: nm.pad(t, 0),
        lambda t: nm.repeat(t, 1, axis=0),
        lambda t: nm.atleast_2d(t),
    ],
)
def test_what_changes_nothing_is_no_leaf(call):
    t = nm.asarray(count((2, 3)))
    t.requires_grad = True
    found = call(t)
    assert found.requires_grad
    assert not found.is_leaf
    assert t.is_leaf


def test_an_axis_that_is_not_there_is_an_index_error_too():
    with pytest.raises(IndexError, match="axis 3 is out of range for an array of 3 dimensions"):
        nm.expand_dims(nm.asarray(count((2, 3))), axis=3)
    with pytest.raises(ValueError, match="axis -3 is out of range"):
        nm.flip(nm.asarray(count((2, 3))), axis=-3)
