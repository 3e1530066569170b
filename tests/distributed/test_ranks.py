"""Collectives between processes, against NumPy; and jobs that fail."""

import time

import jobs
import pytest

import numus as nm
from numus.distributed import groups
from numus.distributed.environment import detect
from numus.distributed.transports.nodes import grid, node_names
from numus.errors import DistributedError

jobs.require_mpich()


def test_two_ranks():
    jobs.run(2, "rank_checks.py")


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks(size):
    jobs.run(size, "rank_checks.py")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_every_collective_dtype_size_and_subgroup(size):
    jobs.run(size, "rank_checks.py", "--all", seconds=280)


@pytest.mark.slow
def test_two_nodes_of_two_ranks():
    jobs.run(4, "rank_nodes.py", NUMUS_RANKS_PER_NODE="2")


def test_nodes(monkeypatch):
    assert grid(["a", "b", "b", "a"]).tolist() == [[0, 3], [1, 2]]
    for nodes in (["a", "a"], ["a", "b"], ["a", "a", "b"]):  # one, or of one, or unequal
        assert grid(nodes) is None
    monkeypatch.setenv("NUMUS_RANKS_PER_NODE", "3")
    assert node_names(["here"] * 4) == ["0", "0", "0", "1"]


def test_ranks_share_the_cores_of_a_machine(monkeypatch):
    chosen = []
    monkeypatch.delenv("NUMUS_NUM_THREADS", raising=False)
    monkeypatch.setattr(groups, "get_num_threads", lambda: 8)
    monkeypatch.setattr(groups, "set_num_threads", chosen.append)
    monkeypatch.setattr(groups.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(groups.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for ranks in (1, 2, 16):
        groups._share_cores(ranks)
    assert chosen == [4, 1]
    monkeypatch.setattr(groups.os, "sched_getaffinity", lambda _: {3}, raising=False)
    groups._share_cores(2)  # a launcher has bound it
    assert chosen == [4, 1]


def failing(way, size=2):
    """What the ranks of a failing job say, and how long they took after the start."""
    processes = jobs.start(size, "rank_failures.py", way)
    return [output for _, output in jobs.finish(processes, 60)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["shape", "dtype", "call"])
def test_calls_that_differ(way):
    for output in failing(way):
        assert "the ranks of world called different things" in output
        assert "rank 0: all_reduce(sum) of float32" in output
        assert "rank 1: all_" in output


@pytest.mark.slow
def test_messages_of_other_shapes():
    sender, receiver = failing("message")
    assert "rank 1 called recv(from rank 0) of float32[3], but what rank 0 sent is" in receiver
    assert "rank 1 failed" in sender or "nothing happened" in sender  # it may be gone by then


@pytest.mark.slow
def test_an_exception_of_a_rank_reaches_the_others():
    outputs = failing("raises", 3)
    for output in (outputs[0], outputs[2]):
        assert "DistributedError: rank 1 failed: ValueError: the data are gone" in output


def test_a_rank_that_hangs():
    output = failing("hangs")[0]
    assert "DistributedError: rank 0 waited" in output
    assert "s in broadcast(root=0) of float32[3]" in output
    assert "rank 1 did not come, and did not answer" in output


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed(size):
    processes = jobs.start(size, "rank_failures.py", "killed")
    processes[1].wait(60)
    begin = time.monotonic()
    outputs = [output for _, output in jobs.finish(processes, 60)]
    assert time.monotonic() - begin < 10
    for output in outputs[:1] + outputs[2:]:
        assert "rank 1 has ended (killed, crashed, or left without a word)" in output


# -- who started this process ---------------------------------------------------------------------


def test_launchers():
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
    found = detect({**torchrun, "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert (found.launcher, found.rank, found.world_size, found.local_rank) == (
        "variables",
        3,
        8,
        1,
    )
    assert found.address == ("node7", 29500)
    found = detect({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"})
    assert (found.launcher, found.rank, found.world_size, found.local_rank) == ("mpi", 1, 2, 0)
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}
    assert detect(slurm).launcher == "alone"  # a shell inside of an allocation
    assert detect({**slurm, "SLURM_STEP_ID": "0"}).rank == 5
    assert detect({}).launcher == "alone"


def test_launchers_that_contradict_themselves():
    torchrun = {"RANK": "8", "WORLD_SIZE": "8", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
    with pytest.raises(DistributedError, match="RANK=8 is no rank of WORLD_SIZE=8"):
        detect(torchrun)
    with pytest.raises(DistributedError, match="whole number"):
        detect({**torchrun, "RANK": "one"})


# -- a world of one -------------------------------------------------------------------------------


def test_arguments():
    dist = nm.distributed
    with pytest.raises(ValueError, match="backend 'gloo' must be one of nccl, mpi"):
        dist.init(backend="gloo")
    with pytest.raises(ValueError, match="timeout has to be"):
        dist.init(timeout=0)
    with pytest.raises(ValueError, match="ranks are 0 to 0 here"):
        dist.new_group([1])
    with pytest.raises(ValueError, match="'median' must be one of sum, mean"):
        dist.all_reduce(nm.ones(2), "median")
    with pytest.raises(TypeError, match="the sum of bools"):
        dist.all_reduce(nm.ones(2, dtype="bool"))
    with pytest.raises(TypeError, match="the mean of int64 is no integer"):
        dist.all_reduce(nm.arange(2), "mean")
    with pytest.raises(ValueError, match="rank 3 must be one of world"):
        dist.broadcast(nm.ones(2), root=3)
    with pytest.raises(ValueError, match="without axes"):
        dist.all_gather(nm.ones(()))
    with pytest.raises(RuntimeError, match="barrier: it has no place in"):
        nm.jit(lambda x: (dist.barrier(), x)[1])(nm.ones(2))


def test_alone_shares_memory():
    x = nm.arange(4.0)
    y = nm.distributed.all_reduce(x)
    y += 1
    assert x.tolist() == [0, 1, 2, 3]
    assert y.tolist() == [1, 2, 3, 4]
