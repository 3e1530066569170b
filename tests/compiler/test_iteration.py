"""Loops inside expressions: lanes that converge keep their values, on CPUs and threads of GPUs."""

import numpy as np
import pytest

import numus as nm
from numus import dtypes as dt
from numus import ir


def newton_root(x):
    """sqrt(x) by Newton's method until it no longer moves; the number of steps."""
    one = ir.const(1.0, x.dtype)

    def step(y, before, count):
        return y.ne(before), ((y + x / y) * 0.5, y, count + 1.0)

    root, _, count = ir.iterate(64, (one, x * 0.0, x * 0.0), step)
    return root, count


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lanes_stop_by_themselves(dtype, monkeypatch):
    from numus.kernels import special
    from numus.primitives.special.tables import nary

    name = f"newton_{dtype}"
    for i, part in enumerate(("root", "steps")):
        monkeypatch.setitem(special.FUNCTIONS, f"{name}_{part}", lambda x, i=i: newton_root(x)[i])
    root, steps = (nary(f"{name}_{part}", np.sqrt, None) for part in ("root", "steps"))
    x = nm.asarray(np.linspace(0.5, 900.0, 77), dtype=getattr(nm, dtype))
    y, n = nm.Tensor(root(x._node)), nm.Tensor(steps(x._node))
    np.testing.assert_allclose(
        y.numpy(), np.sqrt(x.numpy()), rtol=1e-6 if dtype == "float32" else 1e-15
    )
    counts = n.numpy()
    assert counts.min() < counts.max() <= 64


def test_loops_are_printed_by_structure():
    def kernel():
        ir.new_build()
        x, y = (ir.Buffer(n, dt.float32, a) for n, a in (("x", "read"), ("y", "write")))
        i = ir.var("i")
        root = newton_root(ir.load(x, i))[0]
        loop = ir.For(i, ir.const(0), ir.scalar("n0"), "grid", [ir.Store(y, i, root)])
        return ir.kernel_text(ir.Kernel("k", (x, y), (("n0", ir.INDEX),), [loop]))

    assert kernel() == kernel()  # names of carried values count from nothing


def test_what_the_body_needs_from_outside_is_an_operand():
    ir.new_build()
    x = ir.var("x", dt.float32)
    scale = x * 3.0
    out = ir.iterate(4, (x,), lambda v: (v < 10.0, (v * scale + 1.0,)))
    parts = ir.LoopParts.of(out[0].args[0])
    assert parts.invariants == (scale,)
    assert parts.limit == 4
