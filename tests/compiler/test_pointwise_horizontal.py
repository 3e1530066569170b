"""Horizontal fusion of small pointwise results, on an emulated GPU."""

import numpy as np
import simt_machine

import numus as nm
from numus.compiler.plan import clear_plans

simt_machine.install()
MACHINE = nm.device("simt_wgmma").runtime


def updated(count, size, device):
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((count, 3, size)).astype(np.float32)
    rate = nm.asarray(np.float32(0.1), device=device)
    found = []
    for p, m, g in arrays:
        p, m, g = (nm.asarray(a, device=device) for a in (p, m, g))
        m = m * 0.9 + g * rate
        found += [m, p - m * rate]
    clear_plans()
    nm.eval(*found)
    return [x.numpy() for x in found]


def test_each_result_has_its_own_blocks(monkeypatch):
    monkeypatch.setattr(MACHINE, "target", simt_machine.replace(MACHINE.target, num_cores=8))
    for count, size in ((5, 700), (2, 1), (3, 512)):
        want = updated(count, size, "cpu")
        MACHINE.launched.clear()
        got = updated(count, size, "simt_wgmma")
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    (program,) = MACHINE.launched
    assert program.name == "pointwise"


def test_results_with_common_inputs_share_blocks(monkeypatch):
    monkeypatch.setattr(MACHINE, "target", simt_machine.replace(MACHINE.target, num_cores=8))
    x = nm.asarray(np.ones(700, np.float32), device="simt_wgmma")
    y = [x + 1, x * 2]  # one reads what the other reads
    clear_plans()
    MACHINE.launched.clear()
    nm.eval(*y)
    assert "t1" not in str(MACHINE.launched[-1].kernel.body)
    np.testing.assert_array_equal(y[1].numpy(), np.full(700, 2, np.float32))
