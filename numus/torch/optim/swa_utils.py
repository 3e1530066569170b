"""`torch.optim.swa_utils`: averages of weights."""

# ruff: noqa: F403
from numus.optim.swa_utils import *
