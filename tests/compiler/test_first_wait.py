"""The first kernel of a launch list waits for earlier kernels before it loads."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.runtime import devices

devices.BACKENDS["simt_dependent"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
MACHINE = nm.device("simt_dependent").runtime
rng = np.random.default_rng(3)


def wait_of(program):
    """The wait of a kernel, and the kinds of statements ahead of it."""
    (grid,) = [s for s in program.kernel.body if isinstance(s, ir.For)]
    at = next(i for i, s in enumerate(grid.body) if isinstance(s, ir.DependencyWait))
    return grid.body[at], {type(s) for s in ir.statements(grid.body[:at])}


@pytest.mark.parametrize(
    ("format", "dtype"), [("int4-g128", "bfloat16"), ("q8-b128", "bfloat16"), (None, "float32")]
)
def test_a_single_product_waits_before_it_loads(format, dtype):
    def given(*shape):
        return nm.asarray(rng.standard_normal(shape, dtype=np.float32)).astype(dtype)

    def product(x):
        y = x @ weights[0].T
        return y, y @ weights[1].T

    matrices = given(128, 128), given(128, 128)
    weights = [m if format is None else nm.quant.quantize(m, format) for m in matrices]
    x = given(1, 128)
    wanted = [y.astype("float32").numpy() for y in product(x)]
    x, weights = x.to("simt_dependent"), [w.to("simt_dependent") for w in weights]
    nm.eval(x, weights)
    for chained in (False, True):
        MACHINE.launched.clear()
        found = product(x)[chained]
        nm.eval(found)
        largest = np.abs(wanted[chained]).max()
        got = found.astype("float32").numpy()
        np.testing.assert_allclose(got, wanted[chained], atol=2e-2 * largest)
        wait, ahead = wait_of(MACHINE.launched[0])
        assert wait.loads_before is chained  # a chain begins alone
        assert (ir.Let in ahead) is chained
