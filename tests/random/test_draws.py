"""Draws of every distribution: moments within 5 standard errors, Kolmogorov-Smirnov, gradients."""

import numpy as np
import pytest
import scipy.stats as st
from scipy.stats import qmc

import numus as nm

CONTINUOUS = {
    "beta": ((0.5, 2.0), st.beta(0.5, 2.0)),
    "chisquare": ((3.0,), st.chi2(3)),
    "f": ((3.0, 12.0), st.f(3, 12)),
    "gamma": ((0.7, 2.0), st.gamma(0.7, scale=2)),
    "laplace": ((1.0, 2.0), st.laplace(1, 2)),
    "logistic": ((1.0, 2.0), st.logistic(1, 2)),
    "lognormal": ((0.3, 0.5), st.lognorm(0.5, scale=np.exp(0.3))),
    "noncentral_chisquare": ((3.0, 2.0), st.ncx2(3, 2)),
    "noncentral_f": ((3.0, 12.0, 2.0), st.ncf(3, 12, 2)),
    "pareto": ((5.0,), st.lomax(5)),
    "power": ((2.0,), st.powerlaw(2)),
    "rayleigh": ((2.0,), st.rayleigh(scale=2)),
    "standard_t": ((6.0,), st.t(6)),
    "triangular": ((1.0, 2.0, 4.0), st.triang(1 / 3, 1, 3)),
    "vonmises": ((0.0, 2.0), st.vonmises(2)),
    "wald": ((2.0, 3.0), st.invgauss(2 / 3, scale=3)),
    "weibull": ((1.5,), st.weibull_min(1.5)),
}
DISCRETE = {
    "binomial": ((30, 0.6), st.binom(30, 0.6)),
    "geometric": ((0.3,), st.geom(0.3)),
    "hypergeometric": ((30, 50, 20), st.hypergeom(80, 30, 20)),
    "logseries": ((0.6,), st.logser(0.6)),
    "negative_binomial": ((3.0, 0.4), st.nbinom(3, 0.4)),
    "poisson": ((4.5,), st.poisson(4.5)),
    "zipf": ((4.0,), st.zipf(4)),
}
ALL = {**CONTINUOUS, **DISCRETE}


def check(name, count):
    parameters, distribution = ALL[name]
    draw = getattr(nm.random, name)
    x = draw((count,), *parameters, key=nm.random.key(11)).numpy().astype(float)
    mean, spread = distribution.mean(), distribution.std()
    assert abs(x.mean() - mean) < 5 * spread / np.sqrt(count)
    values, counts = np.unique(x, return_counts=True)
    above = np.cumsum(counts) / count
    at = distribution.cdf(values)
    # of a discrete distribution both step at the same places; 2.3: one in 10,000
    far = np.abs(above - at).max()
    if name in CONTINUOUS:
        far = max(far, np.abs(above - counts / count - at).max())
    assert far * np.sqrt(count) < 2.3


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("noncentral_f", "vonmises")])
def test_distribution(name):
    check(name, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_distribution_of_a_million(name):
    check(name, 1_000_000)


BASIC = {
    "uniform": ((-1.0, 3.0), st.uniform(-1, 4)),
    "normal": ((1.0, 2.0), st.norm(1, 2)),
    "exponential": ((2.0,), st.expon(scale=2)),
    "gumbel": ((1.0, 2.0), st.gumbel_r(1, 2)),
    "truncated_normal": ((-1.0, 2.0), st.truncnorm(-1, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [nm.float32, nm.float64], ids=str)
@pytest.mark.parametrize("name", [*BASIC, *CONTINUOUS])
def test_a_million_in_both_floats(name, dtype):
    """Mean, variance and Kolmogorov and Smirnov's distance."""
    parameters, distribution = (BASIC | CONTINUOUS)[name]
    count = 1_000_000
    draw = getattr(nm.random, name)
    x = draw((count,), *parameters, dtype=dtype, key=nm.random.key(13)).numpy().astype(float)
    assert abs(x.mean() - distribution.mean()) < 5 * distribution.std() / np.sqrt(count)
    fourth = distribution.stats("k").item()
    if np.isfinite(fourth) and fourth < 50 and name != "vonmises":
        error = distribution.var() * np.sqrt((fourth + 2) / count)
        assert abs(x.var() - distribution.var()) < 5 * error
    at = distribution.cdf(np.sort(x))
    steps = np.arange(count) / count
    assert np.maximum(np.abs(at - steps), np.abs(at - steps - 1 / count)).max() < 2.3e-3


def chi_square_fits(found, expected):
    """Classes of fewer than 20 are put together; one in 100,000 is refused."""
    common = expected >= 20
    found = np.append(found[common], found[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    found, expected = found[expected > 0], expected[expected > 0]
    statistic = ((found - expected) ** 2 / expected).sum()
    return statistic < st.chi2(len(found) - 1).ppf(1 - 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCRETE)
def test_classes_of_a_million(name):
    parameters, distribution = DISCRETE[name]
    count, most = 1_000_000, 200
    x = getattr(nm.random, name)((count,), *parameters, key=nm.random.key(17)).numpy()
    found = np.bincount(np.minimum(x, most), minlength=most + 1)
    expected = count * distribution.pmf(np.arange(most + 1))
    expected[most] += count - expected.sum()
    assert chi_square_fits(found, expected)


@pytest.mark.slow
def test_a_million_choices():
    p, key, count = np.array([0.1, 0.2, 0.3, 0.4]), nm.random.key(19), 1_000_000
    logits = nm.broadcast_to(nm.log(nm.asarray(p.astype(np.float32))), (count, 4))
    drawn = {
        "categorical": nm.random.categorical(logits, key=key),
        "choice": nm.random.choice(4, (count,), p=nm.asarray(p.astype(np.float32)), key=key),
    }
    for x in drawn.values():
        assert chi_square_fits(np.bincount(x.numpy()), count * p)
    whole = nm.random.integers(0, 7, (count,), key=key).numpy()
    assert chi_square_fits(np.bincount(whole), np.full(7, count / 7))
    coins = nm.random.bernoulli(0.3, (count,), key=key).numpy()
    assert chi_square_fits(np.bincount(coins), count * np.array([0.7, 0.3]))


@pytest.mark.slow
def test_a_million_vectors():
    key, count = nm.random.key(23), 1_000_000
    shares = nm.random.dirichlet((count,), [0.5, 2.0, 3.0], key=key).numpy()
    for i, (a, b) in enumerate([(0.5, 5.0), (2.0, 3.5), (3.0, 2.5)]):
        assert st.kstest(shares[:, i], st.beta(a, b).cdf).statistic < 2.3e-3
    counts = nm.random.multinomial((count,), 20, [0.1, 0.6, 0.3], key=key).numpy()
    for i, p in enumerate([0.1, 0.6, 0.3]):
        expected = count * st.binom(20, p).pmf(np.arange(21))
        assert chi_square_fits(np.bincount(counts[:, i], minlength=21), expected)
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    x = nm.random.multivariate_normal((count,), [1.0, -1.0], cov, key=key).numpy()
    np.testing.assert_allclose(x.mean(0), [1, -1], atol=5 * np.sqrt(2 / count))
    np.testing.assert_allclose(np.cov(x.T), cov, atol=5 * 2 * np.sqrt(2 / count))
    w = nm.random.wishart((count // 4,), 5.0, cov, key=key).numpy()
    np.testing.assert_allclose(w.mean(0), 5 * cov, atol=5 * np.sqrt(40 / (count // 4)))


@pytest.mark.parametrize(
    ("name", "parameters", "distribution"),
    [
        ("poisson", (300.0,), st.poisson(300)),
        ("poisson", (2e5,), st.poisson(2e5)),
        ("binomial", (1_000_000, 0.99), st.binom(1_000_000, 0.99)),
        ("gamma", (500.0,), st.gamma(500)),
    ],
)
def test_large_parameters(name, parameters, distribution, monkeypatch):
    monkeypatch.setitem(ALL, name, (parameters, distribution))
    check(name, 20_000)


def test_gamma_draws_are_differentiable():
    """By implicit reparametrisation: the derivative of the mean by a is the scale."""
    a = nm.asarray(2.5, requires_grad=True)
    nm.random.gamma((20_000,), a, 3.0, key=nm.random.key(0)).mean().backward()
    assert abs(float(a.grad) - 3.0) < 0.1


def test_counts_of_vectors():
    counts = nm.random.multinomial((4000,), 20, [0.1, 0.6, 0.3], key=nm.random.key(0)).numpy()
    assert (counts.sum(1) == 20).all()
    np.testing.assert_allclose(counts.mean(0), [2, 12, 6], atol=0.25)
    drawn = nm.random.multivariate_hypergeometric((4000,), [3, 4, 5], 6, key=nm.random.key(0))
    assert (drawn.numpy().sum(1) == 6).all()
    np.testing.assert_allclose(drawn.numpy().mean(0), [1.5, 2, 2.5], atol=0.1)
    shares = nm.random.dirichlet((4000,), [0.01, 2.0, 3.0], key=nm.random.key(0)).numpy()
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(shares.mean(0), np.array([0.01, 2, 3]) / 5.01, atol=0.02)


def test_sobol_points_are_those_of_joe_and_kuo():
    for d in (1, 5, 300):
        want = qmc.Sobol(d, scramble=False).random(16)
        np.testing.assert_array_equal(nm.random.sobol(16, d, scramble=False).numpy(), want)
    later = nm.random.sobol(8, 5, scramble=False, skip=8).numpy()
    np.testing.assert_array_equal(later, qmc.Sobol(5, scramble=False).random(16)[8:])


@pytest.mark.slow
def test_sobol_in_all_dimensions():
    want = qmc.Sobol(21201, scramble=False).random(64)
    np.testing.assert_array_equal(nm.random.sobol(64, 21201, scramble=False).numpy(), want)


def test_scrambled_points_stay_equidistributed():
    x = nm.random.sobol(256, 6, key=nm.random.key(5)).numpy()
    for column in x.T:
        assert len(np.unique(np.floor(column * 256))) == 256
    assert qmc.discrepancy(x) < 0.1 * qmc.discrepancy(np.random.default_rng(0).random((256, 6)))


def test_halton_is_the_usual_sequence():
    want = qmc.Halton(5, scramble=False).random(100)
    got = nm.random.halton(100, 5, scramble=False).numpy()
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("name", ["poisson", "gamma", "weibull", "wald", "vonmises"])
def test_parameters_must_make_sense(name):
    with pytest.raises(ValueError, match=name):
        getattr(nm.random, name)((3,), *((-1.0,) if name != "vonmises" else (0.0, -1.0)))


def test_limits_of_sequences():
    with pytest.raises(ValueError, match="21201"):
        nm.random.sobol(2, 30000)
    with pytest.raises(ValueError, match="generator"):
        nm.random.lattice(8, 3, generator=[1, 2])
