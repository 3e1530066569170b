"""Every row of the op table in all of its dtypes, and with all cases transformed."""

import pytest
import test_ops
from ops import ROWS

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _named_devices(monkeypatch):
    monkeypatch.setenv("NUMUS_TEST_DEVICES", "cpu")


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_values(row):
    test_ops.test_values(row, "cpu")


@pytest.mark.parametrize(
    "row", [r for r in ROWS if test_ops.differentiable(r)], ids=lambda r: r.name
)
def test_gradients(row):
    test_ops.test_gradients_on_the_device(row, "cpu")


@pytest.mark.parametrize(
    "row", [r for r in ROWS if test_ops.differentiable(r)], ids=lambda r: r.name
)
def test_derivatives(row):
    test_ops.test_derivatives(row)


@pytest.mark.parametrize("row", [r for r in ROWS if r.vmap], ids=lambda r: r.name)
def test_vmap(row):
    test_ops.test_vmap(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_jit(row):
    test_ops.test_jit(row, "cpu")
