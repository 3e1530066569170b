"""Draws: moments within 5 standard errors, Kolmogorov-Smirnov and chi-square, one stream."""

import numpy as np
import pytest
from distribution_cases import CASES

import numus as nm
from numus import distributions
from numus.distributions import Independent, MixtureSameFamily, Normal, TruncatedNormal

BY_NAME = {c.name: c for c in CASES}
EXTRA = {
    "TruncatedNormal": lambda: TruncatedNormal(nm.asarray([0.0, 1.0, 0.0]), 1.0, [-1.0, 2.5, 5], 6),
    "Logistic": lambda: distributions.Logistic(nm.asarray([0.0, 1.0, 2.0]), 0.5),
    "BetaBinomial": lambda: distributions.BetaBinomial(9, nm.asarray([1.0, 2.0, 3.0]), 2.0),
    "GeneralizedPareto-bounded": lambda: distributions.GeneralizedPareto(
        0.0, nm.asarray([1.0, 2.0, 3.0]), -0.3
    ),
    "Mixture": lambda: MixtureSameFamily(
        distributions.Categorical(nm.asarray([[0.2, 0.8]] * 3)),
        Normal(nm.asarray([[-2.0, 1.0], [0.0, 1.0], [0.0, 0.0]]), nm.asarray([1.0, 0.5])),
    ),
    "Independent": lambda: Independent(Normal(nm.zeros((3, 2)), 1.0), 1),
}
NAMES = [n for n in BY_NAME if not n.endswith(("-logits", "-p", "-l"))] + list(EXTRA)
# the others share their code with one of these, or are one line of it
QUICK = """
Bernoulli Beta Binomial Categorical Cauchy ContinuousBernoulli Dirichlet Geometric Gumbel
Kumaraswamy LowRankMultivariateNormal Multinomial MultivariateNormal Poisson StudentT Wishart
TruncatedNormal Mixture
""".split()
# fourth moments that a sample does not show
HEAVY = {"LogNormal", "InverseGamma", "FisherSnedecor", "GeneralizedPareto", "Pareto", "StudentT"}


def made(name):
    if name in EXTRA:
        return EXTRA[name]()
    case = BY_NAME[name]
    parameters, _ = case.drawn()
    given = {
        n: nm.asarray(x.astype(np.float32)) if isinstance(x, np.ndarray) else x
        for n, x in parameters.items()
    }
    return getattr(distributions, case.kind)(**given)


def known(found):
    try:
        return found().numpy().astype(float)
    except NotImplementedError:
        return None


def check(name, count):
    d = made(name)
    drawn = d.sample((count,), key=nm.random.key(5))
    assert drawn.shape == (count, *d.batch_shape, *d.event_shape)
    assert bool(nm.all(d.support.check(drawn)))
    x = drawn.numpy().astype(float)
    mean, variance = known(lambda: d.mean), known(lambda: d.variance)
    if mean is not None and np.isfinite(mean).all() and name not in ("VonMises", "Categorical"):
        error = 5 * np.sqrt(variance / count) + 1e-6 * np.abs(mean)
        assert (np.abs(x.mean(0) - mean) <= error).all()
        centred = (x - mean) ** 2
        spread = 5 * centred.std(0) / np.sqrt(count) + 1e-6
        assert name in HEAVY or (np.abs(centred.mean(0) - variance) <= spread).all()
    entropy = known(d.entropy) if count > 10_000 else None
    if entropy is not None:
        logs = -d.log_prob(drawn).numpy().astype(float)
        assert (np.abs(logs.mean(0) - entropy) <= 5 * logs.std(0) / np.sqrt(count) + 1e-5).all()
    if known(lambda: d.cdf(drawn[:1])) is not None and not d.event_shape:
        goodness_of_fit(d, drawn)


def goodness_of_fit(d, drawn):
    """Kolmogorov and Smirnov's distance: below 2.3 / sqrt(n) but for one in 10,000."""
    count = drawn.shape[0]
    at = np.sort(d.cdf(drawn).numpy().astype(float), axis=0)
    if d.support.is_discrete:
        for column, sorted_at in zip(drawn.numpy().T, at.T, strict=True):
            values, counts = np.unique(column, return_counts=True)
            above = np.cumsum(counts) / count
            assert np.abs(above - np.unique(sorted_at)[: len(values)]).max() * np.sqrt(count) < 2.3
        return
    steps = np.arange(count)[:, None] / count
    far = np.maximum(np.abs(at - steps), np.abs(at - steps - 1 / count)).max()
    assert far * np.sqrt(count) < 2.3


@pytest.mark.parametrize("name", QUICK)
def test_draws(name):
    check(name, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_million_draws(name):
    check(name, 250_000 if name in ("LKJCholesky", "Wishart") else 1_000_000)


ONE_STREAM = [
    "Gamma",
    "Categorical",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in "Normal Beta Dirichlet Poisson StudentT VonMises Binomial".split()
    ),
]


@pytest.mark.parametrize("name", ONE_STREAM)
def test_the_same_stream_on_every_device(name):
    devices = [d.name for d in nm.devices() if d.name != "cpu"]
    case = BY_NAME[name]
    parameters, _ = case.drawn()

    def draws(device):
        given = {n: nm.asarray(x.astype(np.float32), device=device) for n, x in parameters.items()}
        d = getattr(distributions, case.kind)(**given)
        return d.sample((50,), key=nm.random.key(3, device=device)).numpy()

    want = draws("cpu")
    for device in devices:
        np.testing.assert_allclose(draws(device), want, rtol=2e-5, atol=2e-6, err_msg=device)


def test_a_draw_depends_on_its_key():
    d = Normal(0.0, 1.0)
    a, b = (d.sample((4,), key=nm.random.key(i)).tolist() for i in (0, 1))
    assert a == d.sample((4,), key=nm.random.key(0)).tolist() != b
    nm.random.seed(7)
    first = d.sample((4,)).tolist()
    assert first != d.sample((4,)).tolist()
    nm.random.seed(7)
    assert first == d.sample((4,)).tolist()
