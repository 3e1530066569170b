"""Scripts as JAX's users write them run when their import lines name `numus.jax`; each asserts what
it found."""

import pathlib
import re

import pytest

PROGRAMS = pathlib.Path(__file__).parents[1] / "programs" / "jax_scripts"
SLOW = {"cnn", "gaussian_process", "hamiltonian"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(p.stem, marks=[pytest.mark.slow] * (p.stem in SLOW))
        for p in sorted(PROGRAMS.glob("*.py"))
    ],
)
def test_script_runs(name):
    text = (PROGRAMS / f"{name}.py").read_text()
    text = re.sub(r"^import jax$", "import numus.jax as jax", text, flags=re.MULTILINE)
    text = re.sub(r"^(import|from) jax", r"\1 numus.jax", text, flags=re.MULTILINE)
    exec(compile(text, name, "exec"), {"__name__": "__main__"})
