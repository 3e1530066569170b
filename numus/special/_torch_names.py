"""Special functions at the top of numus and as methods of Tensor, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from numus.functions._base import method
from numus.functions.api import clip
from numus.special import gammainc, gammaincc, i0, multigammaln, xlogy
from numus.special import logit as _logit
from numus.special import polygamma as _polygamma
from numus.tensor import ArrayLike, Tensor

__all__ = ["i0", "igamma", "igammac", "logit", "mvlgamma", "polygamma", "xlogy"]

igamma, igammac, mvlgamma, polygamma = gammainc, gammaincc, multigammaln, _polygamma
for _name in ("i0", "igamma", "igammac", "mvlgamma", "xlogy"):
    method(_name)(globals()[_name])


@method()
def logit(x: ArrayLike, /, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of `sigmoid`.

    Args:
        eps: x is clamped to between eps and 1 - eps.

    >>> nm.logit(nm.asarray(0.5)).item()
    0.0
    """
    return _logit(x if eps is None else clip(x, eps, 1 - eps))


@method("polygamma")
def _polygamma_method(self: Tensor, n: Any) -> Tensor:
    """The n-th derivative of the digamma function."""
    return _polygamma(n, self)
