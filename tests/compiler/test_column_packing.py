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


def first_block(machine, f):
    """Threads of a block of the first kernel of a column reduction."""
    machine.launched.clear()
    nm.eval(f(nm.asarray(np.ones((8192, 16), np.float32), device="packing")))
    return next(p for p in machine.launched if p.name == "split_reduction").kernel.block_size


def test_rows_are_packed(machine):
    """Plain sums of narrow matrices are packed; those with computed operands of one row are not."""
    assert first_block(machine, PROGRAMS["sum"]) > first_block(machine, PROGRAMS["weights"])


def normalised(x, scale, shift):
    return ((x - shift) * scale).astype(nm.bfloat16)


def reshaped(x, scale, shift):
    """A value whose rows have two axes."""
    y = x.reshape(4, -1, x.shape[1]) * 2
    return normalised(y.astype(nm.float32), scale.reshape(1, 1, -1), shift)


COMMON = {
    "vectors": lambda x, a, b: (nm.sum(normalised(x, a, b).astype(nm.float32) * a, axis=0),),
    "broadcast vector": lambda x, a, b: (nm.sum(x * nm.broadcast_to(a[None], x.shape), axis=0),),
    "two sums": lambda x, a, b: (nm.sum(x * a, axis=0), nm.sum((x - b) * x, axis=0)),
    "rows of two axes": lambda x, a, b: (
        nm.sum(reshaped(x, a, b).astype(nm.float32), axis=(0, 1)),
    ),
    "stored": lambda x, a, b: (y := nm.relu(x * a + b), nm.sum(y * b, axis=0)),
    "a column": lambda x, a, b: (nm.sum(x * x[:, :1] + a, axis=0),),
    "part of a vector": lambda x, a, b: (nm.sum(x[:, 1:] * a[1:], axis=0),),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(8192, 8), (4096, 24), (12288, 5), (4100, 6), (2048, 256)])
@pytest.mark.parametrize("name", COMMON)
def test_vectors_that_rows_have_in_common(name, shape, dtype, machine):
    rng = np.random.default_rng(shape[1])
    x, a, b = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[1:], shape[1:]))

    def found(device):
        image = nm.asarray(x, device=device).astype(dtype)
        vectors = [nm.asarray(v, device=device) for v in (a, b)]
        nm.eval(image, *vectors)
        results = nm.jit(COMMON[name])(image, *vectors)
        return [y.astype("float32").numpy() for y in results]

    for got, want in zip(found("packing"), found("cpu"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-4 * np.abs(want).max() + 2e-2)


def test_rows_with_vectors_in_common_are_packed(machine):
    vector = nm.asarray(np.ones(16, np.float32), device="packing")
    nm.eval(vector)
    plain = first_block(machine, PROGRAMS["sum"])
    assert first_block(machine, lambda x: nm.sum((x - vector) * vector, axis=0)) == plain
    assert first_block(machine, lambda x: nm.sum(nm.relu(x * vector), axis=0)) == plain
