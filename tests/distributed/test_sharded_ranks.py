"""Fully sharded training between processes."""

import jobs
import pytest

jobs.require_mpich()


def bits(outputs):
    """What the ranks say of their weights: all the same."""
    found = {line for output in outputs for line in output.splitlines() if line.startswith("bits")}
    assert found
    return found


def test_two_ranks():
    assert len(bits(jobs.run(2, "rank_sharding.py", "--quick"))) == 1


@pytest.mark.slow
def test_a_small_gpt_on_two_ranks():
    assert len(bits(jobs.run(2, "rank_sharding.py", seconds=280))) == 1


@pytest.mark.slow
def test_four_ranks_give_the_same_bits_each_time():
    first = bits(jobs.run(4, "rank_sharding.py", "--all", seconds=400))
    assert bits(jobs.run(4, "rank_sharding.py", "--all", seconds=400)) == first
