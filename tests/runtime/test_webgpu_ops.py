"""A sample of the op table on webgpu; all of it with

NUMUS_TEST_DEVICES=webgpu pytest tests/test_ops.py -k "test_values or on_the_device"
"""

import itertools

import pytest
import test_ops
from ops import ROWS

from numus.runtime.devices import count

pytestmark = pytest.mark.skipif(not count("webgpu"), reason="there is no adapter for WebGPU here")

SMOOTH = [r for r in ROWS if test_ops.differentiable(r)]


def sampled(row):
    """Factorisations are many kernels, special functions long ones, for a software driver."""
    slow = row.name.startswith(("linalg.", "special."))
    return pytest.param(row, id=row.name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("row", [sampled(r) for r in ROWS[5::40]])
def test_values(row):
    test_ops.check_values(row, "webgpu", lambda calls: itertools.islice(calls, None, None, 3))


@pytest.mark.parametrize("row", [sampled(r) for r in SMOOTH[3::40]])
def test_gradients(row):
    test_ops.test_gradients_on_the_device(row, "webgpu")
