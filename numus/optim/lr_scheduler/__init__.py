"""Learning rates that change as training goes on.

A scheduler sets the `lr` of its optimiser's groups, once when it is made and then at every
`step()`, after `optimizer.step()`. Each is a function of its count of steps (`last_epoch`) and of
what the rates are now, so schedulers can be chained.
"""

# ruff: noqa: F403
from numus.optim.lr_scheduler.base import *
from numus.optim.lr_scheduler.cycles import *
from numus.optim.lr_scheduler.decays import *
