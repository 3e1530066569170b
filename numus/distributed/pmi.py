"""Wire-up of an MPI job without mpiexec, by PMI, version 1.

MPI libraries of MPICH's family (MPICH, Intel MPI, MVAPICH) find each other through PMI, a protocol
of lines of text: a process puts its address under a key, waits at a barrier, and gets the others'.
Where a launcher only says rank, size and an address (torchrun's variables, Ray), rank 0 serves it
there; from then on it is an MPI job like any other, with shared memory within a machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from numus.errors import DistributedError

Server = subprocess.Popen[str]


def serve(host: str, port: int, size: int) -> tuple[Server, int]:
    """A server in a process of its own (MPI holds Python's lock while it starts) and its port."""
    script = Path(__file__).with_name("pmi_server.py")
    server = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), host, str(port), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    kind, _, what = server.stdout.readline().strip().partition(" ")
    if kind != "port":
        server.kill()
        server.communicate()
        raise DistributedError(
            f"init: rank 0 cannot listen at port {port} (MASTER_PORT): {what}; choose one that is "
            "free"
        )
    return server, int(what)


def wire_up(rank: int, size: int, address: tuple[str, int], timeout: float) -> Server | None:
    """Prepare this process for `MPI_Init`: the server on rank 0, the way to it on the others."""
    host, port = address
    server = serve("", port, size)[0] if rank == 0 else None
    _wait_for(host, port, rank, timeout)
    os.environ["PMI_PORT"] = f"{socket.gethostbyname(host)}:{port}"
    os.environ["PMI_ID"] = str(rank)
    for name in ("PMI_RANK", "PMI_SIZE", "PMI_FD"):  # of a launcher further out
        os.environ.pop(name, None)
    return server


def _wait_for(host: str, port: int, rank: int, timeout: float) -> None:
    """Wait until rank 0 listens: the library itself tries only once."""
    until = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, port), timeout=5):
                return
        except OSError as error:
            if time.monotonic() > until:
                raise DistributedError(
                    f"init: rank {rank} could not reach rank 0 at {host}:{port} (MASTER_ADDR, "
                    f"MASTER_PORT) within {timeout:g} s: {error}"
                ) from error
            time.sleep(0.05)
