"""Kullback and Leibler's divergence: rules for pairs of classes, the most specific one is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.distributions.distribution import Distribution
from numus.tensor import Tensor

__all__ = ["kl_divergence", "register_kl"]

Rule = Callable[[Any, Any], Tensor]
_RULES: dict[tuple[type, type], Rule] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Rule], Rule]:
    """Register a function of (p, q) as the divergence of two classes, and of theirs.

    >>> from numus.distributions import Normal, kl_divergence, register_kl
    >>> class Fixed(Normal):
    ...     "A normal distribution of one's own."
    >>> @register_kl(Fixed, Fixed)
    ... def fixed(p, q):
    ...     return nm.zeros(())
    >>> kl_divergence(Fixed(0.0, 1.0), Fixed(1.0, 1.0))
    tensor(0.)
    """
    for kind in (type_p, type_q):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"register_kl: {kind!r} is no class of distributions")

    def added(rule: Rule) -> Rule:
        _RULES[type_p, type_q] = rule
        return rule

    return added


def _rule(p: type, q: type) -> Rule | None:
    """That of the nearest classes: of p's ancestors first, then of q's."""
    for a in p.__mro__:
        for b in q.__mro__:
            if (a, b) in _RULES:
                return _RULES[a, b]
    return None


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The mean of log p(x) - log q(x) for x drawn from p.

    >>> d = nm.distributions
    >>> d.kl_divergence(d.Normal(0.0, 1.0), d.Normal(1.0, 1.0))
    tensor(0.5)
    """
    rule = _rule(type(p), type(q))
    if rule is None:
        raise NotImplementedError(
            f"kl_divergence: there is no rule for {type(p).__name__} and {type(q).__name__}; add "
            "one with nm.distributions.register_kl, or average p.log_prob(x) - q.log_prob(x) "
            "over draws x of p"
        )
    return rule(p, q)
