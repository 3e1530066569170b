"""Programs written for NumPy print the same when their import lines name `numus.numpy`."""

import contextlib
import io
import pathlib
import re
import warnings

import numpy
import pytest

PROGRAMS = pathlib.Path(__file__).parents[1] / "programs" / "numpy"
SLOW = {"cells", "images", "learning", "physics"}


def printed(text, name):
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        numpy.printoptions(),
        warnings.catch_warnings(category=DeprecationWarning, action="ignore"),  # newer NumPy's
    ):
        exec(compile(text, name, "exec"), {"__name__": "__main__"})
    return re.sub(r"-(0\.0*\b)", r"\1", out.getvalue())  # the sign of a zero is rounding's


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(p.stem, marks=[pytest.mark.slow] * (p.stem in SLOW))
        for p in sorted(PROGRAMS.glob("*.py"))
    ],
)
def test_program_prints_the_same(name):
    text = (PROGRAMS / f"{name}.py").read_text()
    mine = re.sub(r"^(import|from) numpy", r"\1 numus.numpy", text, flags=re.MULTILINE)
    assert mine != text
    assert printed(mine, name) == printed(text, name)
