"""Reductions, statistics, softmax and its kin, running reductions: against NumPy and SciPy."""

import math

import derivatives
import ml_dtypes
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.functions._base import node_of

few = settings(max_examples=12, deadline=None)
inf, nan = math.inf, math.nan
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]


def T(array):
    return nm.Tensor(node_of(np.asarray(array), "test"))


def numpy_dtype(name):
    return dt.as_dtype(name).np


def rng(seed=0):
    return np.random.default_rng(seed)


@st.composite
def arrays_and_axes(draw, min_side=0, elements=None):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=min_side, max_side=4))
    kind = draw(st.integers(0, 2))
    axis = None
    if kind and shape:
        axes = draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
        axes = tuple(a - len(shape) if draw(st.booleans()) else a for a in axes)
        axis = axes if kind == 2 or not axes else axes[0]
    values = st.floats(-10, 10) if elements is None else elements
    return draw(hnp.arrays(np.float64, shape, elements=values)), axis, draw(st.booleans())


# -- sums, products, truth ------------------------------------------------------------------------


@few
@given(arrays_and_axes())
def test_sum_prod_count_any_all(case):
    x, axis, keepdims = case
    x = np.round(x)
    for name in ("sum", "prod", "count_nonzero", "any", "all"):
        ours = getattr(nm, name)(T(x), axis=axis, keepdims=keepdims)
        theirs = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        assert ours.shape == np.shape(theirs)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12)
        assert (getattr(T(x), name)(axis).numpy() == getattr(nm, name)(T(x), axis).numpy()).all()


@pytest.mark.parametrize("name", ["bool", *INTEGERS, *FLOATS, *COMPLEX])
@pytest.mark.parametrize("op", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
def test_result_dtypes(op, name):
    x = T(np.ones(3, numpy_dtype(name)))
    y = getattr(nm, op)(x)
    kind = x.dtype.kind
    wide = {"bool": dt.int64, "int": dt.int64, "uint": dt.uint64}.get(kind, x.dtype)
    assert y.dtype is wide
    assert y.numpy().reshape(-1)[-1] == (3 if op.endswith("sum") else 1)
    assert getattr(nm, op)(x, dtype=nm.complex64).dtype is nm.complex64


def test_integers_wrap_only_past_64_bits():
    assert nm.sum(T(np.full(4, 100, np.int8))).item() == 400
    assert nm.prod(T(np.full(3, 200, np.uint8))).item() == 8_000_000
    assert nm.sum(T(np.full(4, 100, np.int8)), dtype=nm.int8).item() == -112
    assert nm.sum(T(np.array([2**63, 1], np.uint64))).item() == 2**63 + 1


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_floats_are_accumulated_wide(name):
    x = np.full(5000, 1, numpy_dtype(name))
    assert nm.sum(T(x)).item() == float(np.float32(5000).astype(x.dtype))
    big = np.full(8, 60000, np.float16)
    assert nm.mean(T(big)).item() == 60000
    assert nm.norm(T(big)).item() == inf  # rounded once, at the end
    assert nm.norm(T(np.full(4, 300, np.float16))).item() == 600
    assert nm.mean(T(big)).dtype is nm.float16
    assert nm.var(T(np.array([1000, 1001] * 8, np.float16))).item() == 0.25


def test_dtype_argument_is_checked():
    with pytest.raises(DTypeError, match="imaginary"):
        nm.sum(T(np.ones(2, np.complex64)), dtype=nm.float32)
    with pytest.raises(DTypeError, match="bool"):
        nm.prod(T(np.ones(2)), dtype=nm.bool)
    with pytest.raises(DTypeError, match="integer"):
        nm.mean(T(np.ones(2)), dtype=nm.int32)


@pytest.mark.parametrize("op", ["sum", "max", "mean", "var", "softmax", "any", "logsumexp", "norm"])
def test_axes_are_checked(op):
    x = T(np.ones((2, 3), np.float32))
    for axis in (2, -3, (0, 5)):
        with pytest.raises(ShapeError, match="out of range"):
            getattr(nm, op)(x, axis=axis)
    with pytest.raises(ShapeError, match="repeated"):
        getattr(nm, op)(x, axis=(0, -2))
    with pytest.raises(ShapeError, match="integer"):
        getattr(nm, op)(x, axis=1.5)


# -- extremes -------------------------------------------------------------------------------------


@few
@given(arrays_and_axes(min_side=1, elements=st.floats(allow_nan=True, width=32)))
def test_extremes(case):
    x, axis, keepdims = case
    for name in ("max", "min", "amax", "amin"):
        ours = getattr(nm, name)(T(x), axis=axis, keepdims=keepdims).numpy()
        np.testing.assert_array_equal(ours, getattr(np, name)(x, axis=axis, keepdims=keepdims))
    with np.errstate(all="ignore"):
        ours = nm.ptp(T(x), axis=axis, keepdims=keepdims).numpy()
        np.testing.assert_array_equal(ours, np.ptp(x, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["bool", *INTEGERS, *FLOATS])
def test_extremes_of_all_dtypes(name):
    x = rng().integers(0, 2 if name == "bool" else 100, (3, 4)).astype(numpy_dtype(name))
    for op in ("max", "min", "cummax", "cummin"):
        assert getattr(nm, op)(T(x), 1).dtype is dt.as_dtype(name)
    np.testing.assert_array_equal(nm.max(T(x), 0).numpy(), x.max(0))
    np.testing.assert_array_equal(nm.cummin(T(x), 0).numpy(), np.minimum.accumulate(x, 0))


def test_nothing_to_choose_from():
    x = T(np.ones((0, 3), np.float32))
    for op in ("max", "min", "ptp", "nanmax"):
        with pytest.raises(ShapeError, match=rf"{op}.*\(0, 3\)"):
            getattr(nm, op)(x, axis=0)
        assert getattr(nm, op)(x, axis=1).shape == (0,)
    assert nm.max(T(np.ones((0, 0))), axis=0, keepdims=True).shape == (1, 0)
    with pytest.raises(DTypeError, match="complex"):
        nm.max(T(np.ones(2, np.complex64)))


@few
@given(arrays_and_axes(min_side=1, elements=st.sampled_from([nan, 1.0, -2.0, 3.0])))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ignoring_nan(case):
    x, axis, keepdims = case
    for op in ("nansum", "nanmean", "nanmax", "nanmin"):
        ours = getattr(nm, op)(T(x), axis=axis, keepdims=keepdims).numpy()
        np.testing.assert_allclose(ours, getattr(np, op)(x, axis=axis, keepdims=keepdims))


def test_ignoring_nan_without_any():
    x = np.arange(6).reshape(2, 3)
    assert nm.nansum(T(x), 0).numpy().tolist() == [3, 5, 7]
    assert nm.nanmax(T(x), 1).numpy().tolist() == [2, 5]
    z = np.array([1 + 1j, complex(nan, 0), 2])
    np.testing.assert_allclose(nm.nansum(T(z)).numpy(), 3 + 1j)


# -- statistics -----------------------------------------------------------------------------------


@few
@given(arrays_and_axes(min_side=1), st.sampled_from([0, 1, 0.5, 2]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_mean_var_std(case, correction):
    x, axis, keepdims = case
    for z in (x, x + 1j * x[..., ::-1] if x.ndim else x):
        ours = nm.mean(T(z), axis=axis, keepdims=keepdims).numpy()
        np.testing.assert_allclose(ours, np.mean(z, axis=axis, keepdims=keepdims), atol=1e-12)
        too_few = z.size // max(np.mean(z, axis=axis).size, 1) <= correction
        for op in ("var", "std"):
            ours = getattr(nm, op)(T(z), axis=axis, keepdims=keepdims, correction=correction)
            theirs = getattr(np, op)(z, axis=axis, keepdims=keepdims, ddof=correction)
            expected = np.full_like(theirs, nan) if too_few else theirs
            np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)
        v, m = nm.var_mean(T(z), axis, correction=correction, keepdims=keepdims)
        np.testing.assert_array_equal(m.numpy(), nm.mean(T(z), axis, keepdims=keepdims).numpy())
        assert v.shape == m.shape


def test_statistics_of_nothing():
    empty = T(np.zeros((0, 2), np.float32))
    assert np.isnan(nm.mean(empty, 0).numpy()).all()
    assert np.isnan(nm.var(empty, 0).numpy()).all()
    assert nm.mean(empty, 1).shape == (0,)
    assert nm.sum(empty).item() == 0
    assert nm.var(T(np.ones(()))).item() == 0


def test_statistics_of_integers():
    x = np.arange(10, dtype=np.int16)
    assert nm.mean(T(x)).dtype is nm.float32
    assert nm.mean(T(x)).item() == 4.5
    assert nm.std(T(x), dtype=nm.float64).item() == pytest.approx(x.std(), rel=1e-14)
    assert nm.mean(T(np.array([True, False]))).item() == 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.0])
def test_variance_of_single_elements(value):
    for shape, axis in [((), None), ((2,), ()), ((2, 1), 1), ((1,), None)]:
        x = np.full(shape, value)
        with np.errstate(invalid="ignore"):
            expected = np.var(x, axis=axis)
        np.testing.assert_array_equal(nm.var(nm.asarray(x), axis=axis).numpy(), expected)


def test_variance_keeps_digits_under_a_large_mean():
    """Whether a row is walked as a whole, in parts, or beside others."""
    for shape, axis in (((10_000,), 0), ((4, 10_000), 1), ((3000, 10), 0), ((3000, 600), 0)):
        x = rng().standard_normal(shape).astype(np.float32) + np.float32(1e4)
        want = x.astype(np.float64).var(axis)
        np.testing.assert_allclose(nm.var(T(x), axis=axis).numpy(), want, rtol=5e-6)


def test_average():
    x, w = rng().random((3, 4)), rng(1).random(4)
    np.testing.assert_allclose(nm.average(T(x), 1, T(w)).numpy(), np.average(x, axis=1, weights=w))
    full = rng(2).random((3, 4))
    np.testing.assert_allclose(
        nm.average(T(x), weights=T(full)).numpy(), np.average(x, weights=full)
    )
    assert nm.average(T(x)).item() == pytest.approx(x.mean())
    with pytest.raises(ShapeError, match="weights"):
        nm.average(T(x), 0, T(w))


# -- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2, 3, 2.5, 0.5, -1, -2, inf, -inf, "fro", None])
@pytest.mark.parametrize("kind", [np.float64, np.complex128])
def test_norms(order, kind):
    x = rng().standard_normal((3, 4)).astype(kind)
    if kind is np.complex128:
        x += 1j * rng(1).standard_normal((3, 4))
    plain = 2 if order in ("fro", None) else order
    np.testing.assert_allclose(nm.norm(T(x), order).numpy(), np.linalg.norm(x.reshape(-1), plain))
    for axis in (0, -1):
        np.testing.assert_allclose(
            nm.vector_norm(T(x), axis=axis, ord=plain, keepdims=True).numpy(),
            np.linalg.norm(x, plain, axis=axis, keepdims=True),
        )
    derivatives.check(lambda t: nm.norm(t, order, -1), x)


def test_norms_at_zero():
    zero = np.zeros(3)
    for order in (1, 2, 3, 1.5, 0.5, inf):
        assert nm.norm(T(zero), order).item() == 0
        (g,) = derivatives.reverse(lambda t, p=order: nm.norm(t, p), [zero], np.ones(()))
        assert (g == 0).all()
    assert nm.norm(T(np.array([0.0, 1.0])), -1).item() == 0
    assert nm.norm(T(np.zeros(0)), inf).item() == 0
    assert nm.norm(T(np.array([3, 4]))).item() == 5
    with pytest.raises(ValueError, match="nuc"):
        nm.norm(T(zero), "nuc")
    with pytest.raises(ShapeError):
        nm.norm(T(np.zeros(0)), -inf)


# -- softmax and its kin --------------------------------------------------------------------------


@few
@given(arrays_and_axes(min_side=1, elements=st.floats(-1e5, 1e5)))
def test_softmax(case):
    x, axis, keepdims = case
    ours = nm.logsumexp(T(x), axis=axis, keepdims=keepdims).numpy()
    theirs = scipy.special.logsumexp(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        nm.softmax(T(x), axis).numpy(), scipy.special.softmax(x, axis), atol=1e-15
    )
    np.testing.assert_allclose(
        nm.softmin(T(x), axis).numpy(), scipy.special.softmax(-x, axis), atol=1e-15
    )
    np.testing.assert_allclose(
        nm.log_softmax(T(x), axis).numpy(), scipy.special.log_softmax(x, axis), atol=1e-9
    )


@pytest.mark.parametrize(
    ("row", "lse", "lse_grad", "soft", "log_soft"),
    [
        ([-inf, -inf], -inf, [nan, nan], [nan, nan], [nan, nan]),
        ([inf, 1], inf, [nan, 0], [nan, nan], [nan, nan]),
        ([inf, inf], inf, [nan, nan], [nan, nan], [nan, nan]),
        ([-inf, 1], 1, [0, 1], [0, 1], [-inf, 0]),
        ([nan, 1], nan, [nan, nan], [nan, nan], [nan, nan]),
    ],
)
def test_infinite_rows(row, lse, lse_grad, soft, log_soft):
    """Values and gradients as PyTorch's and JAX's."""
    x = np.array(row)
    np.testing.assert_equal(nm.logsumexp(T(x)).item(), lse)
    np.testing.assert_equal(derivatives.reverse(nm.logsumexp, [x], np.ones(()))[0], lse_grad)
    np.testing.assert_equal(nm.softmax(T(x)).numpy(), soft)
    np.testing.assert_equal(nm.log_softmax(T(x)).numpy(), log_soft)


def test_gradients_beside_minus_infinity():
    """A masked place takes part in neither softmax nor its gradient."""
    x = np.array([-inf, 0.5, 1.5])
    (g,) = derivatives.reverse(nm.softmax, [x], np.array([1.0, 2.0, 3.0]))
    y = scipy.special.softmax(x)
    w = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(g, y * (w - (w * y).sum()))
    (g,) = derivatives.reverse(nm.log_softmax, [x], w)
    np.testing.assert_allclose(g, w - y * w.sum())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_softmax_of_narrow_floats(name):
    x = (rng().standard_normal((4, 50)) * 3).astype(numpy_dtype(name))
    for ours, theirs in (
        (nm.softmax, scipy.special.softmax),
        (nm.log_softmax, scipy.special.log_softmax),
        (nm.logsumexp, scipy.special.logsumexp),
    ):
        y = ours(T(x), axis=-1)
        assert y.dtype is dt.as_dtype(name)
        exact = theirs(x.astype(np.float64), axis=-1)
        rounding = 2.0 ** -(dt.as_dtype(name).mantissa + 1)
        np.testing.assert_allclose(
            y.numpy().astype(float), exact, rtol=1.01 * rounding, atol=2**-25
        )


def test_softmax_of_odd_inputs():
    assert nm.softmax(T(np.zeros((2, 0)))).shape == (2, 0)
    assert nm.log_softmax(T(np.zeros((0, 2)))).shape == (0, 2)
    assert nm.logsumexp(T(np.zeros(0))).item() == -inf
    assert nm.softmax(T(np.array([1, 1]))).dtype is nm.float32
    with pytest.raises(DTypeError, match="softmax"):
        nm.softmax(T(np.ones(2, np.complex64)))


# -- layer and RMS normalisation ------------------------------------------------------------------


def test_layer_norm():
    x, w, b = rng().standard_normal((2, 3, 4)), rng(1).random(4), rng(2).random(4)
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(nm.layer_norm(T(x)).numpy(), expected)
    np.testing.assert_allclose(T(x).layer_norm(T(w), T(b), 1e-5).numpy(), expected * w + b)
    two = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(nm.layer_norm(T(x), eps=1e-3, axis=(1, 2)).numpy(), two)
    w2 = rng(3).random((3, 4))
    np.testing.assert_allclose(nm.layer_norm(T(x), T(w2), eps=1e-3).numpy(), two * w2)
    derivatives.check(nm.layer_norm, x, w, b)


def test_rms_norm():
    x, w = rng().standard_normal((5, 6)), rng(1).random(6)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(nm.rms_norm(T(x), T(w), 1e-6).numpy(), expected)
    np.testing.assert_allclose(nm.rms_norm(T(x), T(w)).numpy(), expected, rtol=1e-5)
    derivatives.check(lambda t, v: nm.rms_norm(t, v, 1e-6), x, w)


def test_normalisation_of_narrow_floats():
    x = (rng().standard_normal((4, 32)) * 100 + 500).astype(ml_dtypes.bfloat16)
    w = rng(1).random(32).astype(np.float32)
    y = nm.layer_norm(T(x), T(w))
    assert y.dtype is nm.bfloat16
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True) * w
    np.testing.assert_allclose(y.numpy().astype(float), expected, rtol=2**-7, atol=1e-6)


def test_normalisation_shapes_are_checked():
    x = T(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="weight of shape"):
        nm.layer_norm(x, T(np.ones(4)))
    with pytest.raises(ShapeError, match="bias of shape"):
        nm.layer_norm(x, T(np.ones(3)), T(np.ones(2)))
    with pytest.raises(ShapeError, match="trailing"):
        nm.rms_norm(x, T(np.ones((5, 2, 3))))
    assert nm.layer_norm(T(np.ones((0, 3)))).shape == (0, 3)
    assert nm.layer_norm(T(np.ones((3, 0)))).shape == (3, 0)


# -- running reductions ---------------------------------------------------------------------------


@few
@given(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4), st.data())
def test_running(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = rng(data.draw(st.integers(0, 9))).standard_normal(shape)
    for op in ("cumulative_sum", "cumulative_prod"):
        for initial in (False, True):
            ours = getattr(nm, op)(T(x), axis=axis, include_initial=initial).numpy()
            theirs = getattr(np, op)(x, axis=axis, include_initial=initial)
            np.testing.assert_allclose(ours, theirs)
    for op in ("cumsum", "cumprod"):
        np.testing.assert_allclose(getattr(nm, op)(T(x), axis).numpy(), getattr(np, op)(x, axis))
        np.testing.assert_allclose(getattr(nm, op)(T(x)).numpy(), getattr(np, op)(x))
    for op, ufunc in (("cummax", np.maximum), ("cummin", np.minimum)):
        np.testing.assert_allclose(getattr(nm, op)(T(x), axis).numpy(), ufunc.accumulate(x, axis))
    np.testing.assert_allclose(
        nm.logcumsumexp(T(x), axis).numpy(), np.logaddexp.accumulate(x, axis)
    )


def test_running_errors():
    with pytest.raises(ShapeError, match="axis must be given"):
        nm.cumulative_sum(T(np.ones((2, 2))))
    with pytest.raises(ShapeError, match="out of range"):
        nm.cumsum(T(np.ones(2)), 1)
    assert nm.cumsum(T(np.ones(()))).shape == (1,)


@few
@given(
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
    st.integers(0, 4),
    st.data(),
)
def test_diff(shape, n, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = rng().standard_normal(shape)
    layer = list(shape)
    layer[axis] = 2
    before = data.draw(st.sampled_from([None, 1.5, rng(1).standard_normal(layer)]))
    after = data.draw(st.sampled_from([None, -2.0, rng(2).standard_normal(layer)]))
    given_ = {k: v for k, v in (("prepend", before), ("append", after)) if v is not None}
    ours = nm.diff(T(x), axis=axis, n=n, **given_).numpy()
    np.testing.assert_allclose(ours, np.diff(x, axis=axis, n=n, **given_))


def test_diff_of_other_dtypes():
    assert nm.diff(T(np.array([True, True, False]))).tolist() == [False, True]
    assert nm.diff(T(np.array([3, 1], np.uint8))).tolist() == [254]
    assert nm.diff(T(np.array([1, 2], np.int8)), prepend=T(np.zeros(1, np.int32))).dtype is nm.int32
    with pytest.raises(ShapeError, match="differ only along"):
        nm.diff(T(np.ones((2, 3))), prepend=T(np.ones((3, 1))))
    with pytest.raises(ValueError, match="negative"):
        nm.diff(T(np.ones(3)), n=-1)


# -- gradients ------------------------------------------------------------------------------------


def test_std_of_equal_elements_has_zero_gradient():
    (g,) = derivatives.reverse(nm.std, [np.ones(4)], np.ones(()))
    assert (g == 0).all()


def test_tied_extremes_share_the_gradient():
    (g,) = derivatives.reverse(nm.max, [np.array([1.0, 3.0, 3.0])], np.ones(()))
    assert g.tolist() == [0, 0.5, 0.5]


def test_means_of_powers_of_two_are_quotients():
    """They are products by an inverse, which is no less exact for numbers of any size."""
    x = np.zeros((7, 8), np.float32)
    x[:, 3] = [1e-45, 7e-45, 1.1754944e-38, 3.3, -3.4028235e38, np.inf, np.nan]
    np.testing.assert_array_equal(nm.mean(nm.asarray(x), axis=1).numpy(), x[:, 3] / np.float32(8))


@pytest.mark.parametrize("n", [2, 3, 15, 16, 17, 31, 33])
def test_many_short_rows(n):
    """Distances of points, and rows in memory: lanes along the rows or across them."""
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, 37, n))
    for dtype in ("float32", "float64"):
        a, b = x.astype(dtype), y.astype(dtype)
        p, q = nm.asarray(a), nm.asarray(b)
        apart = (a[:, None] - b[None]) ** 2
        found = ((p[:, None] - q[None]) ** 2).sum(-1)
        assert np.allclose(found.numpy(), apart.sum(-1), rtol=1e-5)
        assert np.allclose(nm.exp(-found).numpy(), np.exp(-apart.sum(-1)), rtol=1e-4, atol=1e-30)
        assert np.array_equal(nm.argmax(p, axis=-1).numpy(), a.argmax(-1))
        assert np.allclose(nm.softmax(p, axis=-1).sum(-1).numpy(), 1, rtol=1e-5)
