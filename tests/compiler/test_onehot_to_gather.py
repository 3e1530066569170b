"""One-hot-to-gather rewrite: the same values, without a reduction."""

import numpy as np
import pytest

import numus as nm

NULL = nm.device("null")
RNG = np.random.default_rng(2)


def one_hot_sum(x, index, axis, negate=False):
    shape = [1] * x.ndim
    shape[axis] = -1
    iota = nm.arange(x.shape[axis], dtype=index.dtype, device=x.device).reshape(shape)
    masked = nm.where(nm.expand_dims(index, axis) == iota, x, 0.0)
    return (-masked if negate else masked).sum(axis)


def indices(shape, extent, dtype):
    """Indices of an axis, some of them out of bounds."""
    low = 0 if np.dtype(dtype).kind == "u" else -2
    return RNG.integers(low, extent + 2, shape).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("negate", [False, True])
def test_the_same_as_the_sum(axis, dtype, negate):
    x = RNG.standard_normal((3, 5, 4)).astype(np.float32)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    index = indices(shape, x.shape[axis], dtype)
    want = np.zeros(shape, np.float32)
    for at in np.ndindex(shape):
        if 0 <= index[at] < x.shape[axis]:
            want[at] = x[(*at[:axis], index[at], *at[axis:])]
    found = one_hot_sum(nm.asarray(x), nm.asarray(index), axis, negate)
    np.testing.assert_array_equal(found.numpy(), -want if negate else want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "float64"])
def test_every_dtype(dtype):
    x = nm.asarray(RNG.integers(-9, 9, (6, 5))).astype(dtype)
    index = nm.asarray(indices((6,), 5, "int64"))
    want = one_hot_sum(x.astype("float32"), index, 1).astype(dtype)
    np.testing.assert_array_equal(
        nm.where(index[:, None] == nm.arange(5), x, nm.zeros((), dtype=dtype))
        .sum(1)
        .astype("float64")
        .numpy(),
        want.astype("float64").numpy(),
    )


def test_other_elements_may_be_nan():
    x = nm.asarray(np.array([[1.0, np.nan], [np.inf, 2.0]], np.float32))
    assert one_hot_sum(x, nm.asarray([0, 1]), 1).tolist() == [1.0, 2.0]


def test_no_reduction_is_left():
    """The kernel is pointwise: it has no loop over the summed axis."""
    x = nm.asarray(np.zeros((64, 3000), np.float32), device=NULL)
    index = nm.asarray(np.zeros(64, np.int64), device=NULL)
    NULL.runtime.reset()
    nm.eval(one_hot_sum(x, index, 1))
    (program,) = NULL.runtime.launched
    assert program.name == "pointwise"


@pytest.mark.parametrize(
    "masked",
    [
        lambda x, p: nm.where(p[:, None] == nm.arange(5)[::-1], x, 0.0),  # counts downwards
        lambda x, p: nm.where(p[:, None] == nm.arange(1, 6), x, 0.0),  # not from 0
        lambda x, p: nm.where(p[:, None] == nm.arange(5), x, 1.0),  # misses count
        lambda x, p: nm.where(p[:, None] != nm.arange(5), x, 0.0),
        lambda x, p: nm.where(nm.arange(6)[:, None] == nm.arange(5), x, 0.0),  # of both axes
        lambda x, p: nm.where(nm.arange(6)[:, None] == nm.broadcast_to(p[:5], (6, 5)), x, 0.0),
    ],
)
def test_other_sums_stay_sums(masked):
    x, index = RNG.standard_normal((6, 5)).astype(np.float32), indices((6,), 5, "int64")
    found = masked(nm.asarray(x), nm.asarray(index)).sum(1).numpy()
    before = nm.default_device()
    nm.set_default_device("reference")
    try:
        want = masked(nm.asarray(x), nm.asarray(index)).sum(1).numpy()
    finally:
        nm.set_default_device(before)
    np.testing.assert_allclose(found, want, rtol=1e-6)
