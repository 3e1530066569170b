"""Pointwise kernels of rows of 16-bit elements: a vector per thread, of one row or of two."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir

simt_machine.install()
GPU = "simt_sm90"


SHAPES = [(64, 256), (36, 256), (33, 512), (9, 1536), (3, 2048), (5, 1544), (24, 64), (7, 4, 320)]


@pytest.mark.parametrize("shape", SHAPES)
def test_values(shape):
    rng = np.random.default_rng(shape[0])
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, shape, shape[-1:])]

    def found(device):
        x, y, v = (nm.asarray(a, device=device) for a in arrays)
        x, y = x.astype("bfloat16"), y.astype("bfloat16")
        nm.eval(x, y, v)
        z = (x.astype("float32") - v) * (v * 2) + y.astype("float32")
        return nm.relu(z).astype("bfloat16").astype("float32").numpy()

    np.testing.assert_allclose(found(GPU), found("cpu"), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(("vectors", "rows"), [(1, 1), (4, 2)])
def test_threads_share_vectors_of_two_rows(vectors, rows):
    """Where most of what a row reads is common to all."""
    machine = nm.device(GPU).runtime
    y = nm.zeros((64, 512), dtype="bfloat16", device=GPU)
    scales = [nm.full((512,), 2.0 + k, dtype="bfloat16", device=GPU) for k in range(vectors)]
    nm.eval(y, *scales)
    machine.launched.clear()
    for scale in scales:
        y = y * scale
    nm.eval(y)
    (program,) = machine.launched
    (loop,) = [s for s in ir.statements(program.kernel.body) if getattr(s, "width", 0)]
    assert loop.resident
    assert loop.width == 8
    assert sum(isinstance(s, ir.Store) for s in loop.body) == rows
