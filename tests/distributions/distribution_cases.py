"""Distributions with random parameters and values, for both numus and PyTorch.

`tests/fixtures/make_distribution_fixtures.py` stores what PyTorch makes of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A class of distributions, the kinds of its parameters, and the kind of its values."""

    kind: str
    parameters: dict[str, Any]
    value: str
    tag: str = ""

    @property
    def name(self) -> str:
        return self.kind + self.tag

    def drawn(self) -> tuple[dict[str, Any], np.ndarray]:
        """The parameters, batches of 3, and as many values."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        made = {n: KINDS[p](rng) if isinstance(p, str) else p for n, p in self.parameters.items()}
        return made, KINDS[self.value](rng)


def _definite(rng: np.random.Generator) -> np.ndarray:
    a = rng.normal(size=(3, 4, 4))
    return a @ a.swapaxes(-1, -2) + 4 * np.eye(4)


def _correlation_factor(rng: np.random.Generator) -> np.ndarray:
    a = np.tril(rng.normal(size=(3, 4, 4)))
    a[:, range(4), range(4)] = np.abs(a[:, range(4), range(4)]) + 0.1
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


KINDS = {
    "real": lambda rng: rng.normal(size=3),
    "positive": lambda rng: rng.gamma(3.0, 0.6, size=3) + 0.1,
    "large": lambda rng: rng.gamma(3.0, 1.0, size=3) + 4.5,
    "fraction": lambda rng: rng.uniform(0.05, 0.95, size=3),
    "below": lambda rng: rng.uniform(-3.0, -2.0, size=3),
    "above": lambda rng: rng.uniform(2.0, 3.0, size=3),
    "bits": lambda rng: np.array([0.0, 1.0, 1.0]),
    "counts": lambda rng: rng.integers(0, 8, size=3).astype(float),
    "trials": lambda rng: rng.integers(8, 20, size=3).astype(float),
    "angle": lambda rng: rng.uniform(-3.0, 3.0, size=3),
    "vector": lambda rng: rng.normal(size=(3, 4)),
    "positives": lambda rng: rng.gamma(3.0, 0.6, size=(3, 4)) + 0.1,
    "shares": lambda rng: rng.dirichlet(np.full(4, 2.0), size=3),
    "three": lambda rng: rng.normal(size=(3, 3)),
    "threes": lambda rng: rng.gamma(3.0, 0.6, size=(3, 3)) + 0.1,
    "class": lambda rng: rng.integers(0, 4, size=3),
    "one_hot": lambda rng: np.eye(4)[rng.integers(0, 4, size=3)],
    "four_trials": lambda rng: rng.multinomial(6, [0.1, 0.2, 0.3, 0.4], size=3).astype(float),
    "factor": lambda rng: rng.normal(size=(3, 4, 2)),
    "definite": _definite,
    "tril": lambda rng: np.linalg.cholesky(_definite(rng)),
    "correlation": _correlation_factor,
}

CASES = [
    Case("Bernoulli", {"probs": "fraction"}, "bits"),
    Case("Bernoulli", {"logits": "real"}, "bits", "-logits"),
    Case("Beta", {"concentration1": "positive", "concentration0": "positive"}, "fraction"),
    Case("Binomial", {"total_count": "trials", "probs": "fraction"}, "counts"),
    Case("Binomial", {"total_count": 9, "logits": "real"}, "counts", "-logits"),
    Case("Categorical", {"probs": "shares"}, "class"),
    Case("Categorical", {"logits": "vector"}, "class", "-logits"),
    Case("Cauchy", {"loc": "real", "scale": "positive"}, "real"),
    Case("Chi2", {"df": "large"}, "positive"),
    Case("ContinuousBernoulli", {"probs": "fraction"}, "fraction"),
    Case("Dirichlet", {"concentration": "positives"}, "shares"),
    Case("Exponential", {"rate": "positive"}, "positive"),
    Case("FisherSnedecor", {"df1": "large", "df2": "large"}, "positive"),
    Case("Gamma", {"concentration": "positive", "rate": "positive"}, "positive"),
    Case("GeneralizedPareto", {"loc": "below", "scale": "positive", "concentration": 0.2}, "real"),
    Case("Geometric", {"probs": "fraction"}, "counts"),
    Case("Gumbel", {"loc": "real", "scale": "positive"}, "real"),
    Case("HalfCauchy", {"scale": "positive"}, "positive"),
    Case("HalfNormal", {"scale": "positive"}, "positive"),
    Case("InverseGamma", {"concentration": "large", "rate": "positive"}, "positive"),
    Case("Kumaraswamy", {"concentration1": "positive", "concentration0": "positive"}, "fraction"),
    Case("LKJCholesky", {"dim": 4, "concentration": "positive"}, "correlation"),
    Case("Laplace", {"loc": "real", "scale": "positive"}, "real"),
    Case("LogNormal", {"loc": "real", "scale": "positive"}, "positive"),
    Case("LogisticNormal", {"loc": "three", "scale": "threes"}, "shares"),
    Case(
        "LowRankMultivariateNormal",
        {"loc": "vector", "cov_factor": "factor", "cov_diag": "positives"},
        "vector",
    ),
    Case("LogitRelaxedBernoulli", {"temperature": 0.7, "probs": "fraction"}, "real"),
    Case("Multinomial", {"total_count": 6, "probs": "shares"}, "four_trials"),
    Case("MultivariateNormal", {"loc": "vector", "covariance_matrix": "definite"}, "vector"),
    Case("MultivariateNormal", {"loc": "vector", "precision_matrix": "definite"}, "vector", "-p"),
    Case("MultivariateNormal", {"loc": "vector", "scale_tril": "tril"}, "vector", "-l"),
    Case("NegativeBinomial", {"total_count": "positive", "probs": "fraction"}, "counts"),
    Case("Normal", {"loc": "real", "scale": "positive"}, "real"),
    Case("OneHotCategorical", {"logits": "vector"}, "one_hot"),
    Case("OneHotCategoricalStraightThrough", {"probs": "shares"}, "one_hot"),
    Case("Pareto", {"scale": "fraction", "alpha": "large"}, "above"),
    Case("Poisson", {"rate": "positive"}, "counts"),
    Case("RelaxedBernoulli", {"temperature": 0.7, "logits": "real"}, "fraction"),
    Case("RelaxedOneHotCategorical", {"temperature": 0.7, "probs": "shares"}, "shares"),
    Case("StudentT", {"df": "large", "loc": "real", "scale": "positive"}, "real"),
    Case("Uniform", {"low": "below", "high": "above"}, "real"),
    Case("VonMises", {"loc": "real", "concentration": "positive"}, "angle"),
    Case("Weibull", {"scale": "positive", "concentration": "positive"}, "positive"),
    Case("Wishart", {"df": "large", "covariance_matrix": "definite"}, "definite"),
]

# the pairs whose divergence PyTorch knows, by the names of cases
PAIRS = """
Bernoulli Bernoulli; Bernoulli-logits Bernoulli-logits; Bernoulli Poisson; Beta Beta;
Beta ContinuousBernoulli; Beta Exponential; Beta Gamma; Beta Normal; Beta Pareto; Beta Uniform;
Binomial Binomial; Categorical Categorical; Categorical-logits Categorical-logits; Cauchy Cauchy;
ContinuousBernoulli ContinuousBernoulli; ContinuousBernoulli Exponential; Chi2 Gamma;
ContinuousBernoulli Normal; ContinuousBernoulli Pareto; ContinuousBernoulli Uniform;
Dirichlet Dirichlet; Exponential Exponential; Exponential Gamma; Exponential Gumbel;
Exponential Normal; Exponential Beta; Gamma Gamma; Gamma Exponential; Gamma Gumbel; Gamma Normal;
Gamma Uniform; Geometric Geometric; Gumbel Gumbel; Gumbel Normal; Gumbel Exponential;
HalfNormal HalfNormal; Laplace Laplace; Laplace Normal; Laplace Gamma; LogNormal LogNormal;
LowRankMultivariateNormal LowRankMultivariateNormal; LowRankMultivariateNormal MultivariateNormal;
MultivariateNormal LowRankMultivariateNormal; MultivariateNormal MultivariateNormal-l;
Normal Normal; Normal Gumbel; Normal Laplace; Normal Pareto; OneHotCategorical OneHotCategorical;
Pareto Pareto; Pareto Exponential; Pareto Gamma; Pareto Normal; Pareto Uniform; Poisson Poisson;
Poisson Bernoulli; Poisson Binomial; Uniform Uniform; Uniform Beta; Uniform ContinuousBernoulli;
Uniform Exponential; Uniform Gamma; Uniform Gumbel; Uniform Normal; Uniform Pareto
"""
PAIRS = [tuple(pair.split()) for pair in PAIRS.split(";")]


def second(case: Case) -> dict[str, Any]:
    """Other parameters of the same kinds."""
    return Case(case.kind, case.parameters, case.value, f"{case.tag}-second").drawn()[0]
