"""Checkpoints that all ranks write together: see `saving.py` and `loading.py`."""

from numus.distributed.checkpoint.loading import *  # noqa: F403
from numus.distributed.checkpoint.saving import *  # noqa: F403
