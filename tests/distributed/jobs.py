"""Jobs of several ranks in processes of their own, started as torchrun starts them."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def require_mpich():
    """Skip a module unless mpi4py is there, with an MPI that takes part without an mpiexec."""
    mpi4py = pytest.importorskip("mpi4py")
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"mpi4py finds no MPI: {error}", allow_module_level=True)
    name = MPI.Get_library_version()
    if not any(word in name for word in ("MPICH", "Intel", "MVAPICH", "CRAY")):
        pytest.skip(
            f"ranks without mpiexec need an MPI like MPICH, not {name.split(',')[0]}",
            allow_module_level=True,
        )


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(size, script, *args, **environment):
    """The processes of a job, by rank."""
    port = str(free_port())
    variables = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    quiet = {"NUMUS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **environment}
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **variables, **quiet, "RANK": str(r), "LOCAL_RANK": str(r)},
        )
        for r in range(size)
    ]


def finish(processes, seconds=120):
    """Exit codes and outputs by rank."""
    until = time.monotonic() + seconds
    found = []
    try:
        for process in processes:
            output = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
            found.append((process.returncode, output))
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        shown = "\n".join(p.communicate()[0][-2000:] for p in processes)
        raise AssertionError(f"hangs:\n{shown}") from None
    return found


def run(size, script, *args, seconds=120, **environment):
    """The outputs of a job that ends well."""
    found = finish(start(size, script, *args, **environment), seconds)
    for rank, (code, output) in enumerate(found):
        assert code == 0, f"rank {rank} ended with {code}:\n{output[-4000:]}"
    return [output for _, output in found]
