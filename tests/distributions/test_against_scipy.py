"""Densities, cdfs and quantiles against SciPy's, where PyTorch has none."""

import numpy as np
import pytest

import numus as nm
from numus import distributions as D

st = pytest.importorskip("scipy.stats")


def f64(*values):
    return [nm.asarray(np.float64(v)) for v in values]


CONTINUOUS = {
    "Beta": (D.Beta(*f64(2.5, 0.7)), st.beta(2.5, 0.7)),
    "Cauchy": (D.Cauchy(*f64(0.5, 2)), st.cauchy(0.5, 2)),
    "Chi2": (D.Chi2(*f64(3.5)), st.chi2(3.5)),
    "FisherSnedecor": (D.FisherSnedecor(*f64(3, 12)), st.f(3, 12)),
    "Gamma": (D.Gamma(*f64(0.7, 2)), st.gamma(0.7, scale=0.5)),
    "GeneralizedPareto": (D.GeneralizedPareto(*f64(1, 2, 0.3)), st.genpareto(0.3, 1, 2)),
    "GeneralizedPareto-bounded": (D.GeneralizedPareto(*f64(1, 2, -0.4)), st.genpareto(-0.4, 1, 2)),
    "GeneralizedPareto-exponential": (D.GeneralizedPareto(*f64(1, 2, 0)), st.expon(1, 2)),
    "Gumbel": (D.Gumbel(*f64(0.5, 2)), st.gumbel_r(0.5, 2)),
    "HalfCauchy": (D.HalfCauchy(*f64(2)), st.halfcauchy(scale=2)),
    "HalfNormal": (D.HalfNormal(*f64(2)), st.halfnorm(scale=2)),
    "InverseGamma": (D.InverseGamma(*f64(5, 2)), st.invgamma(5, scale=2)),
    "Laplace": (D.Laplace(*f64(0.5, 2)), st.laplace(0.5, 2)),
    "LogNormal": (D.LogNormal(*f64(0.3, 0.6)), st.lognorm(0.6, scale=np.exp(0.3))),
    "Logistic": (D.Logistic(*f64(0.5, 2)), st.logistic(0.5, 2)),
    "Normal": (D.Normal(*f64(0.5, 2)), st.norm(0.5, 2)),
    "Pareto": (D.Pareto(*f64(2, 5)), st.pareto(5, scale=2)),
    "StudentT": (D.StudentT(*f64(3.5, 0.5, 2)), st.t(3.5, 0.5, 2)),
    "TruncatedNormal": (D.TruncatedNormal(*f64(0.5, 2, -1, 4)), st.truncnorm(-0.75, 1.75, 0.5, 2)),
    "TruncatedNormal-tail": (D.TruncatedNormal(*f64(0, 1, 20, 22)), st.truncnorm(20, 22)),
    "Uniform": (D.Uniform(*f64(1, 3)), st.uniform(1, 2)),
    "Weibull": (D.Weibull(*f64(2, 1.5)), st.weibull_min(1.5, scale=2)),
}
LEVELS = np.array([1e-4, 0.01, 0.2, 0.5, 0.77, 0.99, 1 - 1e-4])


# whose cdf is compared with PyTorch's, or that are long to compile
LATER = """
Cauchy Chi2 FisherSnedecor GeneralizedPareto-exponential Gumbel HalfCauchy HalfNormal Laplace
LogNormal Normal Pareto Uniform Weibull
""".split()


def _slowly(name):
    return pytest.param(name, marks=pytest.mark.slow if name in LATER else ())


@pytest.mark.parametrize("name", [*map(_slowly, CONTINUOUS)])
def test_continuous(name):
    d, want = CONTINUOUS[name]
    x = want.ppf(LEVELS)
    # quantiles of SciPy's far truncated normal have fewer digits
    near = 1e-6 if name == "TruncatedNormal-tail" else 1e-10
    np.testing.assert_allclose(d.log_prob(x).numpy(), want.logpdf(x), rtol=near, atol=1e-10)
    np.testing.assert_allclose(d.cdf(x).numpy(), want.cdf(x), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(d.icdf(LEVELS).numpy(), x, rtol=1e-8)
    if name != "TruncatedNormal-tail" and np.isfinite(want.entropy()):  # SciPy's warns
        np.testing.assert_allclose(d.entropy().item(), want.entropy(), rtol=1e-6)


DISCRETE = {
    "BetaBinomial": (D.BetaBinomial(*f64(12, 2, 3)), st.betabinom(12, 2, 3)),
    "Binomial": (D.Binomial(*f64(12, 0.3)), st.binom(12, 0.3)),
    "Geometric": (D.Geometric(*f64(0.3)), st.geom(0.3, loc=-1)),
    "NegativeBinomial": (D.NegativeBinomial(*f64(2.5, 0.4)), st.nbinom(2.5, 0.6)),
    "Poisson": (D.Poisson(*f64(4.5)), st.poisson(4.5)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name):
    d, want = DISCRETE[name]
    k = np.arange(13.0)
    np.testing.assert_allclose(d.log_prob(k).numpy(), want.logpmf(k), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(d.mean.item(), want.mean())
    np.testing.assert_allclose(d.variance.item(), want.var())
    if name != "BetaBinomial":
        np.testing.assert_allclose(d.cdf(k).numpy(), want.cdf(k), rtol=1e-9)


@pytest.mark.parametrize("k", [1e-3, 0.5, 30.0, 1e4])
def test_angles(k):
    x = np.linspace(-3.1, 3.1, 9)
    d, want = D.VonMises(*f64(0, k)), st.vonmises(k)
    np.testing.assert_allclose(d.cdf(x).numpy(), want.cdf(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(d.log_prob(x).numpy(), want.logpdf(x), rtol=1e-9)
    np.testing.assert_allclose(d.entropy().item(), want.entropy(), rtol=1e-7)


def test_extreme_counts():
    """log_prob keeps its digits where three lgammas would cancel, in float32."""
    d = D.Binomial(nm.asarray(1e6), nm.asarray(0.5))
    want = st.binom(10**6, 0.5).logpmf([500_000, 501_000])
    np.testing.assert_allclose(d.log_prob([5e5, 5.01e5]).numpy(), want, rtol=0.05)


def test_divergences_by_integration():
    """Those of pairs that PyTorch has no rule for."""
    pairs = [
        (D.InverseGamma(*f64(5, 2)), D.InverseGamma(*f64(4, 3)), 1e-3, 30),
        (D.Weibull(*f64(2, 1.5)), D.Weibull(*f64(1.5, 2)), 1e-6, 20),
        (D.VonMises(*f64(0.3, 2)), D.VonMises(*f64(-1, 3)), -np.pi, np.pi),
    ]
    for p, q, low, high in pairs:
        x = np.linspace(low, high, 400_001)
        logs = p.log_prob(x).numpy(), q.log_prob(x).numpy()
        want = np.trapezoid(np.exp(logs[0]) * (logs[0] - logs[1]), x)
        np.testing.assert_allclose(D.kl_divergence(p, q).item(), want, rtol=1e-4)
