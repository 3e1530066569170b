"""Densities, their gradients, moments and divergences against PyTorch's recorded results."""

from pathlib import Path

import numpy as np
import pytest
from distribution_cases import CASES, PAIRS, second

import numus as nm
from numus import distributions

STORED = np.load(Path(__file__).parent.parent / "fixtures" / "distributions.npz")
BY_NAME = {c.name: c for c in CASES}
OTHERWISE = {"Kumaraswamy/mode"}  # PyTorch's is NaN
# PyTorch's Bessel functions are polynomials of float32
LOOSE = {"VonMises": 1e-6}
SMALL = {
    "Beta", "Binomial", "Categorical", "Gamma", "LowRankMultivariateNormal", "NegativeBinomial",
    "StudentT", "Wishart",
}  # fmt: skip


def made(case, parameters, dtype=np.float64):
    given = {
        n: nm.asarray(x.astype(dtype), requires_grad=n != "total_count")
        if isinstance(x, np.ndarray)
        else x
        for n, x in parameters.items()
    }
    return getattr(distributions, case.kind)(**given), given


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_density_and_moments(case):
    parameters, value = case.drawn()
    d, given = made(case, parameters)
    log_p = d.log_prob(nm.asarray(value))
    near = LOOSE.get(case.name, 1e-9)
    np.testing.assert_allclose(log_p.numpy(), STORED[f"{case.name}/log_prob"], rtol=near, atol=near)
    nm.sum(log_p).backward()
    for name, leaf in given.items():
        if f"{case.name}/grad/{name}" in STORED and isinstance(leaf, nm.Tensor):
            want = STORED[f"{case.name}/grad/{name}"]
            np.testing.assert_allclose(
                leaf.grad.numpy(), want, rtol=100 * near, atol=1e-7, err_msg=name
            )
    for what in ("mean", "variance", "mode", "entropy", "cdf"):
        key = f"{case.name}/{what}"
        if key in STORED and key not in OTHERWISE:
            got = getattr(d, what)
            got = got if isinstance(got, nm.Tensor) else got(*([value] if what == "cdf" else []))
            np.testing.assert_allclose(
                got.numpy(), STORED[key], rtol=100 * near, atol=1e-8, err_msg=what
            )


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SMALL], ids=lambda c: c.name)
def test_density_in_float32(case):
    parameters, value = case.drawn()
    d, _ = made(case, parameters, np.float32)
    with nm.no_grad():
        given = value if value.dtype.kind == "i" else value.astype(np.float32)
        log_p = d.log_prob(nm.asarray(given))
    assert log_p.dtype is nm.float32
    want = STORED[f"{case.name}/log_prob"]
    np.testing.assert_allclose(log_p.numpy(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("first", "other"), PAIRS)
def test_divergence(first, other):
    p, q = BY_NAME[first], BY_NAME[other]
    d, e = made(p, p.drawn()[0])[0], made(q, second(q))[0]
    if first == "Binomial":
        e = distributions.Binomial(d.total_count, e.probs)
    with nm.no_grad():
        got = distributions.kl_divergence(d, e).numpy()
    np.testing.assert_allclose(got, STORED[f"kl/{first}/{other}"], rtol=1e-7, atol=1e-9)
