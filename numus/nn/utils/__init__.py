"""Clipping and flattening of parameters, parametrisations, and packed sequences."""

# ruff: noqa: F401, F403
from numus.nn.utils import parametrizations, parametrize, rnn
from numus.nn.utils.parametrizations import *
from numus.nn.utils.vectors import *
