"""`torch.optim.lr_scheduler`: schedules of learning rates."""

# ruff: noqa: F403
from numus.optim.lr_scheduler import *
from numus.optim.lr_scheduler import LRScheduler as _LRScheduler  # noqa: F401
