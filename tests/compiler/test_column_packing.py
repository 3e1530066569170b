"""Column reductions of matrices narrower than a block: rows are packed."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices


@pytest.fixture(scope="module")
def machine():
    devices.BACKENDS["packing"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("packing").runtime


PROGRAMS = {
    "sum": lambda x: nm.sum(x, axis=0),
    "mean": lambda x: nm.mean(x * 2 + 1, axis=0),
    "max": lambda x: nm.max(x, axis=0),
    "several": lambda x: nm.stack([nm.sum(x, axis=0), nm.min(x, axis=0)]),
    "weights": lambda x: nm.sum(x * nm.arange(x.shape[1], device=x.device), axis=0),
    "argmax": lambda x: nm.argmax(x, axis=0).astype(nm.float32),
    "deviations": lambda x: nm.var(x, axis=0),
    "bfloat16": lambda x: nm.sum(x.astype(nm.bfloat16), axis=0).astype(nm.float32),
    "reversed": lambda x: nm.sum(x[::-1], axis=0),
    "slice": lambda x: nm.sum(x[:, : max(1, x.shape[1] // 2)], axis=0),
    "two axes": lambda x: nm.sum(x.reshape(4, -1, x.shape[1]), axis=(0, 1)),
}


@pytest.mark.parametrize("shape", [(8192, 3), (4096, 24), (12288, 5), (4100, 7), (8192, 48)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_columns_of_narrow_matrices(name, shape, machine):
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)
    got = PROGRAMS[name](nm.asarray(x, device="packing")).numpy()
    want = PROGRAMS[name](nm.asarray(x)).numpy()
    # partial sums of many thousand terms round by far more than a total that nearly cancels
    atol = 1e-5 * np.abs(want).max() + 2e-3
    np.testing.assert_allclose(got, want, rtol=2e-2 if name == "bfloat16" else 1e-4, atol=atol)


def test_rows_are_packed(machine):
    """Plain sums of narrow matrices are packed; those with operands of one row are not."""

    def steps(f):
        machine.launched.clear()
        nm.eval(f(nm.asarray(np.ones((8192, 16), np.float32), device="packing")))
        first = next(p for p in machine.launched if p.name == "split_reduction")
        return first.kernel.block_size

    assert steps(PROGRAMS["sum"]) > steps(PROGRAMS["weights"])
