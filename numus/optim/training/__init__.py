"""Trainer: steps, epochs, and what a training leaves behind."""

# ruff: noqa: F403
from numus.optim.training.callbacks import *
from numus.optim.training.strategies import *
from numus.optim.training.trainer import *
