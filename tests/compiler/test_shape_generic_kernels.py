"""The same graph always becomes the same kernels: compiled code is found again by its text."""

from __future__ import annotations

import numpy as np
import pytest

import numus as nm
from numus import ir
from numus.compiler import hooks
from numus.compiler import plan as plans


def statistics(x, axis):
    return nm.sum(x, axis=axis), nm.max(x, axis=axis), nm.var(x, axis=axis), nm.exp(x)


@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 300), 1), ((64, 300), 0), ((1 << 20,), 0), ((3000, 2000), 0)]
)
def test_a_graph_that_is_built_anew_becomes_the_same_kernels(shape, axis):
    x = nm.ones(shape, device="null")
    nm.eval(x)
    texts = set()

    def watch(device, plan, leaves, constants):
        texts.add(tuple(ir.kernel_text(step.kernel) for step in plan.steps))

    hooks.before_run.append(watch)
    try:
        held = []
        for i in range(12):
            plans.clear_plans()
            nm.eval(*statistics(x, axis))
            held.append([object() for _ in range(i)])  # other addresses for what comes next
    finally:
        hooks.before_run.remove(watch)
    assert len(texts) == 1


def test_a_statement_that_has_no_text_is_an_error():
    """Kernels are known by their text: what is left out of it would make two of them one."""
    kernel = ir.Kernel("kernel", (), (), [object()], ())
    with pytest.raises(AssertionError, match="no statement of the kernel IR"):
        ir.kernel_text(kernel)


@pytest.mark.parametrize("step", [2, -2])
def test_every_second_element_is_known_to_the_code(step):
    """Lanes at a stride of two are vector loads, whatever other strides came before."""
    texts = {}

    def watch(device, plan, leaves, constants):
        texts[current] = "".join(ir.kernel_text(step.kernel) for step in plan.steps)

    hooks.before_run.append(watch)
    try:
        for current in (3, step, 5):
            for n in (1000, 2000, 3000):
                x = nm.arange(n).astype("float32")
                nm.eval(x)
                y = np.asarray(x[::current] + 1)
                assert np.array_equal(y, np.arange(n)[::current] + 1.0)
    finally:
        hooks.before_run.remove(watch)
    assert f"mul(v4, {step})" in texts[step]
    assert f"mul(v4, {step})" not in texts[3] + texts[5]
