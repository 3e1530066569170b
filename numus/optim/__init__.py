"""Optimisers and what belongs to training: schedules, clipping, averages, mixed precision.

Names, arguments and state dicts are PyTorch's.
"""

# ruff: noqa: F401, F403
from numus.optim import lr_scheduler, swa_utils
from numus.optim.adam import *
from numus.optim.adaptive import *
from numus.optim.averaging import *
from numus.optim.gradients import *
from numus.optim.lbfgs import *
from numus.optim.lr_scheduler import *
from numus.optim.optimizer import *
from numus.optim.sgd import *
from numus.optim.training import *
