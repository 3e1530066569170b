"""A few programs of the fuzzer (see fuzz.py), always the same ones."""

from __future__ import annotations

import fuzz_steps
import pytest
from fuzz_graphs import disagreement
from fuzz_programs import make


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_random_program_agrees_with_the_reference(seed):
    program = make(seed)
    found = disagreement(program)
    assert found is None, f"{found}\n{program}"


@pytest.mark.parametrize("seed", range(30, 50))
@pytest.mark.filterwarnings("ignore:.*has been traced for:RuntimeWarning")
def test_a_random_step_is_the_same_under_jit(seed):
    assert fuzz_steps.disagreement(seed) is None
