"""The interface: gradients of draws, transformations, shapes, errors, transforms of values."""

import numpy as np
import pytest

import numus as nm
from numus import distributions as D
from numus.distributions import constraints, transforms
from numus.errors import ShapeError

KEY = nm.random.key(2)


def f64(*values):
    return nm.asarray(np.array(values, np.float64))


IMPLICIT = {
    "Gamma": (D.Gamma, (f64(0.3, 2.0, 60.0), f64(1.0, 2.0, 3.0))),
    "VonMises": (D.VonMises, (f64(0.1, 0.5, 1.0), f64(0.2, 3.0, 200.0))),
    "Kumaraswamy": (D.Kumaraswamy, (f64(0.5, 2.0), f64(3.0, 0.7))),
    "ContinuousBernoulli": (D.ContinuousBernoulli, (f64(0.2, 0.5, 0.9),)),
    "TruncatedNormal": (
        D.TruncatedNormal,
        (f64(0.0, 0.3), f64(1.0, 2.0), f64(-1.0, 9.0), f64(2.0, 12.0)),
    ),
    "Chi2": (D.Chi2, (f64(0.7, 9.0),)),
    "Weibull": (D.Weibull, (f64(1.5, 0.3), f64(2.0, 0.6))),
}


def _slowly(name):
    """Those whose kernels are long are compiled in the slow run alone."""
    quick = ("Chi2", "ContinuousBernoulli", "Gamma", "Weibull")
    return pytest.param(name, marks=() if name in quick else pytest.mark.slow)


@pytest.mark.parametrize("name", [*map(_slowly, IMPLICIT)])
def test_draws_move_as_their_quantiles_do(name):
    """cdf(draw(parameters), parameters) does not change with the parameters."""
    kind, parameters = IMPLICIT[name]

    def level(*p):
        d = kind(*p)
        return nm.sum(d.cdf(d.rsample((20,), key=KEY)))

    def density(*p):
        return nm.sum(kind(*p).cdf(kind(*parameters).sample((20,), key=KEY)))

    argnums = tuple(range(len(parameters)))
    total = nm.grad(level, argnums=argnums)(*parameters)
    size = nm.grad(density, argnums=argnums)(*parameters)
    for found, partial in zip(total, size, strict=True):
        np.testing.assert_allclose(
            found.numpy(), 0, atol=1e-7 * (1 + np.abs(partial.numpy()).max())
        )


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (D.StudentT, (9.0, 1.0, 0.5)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (D.Beta, (2.0, 3.0)),
                (D.FisherSnedecor, (6.0, 15.0)),
                (D.InverseGamma, (6.0, 2.0)),
            )
        ),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_gradients_of_draws_are_those_of_moments(kind, parameters):
    count, given = 20_000, f64(*parameters)

    def mean(p):
        return nm.mean(kind(*p).rsample((count,), key=KEY) ** 2)

    def exact(p):
        d = kind(*p)
        return d.variance + d.mean**2

    found, want = nm.grad(mean)(given).numpy(), nm.grad(exact)(given).numpy()
    np.testing.assert_allclose(found, want, rtol=0.15, atol=0.02)


def test_gradients_of_small_dirichlet_draws_are_finite():
    a = nm.asarray([0.001, 0.01, 1.0], requires_grad=True)
    x = D.Dirichlet(a).rsample((200,), key=KEY)
    nm.sum(x * nm.asarray([1.0, 2.0, 3.0])).backward()
    assert bool(nm.all(nm.isfinite(a.grad)))


def test_distributions_pass_through_transformations():
    d = D.Normal(nm.asarray([0.0, 1.0]), nm.asarray([1.0, 2.0]))
    x = nm.asarray([0.5, 0.5])
    want = d.log_prob(x).numpy()
    np.testing.assert_allclose(nm.jit(lambda d, x: d.log_prob(x))(d, x).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(nm.vmap(lambda d, x: d.log_prob(x))(d, x).numpy(), want, rtol=1e-6)
    slope = nm.grad(lambda d: nm.sum(d.log_prob(x)))(d)
    np.testing.assert_allclose(slope.loc.numpy(), [0.5, -0.125], rtol=1e-6)
    moved = nm.jit(lambda d: D.Normal(d.loc + 1, d.scale))(d)
    assert moved.mean.tolist() == [1.0, 2.0]
    keys = nm.random.split(KEY, 3)
    drawn = nm.vmap(lambda k: D.Gamma(2.0, 1.0).sample((4,), key=k))(keys)
    loop = [D.Gamma(2.0, 1.0).sample((4,), key=k).tolist() for k in keys]
    np.testing.assert_allclose(drawn.numpy(), loop, rtol=1e-6)
    whole = D.MultivariateNormal(nm.zeros((3, 2)), nm.eye(2))
    each = nm.vmap(lambda d: d.log_prob(nm.zeros(2)))(whole)
    np.testing.assert_allclose(each.numpy(), whole.log_prob(nm.zeros(2)).numpy())


def test_no_checks_inside_a_trace():
    f = nm.jit(lambda s: D.Normal(0.0, s).log_prob(1.0))
    assert np.isnan(f(nm.asarray(-1.0)).item())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.Normal(0.0, [1.0, -1.0]), r"Normal: scale .* > 0.0, .* -1.0 at \(1,\)"),
        (lambda: D.Normal(nm.nan, 1.0), "Normal: loc"),
        (lambda: D.Uniform(1.0, 0.0), "Uniform: low must be below high"),
        (lambda: D.Bernoulli(1.5), r"Bernoulli: probs .*\[0.0, 1.0\]"),
        (lambda: D.Bernoulli(), "probs or logits"),
        (lambda: D.Categorical(probs=[0.5], logits=[0.5]), "probs or logits.*2 were given"),
        (lambda: D.Categorical(probs=[0.5, -0.5]), "Categorical: probs"),
        (lambda: D.Binomial(2.5, 0.5), "Binomial: total_count .*integers"),
        (lambda: D.Dirichlet([1.0, 0.0]), "Dirichlet: concentration"),
        (lambda: D.MultivariateNormal([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), "positive_definite"),
        (lambda: D.Wishart(1.0, nm.eye(3)), "Wishart: df"),
        (lambda: D.LKJCholesky(1), "dim=1"),
        (lambda: D.Exponential(1.0).log_prob(-1.0), "Exponential.log_prob: the value"),
        (lambda: D.Poisson(1.0).log_prob(0.5), "integers >= 0"),
        (lambda: D.Categorical([0.5, 0.5]).log_prob(2), r"integers in \[0, 1\]"),
        (lambda: D.Normal(0.0, 1.0).icdf(1.5), "Normal.icdf"),
        (lambda: D.Multinomial(3, [0.5, 0.5]).log_prob([1.0, 1.0]), "add up to 3"),
        (lambda: D.Binomial(nm.asarray([1, 2]), 0.5).enumerate_support(), "from 1 to 2"),
    ],
)
def test_errors_of_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_checks_can_be_left_out():
    assert np.isnan(D.Normal(0.0, -1.0, validate_args=False).log_prob(0.0).item())
    assert D.Exponential(1.0, validate_args=False).log_prob(-1.0).item() == -np.inf
    D.Distribution.set_default_validate_args(False)
    try:
        D.Normal(0.0, -1.0)
    finally:
        D.Distribution.set_default_validate_args(True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: D.Normal(nm.zeros(2), nm.ones(3)),
        lambda: D.Dirichlet(1.0),
        lambda: D.MultivariateNormal([0.0, 0.0], nm.eye(3)),
        lambda: D.MultivariateNormal([0.0, 0.0], nm.eye(2)).log_prob(nm.zeros(3)),
        lambda: D.Independent(D.Normal(0.0, 1.0), 1),
        lambda: D.MixtureSameFamily(D.Categorical([1.0, 1.0]), D.Normal(nm.zeros(3), 1.0)),
        lambda: D.Normal(nm.zeros(2), 1.0).log_prob(nm.zeros(3)),
        lambda: transforms.CorrCholeskyTransform()(nm.zeros(4)),
    ],
)
def test_errors_of_shapes(make):
    with pytest.raises(ShapeError):
        make()


def test_what_has_no_rule_says_so():
    with pytest.raises(NotImplementedError, match=r"Cauchy and Gamma.*register_kl"):
        D.kl_divergence(D.Cauchy(0.0, 1.0), D.Gamma(1.0, 1.0))
    with pytest.raises(NotImplementedError, match="Poisson has no reparametrised draws"):
        D.Poisson(1.0).rsample()


@pytest.mark.parametrize(
    "d",
    [
        D.Bernoulli(logits=nm.zeros(2)),
        D.Dirichlet(nm.ones((2, 3))),
        D.Categorical(nm.ones((2, 3))),
        D.RelaxedOneHotCategorical(0.5, nm.ones((2, 3))),
        D.MultivariateNormal(nm.zeros((2, 3)), nm.eye(3)),
        D.Independent(D.Normal(nm.zeros((2, 3)), 1.0), 1),
        D.LogisticNormal(nm.zeros((2, 3)), 1.0),
        D.MixtureSameFamily(D.Categorical(nm.ones(2)), D.Normal(nm.zeros((2, 2)), 1.0)),
        D.Wishart(nm.asarray([5.0, 6.0]), nm.eye(2)),
    ],
    ids=lambda d: type(d).__name__,
)
def test_expand(d):
    wide = d.expand((4, 2))
    assert wide.batch_shape == (4, 2)
    assert wide.event_shape == d.event_shape
    x = wide.sample((3,), key=KEY)
    assert x.shape == (3, 4, 2, *d.event_shape)
    np.testing.assert_allclose(wide.log_prob(x).numpy(), d.log_prob(x).numpy(), rtol=1e-5)


def test_supports():
    assert D.Categorical(nm.ones((2, 3))).enumerate_support().shape == (3, 2)
    rows = D.OneHotCategorical(nm.ones((2, 3))).enumerate_support(expand=False)
    assert rows.shape == (3, 1, 3)
    mass = nm.exp(D.Binomial(4, f64(0.0, 0.3)).log_prob(nm.arange(5)[:, None]))
    np.testing.assert_allclose(nm.sum(mass, axis=0).numpy(), 1)
    assert D.Categorical([1.0, 1.0]).perplexity().item() == pytest.approx(2)


ONTO = {
    "positive": (constraints.positive, (3,)),
    "simplex": (constraints.simplex, (3,)),
    "interval": (constraints.interval(-1.0, 2.0), (3,)),
    "greater_than": (constraints.greater_than(3.0), (3,)),
    "less_than": (constraints.less_than(3.0), (3,)),
    "corr_cholesky": (constraints.corr_cholesky, (3,)),
    "lower_cholesky": (constraints.lower_cholesky, (3, 3)),
    "positive_definite": (constraints.positive_definite, (3, 3)),
    "unit_interval": (constraints.unit_interval, (3,)),
    "independent": (constraints.independent(constraints.positive, 1), (3,)),
    "cat": (constraints.cat([constraints.positive, constraints.real], -1, [1, 2]), (3,)),
}


@pytest.mark.parametrize("name", ONTO)
def test_maps_onto_constraints(name):
    constraint, shape = ONTO[name]
    x = nm.asarray(np.random.default_rng(0).normal(size=(2, *shape)))
    for registry in (D.biject_to, D.transform_to):
        t = registry(constraint)
        y = t(x)
        assert bool(nm.all(constraint.check(y)))
        np.testing.assert_allclose(t(t.inv(y)).numpy(), y.numpy(), rtol=1e-9, atol=1e-12)


BIJECTIONS = {
    "exp": (transforms.ExpTransform(), (3,)),
    "power": (
        transforms.ComposeTransform([transforms.ExpTransform(), transforms.PowerTransform(2.5)]),
        (3,),
    ),
    "sigmoid": (transforms.SigmoidTransform(), (3,)),
    "softplus": (transforms.SoftplusTransform(), (3,)),
    "tanh": (transforms.TanhTransform(), (3,)),
    "affine": (transforms.AffineTransform(1.0, -2.0, 1), (3,)),
    "cdf": (transforms.CumulativeDistributionTransform(D.Logistic(0.5, 2.0)), (3,)),
    "stick_breaking": (transforms.StickBreakingTransform(), (3,)),
    "corr_cholesky": (transforms.CorrCholeskyTransform(), (3,)),
    "stack": (
        transforms.StackTransform([transforms.ExpTransform(), transforms.TanhTransform()], -1),
        (2,),
    ),
}


@pytest.mark.parametrize("name", BIJECTIONS)
def test_jacobians(name):
    t, shape = BIJECTIONS[name]
    x = nm.asarray(np.random.default_rng(1).normal(size=shape))
    y = t(x)
    np.testing.assert_allclose(t.inv(y).numpy(), x.numpy(), rtol=1e-8)
    rows = nm.jacrev(lambda x: nm.reshape(t(x), -1))(x).numpy()
    if name == "stick_breaking":
        rows = rows[:-1]
    if name == "corr_cholesky":  # the entries below the diagonal
        rows = rows[[3, 6, 7]]
    want = np.linalg.slogdet(rows)[1]
    found = t.log_abs_det_jacobian(x, y)
    np.testing.assert_allclose(nm.sum(found).item(), want, rtol=1e-8)
    np.testing.assert_allclose(t.inv.log_abs_det_jacobian(y, x).numpy(), -found.numpy())


def test_transformed():
    maps = [transforms.AffineTransform(0.3, 0.5), transforms.ExpTransform()]
    d, want = D.TransformedDistribution(D.Normal(f64(0.0), 1.0), maps), D.LogNormal(f64(0.3), 0.5)
    x = f64(0.2, 1.0, 3.0)
    for what in ("log_prob", "cdf"):
        np.testing.assert_allclose(getattr(d, what)(x).numpy(), getattr(want, what)(x).numpy())
    np.testing.assert_allclose(d.icdf(d.cdf(x)).numpy(), x.numpy())
    falling = D.TransformedDistribution(D.Normal(f64(0.0), 1.0), transforms.AffineTransform(0, -1))
    np.testing.assert_allclose(falling.cdf(f64(1.0)).numpy(), D.Normal(0.0, 1.0).cdf(1.0).numpy())
    flow = D.TransformedDistribution(
        D.Normal(nm.zeros((4, 3)), 1.0), D.biject_to(constraints.simplex)
    )
    assert (flow.batch_shape, flow.event_shape) == ((4,), (4,))
    assert flow.log_prob(flow.sample(key=KEY)).shape == (4,)


def test_far_tails_of_the_truncated_normal():
    d = D.TruncatedNormal(0.0, 1.0, nm.asarray([8.0, 20.0, -nm.inf]), nm.asarray([9, nm.inf, -20]))
    np.testing.assert_allclose(d.mean.numpy(), [8.1213, 20.04975, -20.04975], rtol=1e-4)
    x = d.sample((4000,), key=KEY).numpy()
    np.testing.assert_allclose(x.mean(0), [8.1213, 20.04975, -20.04975], rtol=1e-3)


def test_numbers_and_lists_follow_tensors_to_their_device():
    p = nm.asarray([0.3, 0.5], device="reference")
    key = nm.random.key(0, device="reference")
    made = [
        D.Normal(p, 1.0).sample((2,), key=key),
        D.Normal(0.0, p).log_prob([1.0, 2.0]),
        D.Normal(0.0, p).icdf(0.5),
        D.Geometric(p).log_prob(3),
        D.Categorical(p).log_prob([0, 1]),
        D.kl_divergence(D.Normal(0.0, p), D.Normal(0.0, 1.0)),
    ]
    assert {x.device.name for x in made} == {"reference"}
