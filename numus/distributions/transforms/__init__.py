"""Invertible maps of values: `TransformedDistribution` draws through them."""

# ruff: noqa: F403
from numus.distributions.transforms import base, numbers, vectors
from numus.distributions.transforms.base import *
from numus.distributions.transforms.numbers import *
from numus.distributions.transforms.vectors import *

__all__ = [*base.__all__, *numbers.__all__, *vectors.__all__]
