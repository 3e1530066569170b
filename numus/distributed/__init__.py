"""Several processes that compute together: groups, collectives, and training on top of them.

One process per device (SPMD): each runs the same program on its part of the data. MPI and NCCL
carry the bytes; see docs/distributed.md.
"""

import importlib
from typing import Any

from numus.distributed.checkpoint import *  # noqa: F403
from numus.distributed.collectives import *  # noqa: F403
from numus.distributed.data_parallel import *  # noqa: F403
from numus.distributed.fsdp import *  # noqa: F403
from numus.distributed.groups import *  # noqa: F403
from numus.distributed.layers import *  # noqa: F403
from numus.distributed.mesh import *  # noqa: F403
from numus.distributed.strategies import *  # noqa: F403
from numus.distributed.tracing import *  # noqa: F403
from numus.distributed.work import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name in ("parallel", "ray"):  # imported when they are asked for: few jobs need them
        return importlib.import_module(f"numus.distributed.{name}")
    raise AttributeError(f"module 'numus.distributed' has no attribute {name!r}")
