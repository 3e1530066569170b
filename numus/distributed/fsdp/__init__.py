"""Fully sharded data parallelism (ZeRO stage 3): see `sharded.py`."""

from numus.distributed.fsdp.sharded import *  # noqa: F403
from numus.distributed.fsdp.units import *  # noqa: F403
