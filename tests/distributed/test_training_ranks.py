"""Data-parallel training by `numus launch`, and what the launcher does when ranks fail."""

import signal
import subprocess
import sys
import textwrap
import time

import jobs
import pytest

jobs.require_mpich()


def launch(*args, seconds=120):
    command = [sys.executable, "-m", "numus", "launch", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_data_parallel_training(ranks, tmp_path):
    done = launch("-n", ranks, "--log-dir", tmp_path, jobs.HERE / "rank_training.py")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for rank in range(ranks):
        assert f"[{rank}] rank {rank}: all right" in done.stdout
        assert (tmp_path / f"rank-{rank}.log").read_text() == f"rank {rank}: all right\n"


@pytest.mark.slow
def test_examples_give_the_same_on_several_ranks():
    examples = jobs.HERE.parent.parent / "examples"
    done = launch("-n", 3, examples / "poisson.py", "--points", 40, "--check")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    losses = [
        launch("-n", n, examples / "data_parallel.py", "--steps", 20).stdout.split("loss ")[1]
        for n in (1, 4)
    ]
    assert losses[0] == losses[1]  # to the five digits that it prints


def script(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    return path


def test_a_dead_rank_ends_all(tmp_path):
    path = script(
        tmp_path,
        """
        import os, signal, sys, time
        print("attempt", os.environ["NUMUS_RESTART"], sys.argv[1:])
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
    )
    begin = time.monotonic()
    done = launch("-n", 2, "--grace", 0.2, "--restarts", 1, path, "--size", "3")
    assert time.monotonic() - begin < 20
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 ended by signal 9 (SIGKILL)" in done.stderr
    assert "ending the ranks that are left: 0" in done.stderr
    assert "starting again (1 of 1)" in done.stderr
    assert "[0] attempt 1 ['--size', '3']" in done.stdout


@pytest.mark.slow
def test_ctrl_c_ends_all(tmp_path):
    path = script(tmp_path, "import time; print('here', flush=True); time.sleep(60)")
    command = [sys.executable, "-m", "numus", "launch", "-n", "2", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "here" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted: ending all ranks" in errors
