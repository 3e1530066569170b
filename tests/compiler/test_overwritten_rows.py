"""Kernels that keep rows in registers write their results over the rows that they read."""

from dataclasses import replace

import numpy as np
import simt_machine

import numus as nm
from numus.compiler.schedule.in_place import BufferAccesses
from numus.compiler.schedule.tuning import TUNING
from numus.ir.stored_kernel import pack_kernel, unpack_kernel
from numus.nn import functional as F
from numus.runtime.cuda.properties import capability_fields
from numus.runtime.devices import BACKENDS
from numus.runtime.null import NullRuntime

simt_machine.install()


def gradients(scores, targets, weights, device):
    """The loss, and its gradients by both operands of the product."""

    def loss(x, w, t):
        return F.cross_entropy(x @ w, t)

    given = [nm.asarray(a, device=device) for a in (scores, weights, targets)]
    value, found = nm.jit(nm.value_and_grad(loss, (0, 1)))(*given)
    nm.eval(value, found)
    return [x.numpy() for x in (value, *found)]


def test_cross_entropy_takes_the_memory_of_one_matrix_of_scores():
    null = NullRuntime()
    null.target = replace(simt_machine.HOPPER, **capability_fields(90))
    BACKENDS["null_rows"] = lambda index: null
    rows, classes = 4096, 8000
    x, w = np.zeros((rows, 64), np.float32), np.zeros((64, classes), np.float32)
    for _ in range(2):
        null.reset()
        gradients(x, np.zeros(rows, np.int64), w, "null_rows")
    matrix = 4 * rows * classes
    assert matrix < null.counts.peak < 1.3 * matrix


def test_what_is_written_in_place_counts_once_at_the_peak():
    """Activations are computed again only where memory is short."""
    rows, hidden, classes = 4096, 128, 8000
    matrix = 2 * rows * classes
    shapes = (rows, hidden), (hidden, hidden), (hidden, classes)

    def loss(x, v, w, t):
        with nm.autocast("bf16"):
            return F.cross_entropy(F.gelu(x @ v) @ w, t)

    def kernels(name, memory):
        null = NullRuntime()
        target = replace(simt_machine.HOPPER, **capability_fields(90))
        null.target = replace(target, memory_bytes=int(memory * TUNING.remat_memory_fraction))
        BACKENDS[name] = lambda index: null
        given = [nm.asarray(np.zeros(s, np.float32), device=name) for s in shapes]
        given.append(nm.asarray(np.zeros(rows, np.int64), device=name))
        nm.eval(nm.jit(nm.grad(loss, (0, 1, 2)))(*given))
        return null.counts.kernels

    plenty = kernels("null_plenty", 100 * matrix)
    assert kernels("null_enough", 1.5 * matrix) == plenty
    assert kernels("null_short", 0.5 * matrix) > plenty


def test_kernels_from_disk_take_no_more_memory():
    null = NullRuntime()
    null.target = replace(simt_machine.HOPPER, **capability_fields(90))
    BACKENDS["null_stored"] = lambda index: null
    scores = nm.asarray(np.zeros((64, 2500), np.float32), device="null_stored")
    nm.eval(nm.softmax(scores, -1))
    (kernel,) = (program.kernel for program in null.launched[-1:])
    assert kernel.name == "register_row_reduction"
    stored = unpack_kernel(pack_kernel(kernel))
    for given in (kernel, stored):
        source, target = (
            next(i for i, b in enumerate(given.buffers) if b.access == access)
            for access in ("read", "write")
        )
        assert BufferAccesses(given).may_overwrite(source, target)


def test_values_and_gradients():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((20, 16), (16, 2500)))
    targets = rng.integers(0, 2500, 20)
    targets[3] = -100  # ignored
    machine = nm.device("simt_sm90").runtime
    machine.launched.clear()
    got = gradients(x, targets, w, "simt_sm90")
    (picked,) = [p for p in machine.launched if p.notes == ("onehot_gather",)]
    assert sum(b.access == "write" for b in picked.kernel.buffers) == 1
    for a, b in zip(got, gradients(x, targets, w, "cpu"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_rows_of_other_results_stay():
    """A second result needs the row after the first has been stored."""
    x = np.random.default_rng(0).standard_normal((20, 1500)).astype(np.float32)

    def both(x):
        y = x * 2
        z = nm.cumsum(y, 1)
        return nm.softmax(z, 1) + nm.flip(z, 1), z.sum()

    want = both(nm.asarray(x))
    got = nm.jit(both)(nm.asarray(x, device="simt_sm90"))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-3)
