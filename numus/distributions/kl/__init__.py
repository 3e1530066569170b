"""Kullback and Leibler's divergence of pairs of distributions."""

from numus.distributions.kl import mixed as mixed
from numus.distributions.kl import same as same
from numus.distributions.kl import vectors as vectors
from numus.distributions.kl.registry import kl_divergence, register_kl

__all__ = ["kl_divergence", "register_kl"]
