"""nm.stats against SciPy."""

import numpy as np
import pytest
import scipy.stats

import numus as nm

rng = np.random.default_rng(1)
LINE = rng.gamma(2.0, 1.0, 30)
OTHER = LINE * 0.5 + rng.standard_normal(30)
PLANE = rng.gamma(2.0, 1.0, (6, 4))
TIES = rng.integers(0, 5, 30).astype(float)
st = scipy.stats


@pytest.fixture(autouse=True)
def reference():
    """Compositions need no compiler to be right."""
    before = nm.default_device()
    nm.set_default_device("reference")
    yield
    nm.set_default_device(before)


CALLS = {
    "moment": [((PLANE, 3), {})],
    "skew": [((PLANE,), {}), ((LINE,), {"bias": False})],
    "kurtosis": [((PLANE,), {"axis": 1}), ((LINE,), {"bias": False, "fisher": False})],
    "mode": [((TIES,), {}), ((TIES.reshape(5, 6),), {"axis": 1, "keepdims": True})],
    "gmean": [((PLANE,), {}), ((LINE,), {"weights": TIES + 1})],
    "hmean": [((PLANE,), {"axis": 1})],
    "sem": [((PLANE,), {})],
    "variation": [((PLANE,), {})],
    "zscore": [((PLANE,), {"axis": 1, "ddof": 1}), ((PLANE,), {"axis": None})],
    "iqr": [((PLANE,), {"axis": 0}), ((LINE,), {"rng": (10, 90)})],
    "median_abs_deviation": [((PLANE,), {}), ((LINE,), {"scale": "normal"})],
    "trim_mean": [((PLANE, 0.2), {})],
    "entropy": [((PLANE,), {}), ((LINE, TIES + 1), {"base": 2})],
    "rankdata": [((TIES,), {"method": m}) for m in ("average", "min", "max", "dense", "ordinal")]
    + [((PLANE,), {"axis": 1}), ((PLANE,), {})],
    "pearsonr": [((LINE, OTHER), {})],
    "spearmanr": [((LINE, OTHER), {}), ((TIES, OTHER), {})],
    "linregress": [((LINE, OTHER), {})],
    "wasserstein_distance": [((LINE, OTHER[:9]), {}), ((LINE, OTHER, TIES + 1, LINE), {})],
    "energy_distance": [((LINE, OTHER[:9]), {})],
    "ttest_1samp": [((PLANE, 1.5), {})],
    "ttest_rel": [((LINE, OTHER), {})],
    "ttest_ind": [((LINE, OTHER), {}), ((LINE, OTHER[:12]), {"equal_var": False})],
    "chisquare": [((np.array([16.0, 18, 16, 14, 12, 12]),), {})],
}


def leaves(found):
    if isinstance(found, nm.Tensor):
        return [found.numpy()]
    if isinstance(found, tuple):
        return [x for part in found for x in leaves(part)]
    return [found]


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_scipy(name):
    for args, kwargs in CALLS[name]:
        want = getattr(st, name)(*args, **kwargs)
        if name == "linregress":
            want = (*want, want.intercept_stderr)
        elif name in ("pearsonr", "spearmanr", "ttest_1samp", "ttest_rel", "ttest_ind"):
            want = (want.statistic, want.pvalue)
        tensors = [nm.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
        given = {k: nm.asarray(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
        found = getattr(nm.stats, name)(*tensors, **given)
        for got, expected in zip(
            leaves(found), leaves(tuple(want) if isinstance(want, tuple) else want), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=str(kwargs))


def test_tests_in_their_limits():
    x, y = nm.asarray(LINE), nm.asarray(OTHER)
    want = st.kendalltau(TIES, OTHER, method="asymptotic")
    np.testing.assert_allclose(leaves(nm.stats.kendalltau(nm.asarray(TIES), y)), want, rtol=1e-9)
    want = st.mannwhitneyu(LINE, TIES, method="asymptotic")
    np.testing.assert_allclose(leaves(nm.stats.mannwhitneyu(x, nm.asarray(TIES))), want, rtol=1e-9)
    want = st.ks_2samp(LINE, OTHER, method="asymp")
    got = nm.stats.kstest(x, y)
    assert got.statistic.item() == pytest.approx(want.statistic, rel=1e-12)
    want = st.ks_1samp(OTHER, st.norm.cdf, method="asymp")
    np.testing.assert_allclose(
        leaves(nm.stats.kstest(y, nm.ndtr)), [want.statistic, want.pvalue], rtol=1e-6
    )
    for t in (0.3, 0.8, 1.0, 1.5):
        found = nm.stats.hypothesis._kolmogorov(nm.asarray(np.array(t)))
        assert found.item() == pytest.approx(scipy.special.kolmogorov(t), rel=1e-9)


def test_anderson():
    found = nm.stats.anderson(nm.asarray(OTHER))
    z = np.sort((OTHER - OTHER.mean()) / OTHER.std(ddof=1))
    i = np.arange(1, 31)
    want = -30 - np.mean((2 * i - 1) * (st.norm.logcdf(z) + st.norm.logsf(z[::-1])))
    assert found.statistic.item() == pytest.approx(want, rel=1e-9)
    assert 0 < found.pvalue.item() < 1
    assert nm.stats.anderson(nm.asarray(np.exp(3 * OTHER))).pvalue.item() < 1e-3


@pytest.mark.parametrize("statistic", ["mean", "std", "sum", "count", "min", "max"])
def test_binned_statistic(statistic):
    want = st.binned_statistic(LINE, OTHER, statistic, bins=4, range=(0.5, 4.0))
    found = nm.stats.binned_statistic(nm.asarray(LINE), nm.asarray(OTHER), statistic, 4, (0.5, 4.0))
    np.testing.assert_allclose(found.statistic, want.statistic, rtol=1e-9)
    np.testing.assert_array_equal(found.binnumber, want.binnumber)


@pytest.mark.parametrize("shape", [(30,), (2, 30)])
def test_gaussian_kde(shape):
    data = rng.standard_normal(shape)
    points = rng.standard_normal((*shape[:-1], 7))
    weights = rng.random(30)
    for rule in ("scott", "silverman", 0.3):
        want = st.gaussian_kde(data, rule, weights)
        found = nm.stats.gaussian_kde(nm.asarray(data), rule, nm.asarray(weights))
        np.testing.assert_allclose(found(nm.asarray(points)), want(points), rtol=1e-9)
        np.testing.assert_allclose(found.logpdf(nm.asarray(points)), want.logpdf(points), rtol=1e-9)
    assert found.resample(5).shape == (data.ndim and (shape[0] if data.ndim == 2 else 1), 5)


def test_resampling():
    x = nm.asarray(LINE)
    found = nm.stats.bootstrap((x,), nm.mean, n_resamples=2000, key=nm.random.key(0))
    spread = LINE.std(ddof=1) / np.sqrt(30)
    assert found.standard_error.item() == pytest.approx(spread, rel=0.1)
    low, high = (end.item() for end in found.confidence_interval)
    assert low == pytest.approx(LINE.mean() - 1.96 * spread, abs=0.3 * spread)
    assert high == pytest.approx(LINE.mean() + 1.96 * spread, abs=0.3 * spread)

    def gap(a, b):
        return nm.mean(a) - nm.mean(b)

    same = nm.stats.permutation_test((x, x), gap, n_resamples=500, key=nm.random.key(1))
    assert same.pvalue.item() > 0.5
    other = nm.stats.permutation_test((x, x + 5), gap, n_resamples=500, key=nm.random.key(1))
    assert other.pvalue.item() < 0.01


def test_gradients_flow_through_moments():
    def third(a):
        return nm.stats.skew(a)

    x = nm.asarray(LINE)
    slope = nm.grad(third)(x).numpy()
    step = 1e-6
    for i in (0, 7):
        moved = LINE.copy()
        moved[i] += step
        want = (st.skew(moved) - st.skew(LINE)) / step
        assert slope[i] == pytest.approx(want, abs=1e-5)
