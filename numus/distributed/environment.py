"""Detection of the launcher: who started this process, as which rank of how many.

Read from the variables that launchers set: MPICH, Intel MPI (PMI), Open MPI (PMIx), Slurm,
torchrun. `nm.distributed.ray` sets torchrun's in its workers. A process that none of them started
is alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from numus.errors import DistributedError


@dataclass(frozen=True)
class Environment:
    """What the launcher says of this process.

    Args:
        launcher: "mpi" (an MPI that wires itself up), "variables" (torchrun's RANK, WORLD_SIZE,
            MASTER_ADDR, MASTER_PORT) or "alone".
        local_rank: the rank within this machine; it chooses the device.
        address: where rank 0 listens, host and port, under "variables".
    """

    launcher: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    address: tuple[str, int] = ("", 0)


# Rank, size and local rank of launchers that an MPI library understands by itself.
_MPI = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH (hydra), Intel MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def detect(variables: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process, or one that these variables describe.

    torchrun's variables come first: a job that was started inside of a Slurm allocation by torchrun
    has Slurm's as well, which speak of torchrun itself.

    >>> detect({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).rank
    1
    """
    given = os.environ if variables is None else variables
    if all(name in given for name in _TORCHRUN):
        numbers = _numbers(given, "RANK", "WORLD_SIZE", "MASTER_PORT")
        rank, size, port = numbers
        _check(rank, size, "RANK", "WORLD_SIZE")
        local = int(given.get("LOCAL_RANK", rank))
        return Environment("variables", rank, size, local, (given["MASTER_ADDR"], port))
    for names in _MPI:
        # a shell inside of an allocation has Slurm's variables too, but no step that srun started
        if names[0] not in given or names[1] not in given:
            continue
        if names[0].startswith("SLURM") and "SLURM_STEP_ID" not in given:
            continue
        rank, size = _numbers(given, *names[:2])
        _check(rank, size, *names[:2])
        return Environment("mpi", rank, size, int(given.get(names[2], rank)))
    return Environment("alone")


def _numbers(given: Mapping[str, str], *names: str) -> list[int]:
    try:
        return [int(given[name]) for name in names]
    except ValueError:
        shown = ", ".join(f"{name}={given[name]!r}" for name in names)
        raise DistributedError(f"init: {shown}: each of them has to be a whole number") from None


def _check(rank: int, size: int, *names: str) -> None:
    if not 0 <= rank < size:
        raise DistributedError(
            f"init: {names[0]}={rank} is no rank of {names[1]}={size} processes (0 to {size - 1})"
        )
