"""Rows that groups of threads copy to their own memory before they work on them."""

import group_machine
import ml_dtypes
import numpy as np
import pytest

import numus as nm
from numus.compiler import ir
from numus.compiler.program import clear_plans

group_machine.install()
DEVICE = "groups_80"


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(x):
    off = x - x.mean(-1, keepdims=True)
    return off / np.sqrt((off * off).mean(-1, keepdims=True) + 1e-5)


CASES = {
    "softmax": (lambda x: nm.softmax(x, axis=-1), softmax),
    "layer norm": (nm.layer_norm, normalised),
    "two values": (lambda x: nm.softmax(x, axis=-1) * x, lambda x: softmax(x) * x),
}


# whole runs of 16 bytes; every row elsewhere; too short to be worth it
@pytest.mark.parametrize(
    ("name", "dtype", "length"),
    [
        *[(name, "f4", length) for name in CASES for length in (4200, 4203)],
        *[("softmax", ml_dtypes.bfloat16, length) for length in (4200, 4203)],
        ("layer norm", "f4", 4000),
    ],
)
def test_rows(name, dtype, length):
    ours, theirs = CASES[name]
    x = np.random.default_rng(0).standard_normal((2, length + 1)).astype(dtype)
    given = nm.asarray(x, device=DEVICE)
    runtime = given.device.runtime
    runtime.programs.clear()
    clear_plans()
    for start in (0, 1):
        row = x[:, start : length + start].astype(np.float64)
        got = ours(given[:, start : length + start]).numpy().astype(np.float64)
        limit = 1e-6 if dtype == "f4" else 8e-3
        assert np.abs(got - theirs(row)).max() <= limit * np.abs(theirs(row)).max()
    copies = [
        s for p in runtime.programs.values() for s in _all(p.kernel.body) if type(s) is ir.AsyncCopy
    ]
    assert bool(copies) is (length > 4096)


def _all(body):
    for s in body:
        yield s
        yield from _all(getattr(s, "body", []))
