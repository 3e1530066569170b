"""Programs as JAX's users write them, with no other change than the import lines."""

import importlib.util
import pathlib

import pytest

PROGRAMS = pathlib.Path(__file__).parents[1] / "programs" / "jax"
# steps, and what the last figure must reach: fewer than the program's own, for a quick test
EXPECTED = {
    "mlp_vmap": (60, lambda before, after: after > max(before, 0.8)),
    "maml": (60, lambda before, after: after < 0.9 * before),
    "neural_ode": (40, lambda before, after: after < 0.7 * before),
    "sgd_pytrees": (40, lambda before, after: after < 0.2),
    "fourier_features": (60, lambda before, after: after < 0.5 * before),
    "scan_rnn": (40, lambda before, after: after < 0.5 * before),
}


def program(path, source):
    spec = importlib.util.spec_from_loader(path.stem, loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, str(path), "exec"), vars(module))
    return module


def test_all_are_listed():
    assert {p.stem for p in PROGRAMS.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "maml")) for n in EXPECTED]
)
def test_program_learns(name):
    steps, reached = EXPECTED[name]
    path = PROGRAMS / f"{name}.py"
    assert reached(*program(path, path.read_text()).main(steps))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_program_learns_with_jax_itself(name):
    """The same text is a program of JAX's."""
    pytest.importorskip("jax")
    steps, reached = EXPECTED[name]
    path = PROGRAMS / f"{name}.py"
    assert reached(*program(path, path.read_text().replace("numus.jax", "jax")).main(steps))
