"""Programs that people wrote for NumPy, unmodified but for the import line."""

import numpy
import pytest
from face_numpy import simulations

import numus as nm


def run(text, module):
    names = {}
    exec(text.replace("import numpy as np", f"import {module} as np", 1), names)
    return names["main"]()


def assert_same(mine, theirs):
    if isinstance(theirs, (tuple, list)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b)
        return
    numpy.testing.assert_allclose(numpy.asarray(mine), theirs, rtol=1e-9, atol=1e-12)
    assert numpy.asarray(mine).dtype == numpy.asarray(theirs).dtype


@pytest.mark.parametrize("name", ["BOIDS", "GAME_OF_LIFE", "HEAT", "N_BODY"])
def test_simulation_agrees_with_numpy(name):
    text = getattr(simulations, name)
    mine = run(text, "numus.numpy")
    assert any(isinstance(part, nm.Tensor) for part in mine)
    assert_same(mine, run(text, "numpy"))


def test_percolation_and_monte_carlo():
    """Its random numbers are numus's own: the statistics agree."""
    (few, many), area = run(simulations.PERCOLATION, "numus.numpy")
    assert few < 0.2
    assert many > 0.8
    assert abs(area - numpy.pi) < 0.15
