"""A few random programs; `python -m tools.fuzz_programs` runs as many as one likes."""

import dataclasses

import numpy as np
import pytest
import simt_machine

from numus.runtime import devices
from tools import fuzz_programs
from tools.fuzz_programs import Program, fuzz


def test_random_programs_agree_with_the_reference():
    ran, wrong = fuzz("cpu", range(100, 130), max_elements=5000)
    assert ran.total() == 30
    assert wrong == []


@pytest.mark.parametrize(("first", "count", "size"), [(5_000_000, 12, 1500), (1849, 1, 20_000)])
def test_random_programs_agree_on_a_gpu(first, count, size, monkeypatch):
    """An interpreted one, with as many multiprocessors as an H200; 1849: kernels that share a
    launch."""
    fields = {"num_cores": 132, "forward_progress": True}
    target = dataclasses.replace(simt_machine.HOPPER, **fields)
    devices.BACKENDS["programs"] = lambda index: simt_machine.Machine(target)
    monkeypatch.setattr(fuzz_programs, "REPEATS", 1)
    ran, wrong = fuzz("programs", range(first, first + count), max_elements=size, against="cpu")
    assert ran.total() == count
    assert wrong == []


@pytest.mark.parametrize("seed", [1000630, 1011606, 1014272])
def test_long_sums_of_float32_are_compared(seed):
    """The reference added columns one by one, and a kernel the rows of a fused sum."""
    _, wrong = fuzz("cpu", [seed])
    assert wrong == []


def test_norms_of_equal_numbers_are_compared():
    """The gradient of their sum is zero, of terms that are not small."""
    _, wrong = fuzz("cpu", [92387])
    assert wrong == []


def test_a_wrong_element_is_found(monkeypatch):
    program = Program(7, max_elements=200)
    right = Program.results

    def one_is_wrong(self, device):
        found = right(self, device)
        if device == "cpu":
            found[-1] = np.copy(found[-1])
            found[-1].flat[-1] += 1
        return found

    assert program.differs("cpu", "reference") == ""
    monkeypatch.setattr(Program, "results", one_is_wrong)
    assert "1 of 31, first at (0, 0, 30): 1.0 for 0.0" in program.differs("cpu", "reference")
