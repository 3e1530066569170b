"""Layers and losses as functions, under PyTorch's names."""

# ruff: noqa: F403
from numus.nn.functional.activations import *
from numus.nn.functional.attention import *
from numus.nn.functional.classification import *
from numus.nn.functional.ctc import *
from numus.nn.functional.layers import *
from numus.nn.functional.metric import *
from numus.nn.functional.regression import *
from numus.nn.functional.windows import *
