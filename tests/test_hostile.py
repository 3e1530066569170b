"""Short versions of `tools.hostile`; most parts have tests of their own, too."""

from __future__ import annotations

import random
import sys

import pytest

from tools import hostile

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc of Linux"),
    pytest.mark.on_cpu("processes that start on the cpu"),
]

SHORT = ("inputs",)


@pytest.mark.parametrize(
    "part", [p if p in SHORT else pytest.param(p, marks=pytest.mark.slow) for p in hostile.PARTS]
)
def test_part(part, tmp_path):
    hostile.PARTS[part].case(random.Random(1), tmp_path)


@pytest.mark.parametrize("part", ["structures", "sizes"])
@pytest.mark.slow
def test_memory_does_not_grow(part):
    row = hostile.growing(part, seconds=60)
    assert row.faults == []
    assert row.cases > 100


def test_a_program_that_crashes_or_hangs_is_a_fault():
    with pytest.raises(AssertionError, match="exit"):
        hostile.run("limited", "no number", 1)
    with pytest.raises(AssertionError, match="hangs"):
        hostile.run("first_use", 2, seconds=0.01)


def test_the_table(monkeypatch, capsys):
    def fails(draw, folder):
        raise AssertionError("wrong")

    monkeypatch.setitem(hostile.PARTS, "threads", hostile.Part(fails))
    monkeypatch.setattr(sys, "argv", ["hostile", "--minutes", "0", "--only", "threads"])
    assert hostile.main() == 1
    assert "wrong" in capsys.readouterr().out
