"""Rounding errors of sums: bounded by block lengths, and the same for any number of threads.

Bounds are those of the worst case (Higham 2002, §4.2): a sum of n terms has at most n roundings on
the way of each, so a block and the blocks after it bound all. Terms that are all alike come close
to it, since every rounding in a binade goes the same way; random ones stay far below.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import CPU

import numus as nm
from numus import dtypes as dt
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.kernels.attention.cpu import forward
from numus.kernels.conv.cpu import taps
from numus.kernels.matmul.cpu import blocking
from numus.nn import functional as F

ROOT = Path(__file__).parents[2]
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "complex64": 2.0**-24}
TERMS = (0.1, 0.3, 1 / 3, 0.7)
SPLIT_K = 8192  # at most, in one kernel


def products(shape, dtype, k):
    """Products of matrices of equal elements: (found, exact, sums of absolute products)."""
    m, n = shape
    for term in TERMS:
        a, b = np.full((m, k), term, dtype), np.full((k, n), 1, dtype)
        if dtype == "complex64":
            a, b = a * (1 + 1j), b * (1 - 1j)
        found = np.asarray(nm.asarray(a, device="cpu") @ nm.asarray(b, device="cpu"))
        exact = a[0, 0].astype(complex) * complex(b[0, 0]) * k
        yield found, exact if dtype == "complex64" else exact.real, abs(exact)


def roundings(k):
    """On the way of a term of a product: its block of k, the blocks of a split, the splits."""
    inner = blocking.SUM_BLOCK
    first = min(k, blocking.MAX_RUNNING_SUM)
    return first + -(-min(k, SPLIT_K) // inner) + -(-k // (SPLIT_K // 2)) + 8


SHAPES = {
    "square": (40, 48),
    "odd": (33, 77),
    "skinny": (3, 300),
    "few columns": (300, 7),
    "matrix and vector": (300, 1),
    "vector and matrix": (1, 300),
    "small": (3, 3),
}


@pytest.mark.parametrize("k", [300, 2000, 8000, 20_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_of_products_are_those_of_a_block(shape, k):
    for found, exact, size in products(SHAPES[shape], "float32", k):
        assert np.abs(found - exact).max() <= roundings(k) * UNIT["float32"] * size


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_errors_of_products_of_other_dtypes(dtype):
    for found, exact, size in products((40, 48), dtype, 5000):
        # two products, with roundings of their own, for each part of a complex number
        count = roundings(5000) * (2 if dtype == "complex64" else 1)
        exact = exact if dtype == "complex64" else np.longdouble(exact)
        assert np.abs(found - exact).max() <= count * UNIT[dtype] * size


@pytest.mark.parametrize(
    ("image", "weight"),
    [((1, 512, 12, 12), (8, 512, 3, 3)), ((1, 512, 7, 7), (128, 512, 3, 3))],
    ids=["spatial", "channels"],
)
def test_errors_of_convolutions_are_those_of_a_block(image, weight):
    k = weight[1] * 9
    for term in TERMS:
        x, w = np.full(image, term, np.float32), np.ones(weight, np.float32)
        found = F.conv2d(nm.asarray(x, device="cpu"), nm.asarray(w, device="cpu"))
        exact = float(x[0, 0, 0, 0]) * k
        count = taps.SUM_BLOCK + 4 * k / taps.SUM_BLOCK
        assert np.abs(np.asarray(found) - exact).max() <= count * UNIT["float32"] * exact


@pytest.mark.parametrize("keys", [2000, 9000])
def test_errors_of_attention_are_those_of_a_block(keys):
    """Equal weights give the mean of equal values."""
    block = forward.choose(CPU.runtime.target, dt.float32, 1, 4, keys, 16, 16).keys
    q, k = (nm.zeros((1, n, 16), device="cpu") for n in (4, keys))
    for term in TERMS:
        v = np.full((1, keys, 16), term, np.float32)
        found = nm.scaled_dot_product_attention(q, k, nm.asarray(v, device="cpu"))
        error = np.abs(np.asarray(found, np.float64) / v[0, 0, 0].astype(np.float64) - 1).max()
        assert error <= (block + keys / block + 8) * UNIT["float32"]


REDUCED = {
    "all": ((1_000_000,), (0,)),
    "rows": ((40, 30_000), (1,)),
    "a row of columns": ((3000, 30), (0,)),
    "few columns": ((100, 8), (0,)),
    "columns": ((3000, 300), (0,)),
    "long narrow columns": ((100_000, 5), (0,)),
    "blocks of columns": ((50, 10, 60, 30), (0, 2)),
    "small blocks of columns": ((20, 3, 40, 5), (0, 2)),
}


@pytest.mark.parametrize("name", REDUCED)
def test_errors_of_sums_do_not_grow_with_their_length(name):
    """At most so many roundings: of a lane's block, and the logarithm of the number of lanes."""
    shape, axes = REDUCED[name]
    count = max(LOOPS.block_terms, LOOPS.block_vectors // 4) + 16
    for term in TERMS:
        x = np.full(shape, term, np.float32)
        exact = float(x.flat[0]) * np.prod([shape[i] for i in axes])
        found = np.asarray(nm.asarray(x, device="cpu").sum(axes))
        assert np.abs(found - exact).max() <= count * UNIT["float32"] * exact
        x = (x * (1 + 1j)).astype(np.complex64)
        found = np.asarray(nm.asarray(x, device="cpu").sum(axes))
        assert np.abs(found - exact * (1 + 1j)).max() <= count * UNIT["float32"] * exact * 1.5


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("shape", "axis"), [((70_000,), 0), ((40, 3000), 1), ((3000, 40), 0)])
def test_running_sums_are_rounded_once(shape, axis, dtype):
    """Accumulators are float64, of as many terms as rows have."""
    for term in TERMS:
        x = np.full(shape, term, dtype)
        x = x * (1 - 2j) if dtype == "complex64" else x
        found = np.asarray(nm.cumsum(nm.asarray(x, device="cpu"), axis=axis))
        exact = np.cumsum(x, axis=axis, dtype="complex128" if dtype == "complex64" else "float64")
        for part in ("real", "imag")[: 1 + (dtype == "complex64")]:
            a, b = getattr(found, part), getattr(exact, part)
            assert (np.abs(a - b) <= 1.001 * UNIT["float32"] * np.abs(b)).all()


SAME_BITS = """
import hashlib
import numpy as np
import numus as nm

def numbers(*shape):
    return nm.asarray(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32))

def conv(n, c, size, o):
    return nm.conv2d(numbers(n, c, size, size), numbers(o, c, 3, 3), padding=1)

results = [
    *(numbers(m, k) @ numbers(k, n) for m, k, n in %r),
    numbers(40, 700) @ numbers(40, 700).T,
    conv(1, 64, 9, 8),
    nm.scaled_dot_product_attention(*(numbers(2, 600, 16) for _ in range(3))),
    *(reduce(numbers(3000, 70), axis) for reduce in (nm.sum, nm.cumsum) for axis in (0, 1)),
    nm.var(numbers(300_000)), nm.cumsum(numbers(300_000), 0),
]
for x in results:
    print(hashlib.sha256(np.asarray(x).tobytes()).hexdigest())
"""
SIZES = [(60, 600, 70), (3, 600, 1100), (1, 600, 300), (300, 5000, 5)]


def test_bits_of_processes_with_other_thread_counts():
    """Blocking follows the number of threads that a process starts with."""
    running = []
    for count in ("1", "5"):
        environment = {**os.environ, "NUMUS_NUM_THREADS": count, "NUMUS_DEVICE": "cpu"}
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, "-c", SAME_BITS % SIZES]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    one, five = (process.communicate()[0].split() for process in running)
    assert len(one) == 13
    assert one == five
