"""Options that NumPy has: masks and starts of reductions, modes of margins and of indices."""

import numpy as np
import pytest

import numus as nm

X = np.array([[3.0, -1.0, 4.0], [1.0, -5.0, 9.0]])
MASK = np.array([[True, False, True], [True, True, False]])


def close(mine, theirs):
    np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12, strict=True)


@pytest.mark.parametrize("name", "sum prod mean var std all any".split())
@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_reductions_of_what_a_mask_selects(name, axis):
    mine = getattr(nm, name)(nm.asarray(X), axis=axis, where=nm.asarray(MASK))
    close(mine, getattr(np, name)(X, axis=axis, where=MASK))


@pytest.mark.parametrize("name", "sum prod max min".split())
def test_reductions_from_an_initial_number(name):
    options = {"axis": 1, "keepdims": True, "initial": 2.0}
    mine = getattr(nm, name)(nm.asarray(X), where=nm.asarray(MASK), **options)
    close(mine, getattr(np, name)(X, where=MASK, **options))
    empty = getattr(nm, name)(nm.zeros((2, 0)), axis=1, initial=5.0)
    assert empty.tolist() == [5.0, 5.0]


def test_the_gradient_passes_the_mask():
    slope = nm.grad(lambda x: nm.var(x, where=nm.asarray(MASK)))(nm.asarray(X)).numpy()
    chosen = X[MASK]
    wanted = np.zeros_like(X)
    wanted[MASK] = 2 * (chosen - chosen.mean()) / chosen.size
    np.testing.assert_allclose(slope, wanted, atol=1e-12)


def test_masks_are_booleans_and_extremes_need_a_start():
    with pytest.raises(TypeError, match="mask of booleans"):
        nm.sum(nm.asarray(X), where=nm.asarray(X))
    with pytest.raises(ValueError, match="needs initial="):
        nm.max(nm.asarray(X), where=nm.asarray(MASK))


def test_variance_about_a_given_mean():
    about = X.mean(axis=1, keepdims=True)
    close(nm.var(nm.asarray(X), axis=1, mean=nm.asarray(about)), X.var(axis=1))


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("mean", {}), ("median", {"stat_length": 2}), ("maximum", {}), ("minimum", {}),
        ("linear_ramp", {"end_values": ((5, -4), (1, 2))}), ("reflect", {"reflect_type": "odd"}),
        ("symmetric", {"reflect_type": "odd"}),
    ],
)  # fmt: skip
def test_margins(mode, options, dtype):
    x = (X * 2).astype(dtype)
    widths = ((2, 1), (1, 3))
    close(nm.pad(nm.asarray(x), widths, mode, **options), np.pad(x, widths, mode, **options))


@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_indices_out_of_range(mode):
    at = np.array([[7, -9], [1, 2]])
    close(nm.take(nm.asarray(X), nm.asarray(at), mode=mode), np.take(X, at, mode=mode))
    target, wanted = nm.asarray(X.copy()), X.copy()
    nm.put(target, nm.asarray(at), nm.asarray([1.0, 2.0]), mode)
    np.put(wanted, at, [1.0, 2.0], mode)
    close(target, wanted)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("name", ["linspace", "logspace", "geomspace"])
def test_numbers_between_arrays(name, endpoint):
    ends = np.array([1.0, 2.0]), np.array([[3.0], [4.0]])
    mine = getattr(nm, name)(*map(nm.asarray, ends), 5, endpoint=endpoint, axis=1, dtype="float64")
    close(mine, getattr(np, name)(*ends, 5, endpoint=endpoint, axis=1))


def test_averages_and_sets():
    w = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mine = nm.average(nm.asarray(X), (1, 0), nm.asarray(w.T), returned=True)
    theirs = np.average(X, (1, 0), w.T, returned=True)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b)
    pair = np.array([4, 1, 2, 4]), np.array([2, 4, 9])
    mine = nm.intersect1d(*map(nm.asarray, pair), return_indices=True)
    for a, b in zip(mine, np.intersect1d(*pair, return_indices=True), strict=True):
        assert a.tolist() == b.tolist()


def test_least_squares_polynomials_with_their_covariance():
    x = np.arange(6.0)
    y = np.array([1.0, 3.0, 2.0, 5.0, 7.0, 8.0])
    for mine, theirs in zip(
        nm.polyfit(nm.asarray(x), nm.asarray(y), 2, cov=True), np.polyfit(x, y, 2, cov=True),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-8)
