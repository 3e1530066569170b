"""What is done to parameters, gradients and sequences besides computing with them."""

# ruff: noqa: F401, F403
from numus.nn.utils import parametrizations, parametrize, rnn
from numus.nn.utils.parametrizations import *
from numus.nn.utils.vectors import *
