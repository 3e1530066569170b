"""The world and its groups: which processes work together, and how bytes travel between them."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, cast

from numus.distributed.environment import Environment, detect
from numus.distributed.transport import Agreement, Buffer, Transport
from numus.distributed.transports.nodes import grid, node_names
from numus.distributed.watch import Process, Watch
from numus.errors import DistributedError
from numus.functions.inspect import get_num_threads, set_num_threads
from numus.runtime.devices import Device, device

__all__ = [
    "Group",
    "finalize",
    "init",
    "is_initialized",
    "local_rank",
    "new_group",
    "rank",
    "world",
    "world_size",
]

_BACKENDS = ("nccl", "mpi")


class Group:
    """Ranks that take part in collectives together.

    Args:
        ranks: their ranks in the world, in the order of their ranks in the group.
        rank: that of this process in the group; -1 where it is no member.
        communicator: of MPI; None in a world of one process.
    """

    def __init__(self, ranks: tuple[int, ...], rank: int, communicator: Any, name: str) -> None:
        self.ranks = ranks
        self.rank = rank
        self.name = name
        self._communicator = communicator
        self.calls: dict[Any, Any] = {}  # see calls.collective
        self._transports: dict[str, Transport | None] = {}

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"Group({self.name}, rank {self.rank} of {self.size})"

    def __str__(self) -> str:
        return self.name

    def transport(self, device: Device) -> Transport | None:
        """What carries tensors of a device between the ranks of this group; None: it has one."""
        kind = device.name if device.kind == "cuda" else "host"
        try:
            return self._transports[kind]
        except KeyError:
            return self._transports.setdefault(kind, self._new_transport(device))

    def _new_transport(self, device: Device) -> Transport | None:
        if self.rank < 0:
            raise DistributedError(
                f"rank {rank()} is no member of {self.name}: it cannot take part in its collectives"
            )
        if device.kind == "cuda" and _state.backend != "mpi":
            nccl = self._nccl(device)
            if nccl is not None:
                return nccl
        if self.size == 1:
            return None
        flat = _new_mpi(self._communicator, self.ranks)
        ranks = grid([_state.nodes[r] for r in self.ranks])
        if ranks is None:
            return cast("Transport", flat)
        from numus.distributed.transports.hierarchical import HierarchicalTransport

        return HierarchicalTransport(flat, ranks, self, _new_mpi)

    def _nccl(self, device: Device) -> Transport | None:
        """NCCL, where it is there and asked for or of use."""
        if self.size == 1 and _state.backend != "nccl":
            return None
        from numus.distributed import nccl

        if not nccl.is_available():
            if _state.backend == "nccl":
                raise DistributedError(
                    "init(backend='nccl'): libnccl could not be loaded; install the wheel "
                    "nvidia-nccl-cu13 (or -cu12), or leave the backend out: MPI carries then"
                )
            return None
        if self.size > 1:
            agree(f"NCCL of {self}", self)  # ranks that are not there are found out here
            shared = nccl.ranks_that_share(device, self, self._communicator)
            if shared and _state.backend == "nccl":
                raise DistributedError(
                    f"init(backend='nccl'): ranks {shared} have the same GPU, and NCCL takes one "
                    "rank for each; choose the device by nm.distributed.local_rank(), or leave the "
                    "backend out: MPI carries then"
                )
            if shared:
                return None
        return nccl.NcclTransport(self, device, self._communicator, _state.watch, agree)


def _new_mpi(communicator: Any, ranks: tuple[int, ...]) -> Any:
    """The transport of a communicator, closed when this process leaves the world."""
    from numus.distributed.mpi import MpiTransport

    assert _state.watch is not None
    found = MpiTransport(communicator, _state.notes, ranks, _state.watch)
    _state.transports.append(found)
    return found


class _State:
    """The world of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: Group | None = None
        self.environment = Environment("alone")
        self.watch: Watch | None = None
        self.notes: Any = None
        self.backend: str | None = None
        self.server: Any = None  # of PMI, on rank 0
        self.groups = 0
        self.nodes: list[str] = []  # of the ranks
        self.finalizes = False  # MPI is ours to finalise
        self.transports: list[Any] = []  # with requests that MPI wants back


_state = _State()


def init(*, timeout: float = 600.0, backend: str | None = None) -> Group:
    """Join the other processes of this job; gives the group of all of them.

    Who the others are is found out: `mpiexec` and `srun` are asked through MPI (mpi4py), torchrun's
    variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are read, and without either the world is
    this process alone. Collectives that come before it call it.

    Args:
        timeout: seconds that ranks wait for each other in a collective, before all of them get an
            error that names those that did not come.
        backend: "nccl" or "mpi" for tensors on NVIDIA's GPUs; by default NCCL where it is
            installed. Tensors of other devices travel by MPI.

    >>> nm.distributed.init()
    Group(world, rank 0 of 1)
    """
    if backend not in (None, *_BACKENDS):
        raise ValueError(f"init: backend {backend!r} must be one of {', '.join(_BACKENDS)}")
    if not timeout > 0:
        raise ValueError(f"init: timeout has to be a number of seconds above 0, not {timeout!r}")
    with _state.lock:
        if _state.world is None:
            _state.environment = environment = detect()
            _state.backend = backend
            if environment.launcher == "alone":
                _state.world = Group((0,), 0, None, "world")
            else:
                _state.world = _join(environment, timeout)
        elif backend not in (None, _state.backend):
            raise DistributedError(
                f"init: the world was made with backend {_state.backend!r} before; call "
                "nm.distributed.finalize() first, or init once"
            )
        if _state.watch is not None:
            _state.watch.timeout = timeout
        return _state.world


def _join(environment: Environment, timeout: float) -> Group:
    """The world of an MPI job."""
    try:
        import mpi4py
    except ImportError as error:
        raise DistributedError(
            f"init: this process is rank {environment.rank} of {environment.world_size}, and "
            "ranks talk by MPI, for which mpi4py is missing: pip install 'numus[mpi]' (and mpich, "
            "where the machine has no MPI of its own)"
        ) from error
    if "mpi4py.MPI" not in sys.modules:
        # finalised by us: a rank that fails must not wait for the others there
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
    if environment.launcher == "variables" and not _is_running():
        from numus.distributed.pmi import wire_up

        _state.server = wire_up(
            environment.rank, environment.world_size, environment.address, timeout
        )
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _state.finalizes = True
    whole = MPI.COMM_WORLD
    if whole.size != environment.world_size:
        raise DistributedError(
            f"init: the launcher speaks of {environment.world_size} processes, MPI knows "
            f"{whole.size}: mpi4py uses another MPI ({MPI.Get_library_version().split()[0]}) than "
            "the launcher; start by the mpiexec of that one, or by numus launch"
        )
    communicator, _state.notes = whole.Dup(), whole.Dup()
    processes = [Process(*p) for p in whole.allgather(tuple(Process.this()))]
    _state.nodes = node_names([p.host for p in processes])
    _state.watch = Watch(_state.notes, processes, timeout)
    _share_cores(sum(p.host == processes[whole.rank].host for p in processes))
    _watch_exceptions(_state.watch)
    atexit.register(finalize)
    return Group(tuple(range(whole.size)), whole.rank, communicator, "world")


def _share_cores(ranks: int) -> None:
    """Give kernels a part of the cores where the ranks of a machine have all of them: threads of
    ranks that take each other's cores wait for each other. A chosen number stays, and so does what
    a launcher has bound this rank to."""
    cores = os.cpu_count() or 1
    bound = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) < cores
    chosen = "NUMUS_NUM_THREADS" in os.environ or get_num_threads() != cores
    if ranks > 1 and not bound and not chosen:
        set_num_threads(max(1, cores // ranks))


def _is_running() -> bool:
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def _watch_exceptions(watch: Watch) -> None:
    """An exception that ends this rank is told to the others."""
    before = sys.excepthook

    @functools.wraps(before)
    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        before(kind, error, trace)
        watch.leave(error)

    sys.excepthook = hook


def finalize() -> None:
    """Leave the world; done at exit. Waits for nobody where a rank has failed."""
    with _state.lock:
        _state.world = None
        watch, _state.watch = _state.watch, None
        transports, _state.transports = _state.transports, []
        if watch is None or not _state.finalizes:
            return
        _state.finalizes = False
        if watch.failure is None:
            from mpi4py import MPI

            for transport in transports:
                transport.close()
            MPI.Finalize()
        atexit.unregister(finalize)


def is_initialized() -> bool:
    """Whether this process has joined a world.

    >>> nm.distributed.init().size
    1
    >>> nm.distributed.is_initialized()
    True
    """
    return _state.world is not None


def world() -> Group:
    """The group of all processes; joins them first where that has not been done.

    >>> nm.distributed.world().ranks
    (0,)
    """
    found = _state.world
    return init() if found is None else found


def rank(group: Group | None = None) -> int:
    """The rank of this process, in the world or a group; -1 where it is no member.

    >>> nm.distributed.rank()
    0
    """
    return (world() if group is None else group).rank


def world_size(group: Group | None = None) -> int:
    """The number of processes in the world, or in a group.

    >>> nm.distributed.world_size()
    1
    """
    return (world() if group is None else group).size


def local_rank() -> int:
    """The rank among the processes of this machine: the number of the GPU to use, say.

    >>> nm.distributed.local_rank()
    0
    """
    world()
    return _state.environment.local_rank


def agree(what: str, group: Group) -> None:
    """Wait for all ranks of a group to come to the same place."""
    transport = group.transport(device("cpu"))
    if transport is not None:
        transport.start(Agreement(what, group), Buffer(0, 0), Buffer(0, 0)).wait()


def new_group(ranks: Iterable[int]) -> Group:
    """A group of some ranks of the world, in this order. All ranks of the world call it, with the
    same ranks, also those that are no members.

    >>> nm.distributed.new_group([0]).size
    1
    """
    chosen = tuple(int(r) for r in ranks)
    whole = world()
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"new_group: takes different ranks, at least one, not {list(chosen)}")
    if not all(0 <= r < whole.size for r in chosen):
        raise ValueError(f"new_group: {list(chosen)}: ranks are 0 to {whole.size - 1} here")
    agree(f"new_group({list(chosen)})", whole)
    _state.groups += 1
    name = f"group {_state.groups} (ranks {', '.join(map(str, chosen))})"
    mine = chosen.index(whole.rank) if whole.rank in chosen else -1
    communicator = None
    if whole._communicator is not None:
        from mpi4py import MPI

        members = whole._communicator.Get_group().Incl(list(chosen))
        communicator = whole._communicator.Create(members)
        if communicator == MPI.COMM_NULL:
            communicator = None
    return Group(chosen, mine, communicator, name)


def split(color: int, key: int, name: str) -> Group:
    """The group of those that call it with the same colour, ordered by key; all ranks call it."""
    whole = world()
    agree(f"split into {name}", whole)
    if whole._communicator is None:
        return Group((0,), 0, None, name)
    communicator = whole._communicator.Split(color, key)
    ranks = tuple(communicator.allgather(whole.rank))
    return Group(ranks, communicator.rank, communicator, name)
