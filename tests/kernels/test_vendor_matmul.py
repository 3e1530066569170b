"""Matmuls by a vendor's library; the library is NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import dtypes as dt
from numus.kernels.vendor import registry
from numus.kernels.vendor.matmul import MATMUL_BIAS, GemmProblem, StridedMatrix, is_faster

simt_machine.install()
rng = np.random.default_rng(0)


problems: list[GemmProblem] = []


class ByNumpy:
    workspace = 0

    def __init__(self, runtime, problem):
        self.runtime, self.problem = runtime, problem
        problems.append(problem)

    def _read(self, address, matrix, rows, columns):
        kind = dt.BY_NAME[self.problem.dtype].np
        raw, start = self.runtime.view(address)
        flat = raw[start:].view(kind)[matrix.offset :]
        strides = (1, matrix.ld) if matrix.transposed else (matrix.ld, 1)
        shape = (self.problem.batch, rows, columns)
        last = sum(s * (n - 1) for s, n in zip((matrix.batch_stride, *strides), shape, strict=True))
        assert last < len(flat)
        assert matrix.ld >= (rows if matrix.transposed else columns)
        steps = [s * kind.itemsize for s in (matrix.batch_stride, *strides)]
        return np.lib.stride_tricks.as_strided(flat, shape, steps)

    def __call__(self, addresses, workspace):
        p = self.problem
        left = self._read(addresses[0], p.a, p.m, p.k)
        right = self._read(addresses[1], p.b, p.k, p.n)
        wide = np.result_type(left.dtype, np.float32)
        kind = dt.BY_NAME[p.result].np
        result = left.astype(wide) @ right.astype(wide)
        if p.bias:
            raw, start = self.runtime.view(addresses[2])
            result += raw[start:].view(kind)[: p.n]
        result = result.astype(kind)
        raw, start = self.runtime.view(addresses[-1])
        raw[start : start + result.nbytes] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)


@pytest.fixture(autouse=True)
def by_numpy(monkeypatch):
    monkeypatch.setattr(registry._State, "registered", ())
    for operation in ("contract", MATMUL_BIAS):
        nm.kernels.register(
            nm.kernels.Vendor("numpy", operation, lambda p, target: True, is_faster, ByNumpy)
        )
    with nm.kernels.prefer("vendor"):
        yield
    # plans that hold this vendor are for this test alone
    from numus.compiler.plan import clear_plans

    clear_plans()


def run(function, *arrays):
    runtime = nm.device("simt").runtime
    runtime.launched.clear()
    out = function(*[nm.asarray(a, device="simt") for a in arrays]).numpy()
    return out, [p.name for p in runtime.launched]


def draw(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


CASES = {
    "plain": (lambda a, b: a @ b, (draw(5, 7), draw(7, 6)), ["numpy"]),
    "transposed": (lambda a, b: a.T @ b.T, (draw(7, 5), draw(6, 7)), ["numpy"]),
    "parts": (lambda a, b: a[1:, 2:] @ b[:5, 3:], (draw(5, 7), draw(6, 9)), ["numpy"]),
    "vectors": (lambda a, b: a @ b, (draw(1, 9), draw(9, 1)), ["numpy"]),
    "batches": (lambda a, b: a @ b, (draw(3, 5, 7), draw(3, 7, 6)), ["numpy"]),
    "one for all": (lambda a, b: a[:, None] @ b, (draw(3, 5, 7), draw(2, 7, 6)), None),
    "epilogue": (lambda a, b: nm.relu(a @ b + b[0]) * 2, (draw(5, 7), draw(7, 6)), None),
    "expressions": (lambda a, b: (a + 1) @ (b * b), (draw(5, 7), draw(7, 6)), None),
    "backwards": (lambda a, b: a[:, ::-1] @ b, (draw(5, 7), draw(7, 6)), None),
    "every other": (lambda a, b: a[:, ::2] @ b, (draw(5, 14), draw(7, 6)), None),
    "complex": (
        lambda a, b: a[1:] @ b,
        (draw(5, 7, dtype="c8"), draw(7, 6, dtype="c8")),
        ["numpy"],
    ),
    "float64": (lambda a, b: a @ b, (draw(5, 7, dtype="f8"), draw(7, 6, dtype="f8")), ["numpy"]),
    "float16": (lambda a, b: a @ b, (draw(5, 7, dtype="f2"), draw(7, 6, dtype="f2")), ["numpy"]),
}


@pytest.mark.parametrize("name", CASES)
def test_matmul_by_a_vendor(name):
    function, arrays, kernels = CASES[name]
    got, names = run(function, *arrays)
    assert "numpy" in names
    if kernels is not None:
        assert names == kernels
    with nm.kernels.prefer("native"):
        want, names = run(function, *arrays)
    assert "numpy" not in names
    tolerance = 1e-2 if got.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def bf16(*shape):
    return draw(*shape, dtype=dt.bfloat16.np)


BIASES = {
    # function, operands, kernels, and how many of the matmuls have a bias
    "plain": (lambda x, w, b: x @ w.T + b, (draw(5, 7), draw(6, 7), draw(6)), ["numpy"], 1),
    "first": (lambda x, w, b: b + x @ w.T, (draw(5, 7), draw(6, 7), draw(6)), ["numpy"], 1),
    "bfloat16": (lambda x, w, b: x @ w.T + b, (bf16(5, 7), bf16(6, 7), bf16(6)), ["numpy"], 1),
    "rows of rows": (
        *(lambda x, w, b: x @ w.T + b, (draw(2, 5, 7), draw(6, 7), draw(6)), ["numpy"], 1),
    ),
    "batches": (lambda x, w, b: x @ w + b, (draw(3, 5, 7), draw(3, 7, 6), draw(6)), ["numpy"], 1),
    "activation": (lambda x, w, b: nm.relu(x @ w + b), (draw(5, 7), draw(7, 6), draw(6)), None, 1),
    "residual": (*(lambda x, w, b: x + (x @ w + b), (draw(5, 7), draw(7, 7), draw(7)), None, 1),),
    "cast": (
        *(lambda x, w, b: x @ w + b.astype(nm.bfloat16), (bf16(5, 7), bf16(7, 6), draw(6)), None),
        1,
    ),
    "both wanted": (
        *(lambda x, w, b: nm.stack([x @ w + b, x @ w]), (draw(5, 7), draw(7, 6), draw(6)), None),
        0,
    ),
    "used twice": (
        *(lambda x, w, b: (x @ w + b) * (x @ w), (draw(5, 7), draw(7, 6), draw(6)), None, 0),
    ),
    "a column": (lambda x, w, b: x @ w + b[:, None], (draw(6, 7), draw(7, 6), draw(6)), None, 0),
    "a number": (lambda x, w, b: x @ w + b[0], (draw(5, 7), draw(7, 6), draw(6)), None, 0),
    "a part": (lambda x, w, b: x @ w + b[1:], (draw(5, 7), draw(7, 6), draw(7)), None, None),
    "backwards": (lambda x, w, b: x @ w + b[::-1], (draw(5, 7), draw(7, 6), draw(6)), None, 0),
    "every other": (lambda x, w, b: x @ w + b[::2], (draw(5, 7), draw(7, 6), draw(12)), None, 0),
    "one column": (lambda x, w, b: x @ w + b, (draw(5, 7), draw(7, 1), draw(1)), ["numpy"], 1),
    "twice itself": (lambda x, w, b: x @ w + x @ w, (draw(5, 7), draw(7, 6), draw(6)), None, 0),
    "float64": (
        lambda x, w, b: x @ w + b,
        tuple(draw(*shape, dtype="f8") for shape in ((5, 7), (7, 6), (6,))),
        *(None, 0),
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_bias_by_the_vendor(name):
    function, arrays, kernels, biased = BIASES[name]
    problems.clear()
    got, names = run(function, *arrays)
    if kernels is not None:
        assert names == kernels
    if biased is not None:
        assert sum(p.bias for p in problems) == biased
    with nm.kernels.prefer("native"):
        want, _ = run(function, *arrays)
    tolerance = 1e-2 if got.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=tolerance, atol=tolerance)


def test_bias_is_added_before_rounding():
    x, w, b = bf16(9, 33), bf16(33, 8), bf16(8)
    got, _ = run(lambda x, w, b: x @ w + b, x, w, b)
    want = (x.astype("f4") @ w.astype("f4") + b.astype("f4")).astype(dt.bfloat16.np)
    assert np.array_equal(got, want)


def test_bias_gradients():
    x, w, b = (nm.asarray(a, device="simt") for a in (draw(6, 5), draw(4, 5), draw(4)))
    loss = lambda w, b: nm.tanh(x @ w.T + b).sum()
    got = nm.jit(nm.grad(loss, argnums=(0, 1)))(w, b)
    with nm.kernels.prefer("native"):
        want = nm.grad(loss, argnums=(0, 1))(w, b)
    for g, h in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-4, atol=1e-5)


def test_vendor_without_bias(monkeypatch):
    monkeypatch.setattr(registry._State, "registered", ())
    yes = lambda p, target: True
    nm.kernels.register(nm.kernels.Vendor("numpy", "contract", yes, is_faster, ByNumpy))
    function, arrays, *_ = BIASES["plain"]
    problems.clear()
    got, names = run(function, *arrays)
    assert names[0] == "numpy"
    assert len(names) == 2
    assert [p.bias for p in problems] == [False]
    np.testing.assert_allclose(got, arrays[0] @ arrays[1].T + arrays[2], rtol=1e-5, atol=1e-5)


def test_jit_and_gradients():
    x, w = (nm.asarray(draw(6, 6), device="simt") for _ in range(2))

    def loss(w, x):
        return nm.tanh(x @ w @ w).sum()

    got = nm.jit(nm.grad(loss))(w, x)
    names = lambda f: [kernel.name for kernel in nm.explain(f, w, x).kernels]
    assert "numpy" in names(nm.jit(nm.grad(loss)))
    with nm.kernels.prefer("native"):
        want = nm.grad(loss)(w, x)
        assert "numpy" not in names(loss)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_is_faster():
    def problem(dtype, n, extra):
        matrix = StridedMatrix(0, 0, n, False)
        return GemmProblem(1, n, n, n, dtype, dtype, matrix, matrix, extra)

    assert is_faster(problem("float64", 512, 0), None)
    assert is_faster(problem("float64", 4096, 2 * 8 * 4096**2), None)
    assert not is_faster(problem("float64", 8, 2 * 8 * 8**2 * 16), None)
    assert not is_faster(problem("int8", 512, 0), None)  # not measured
    # a batch whose matmuls share operands by twos: copied for the library, or loaded by element
    matrix = StridedMatrix(0, 256 * 64, 64, False)
    moved = 2 * 4 * 128 * (256 + 256) * 64
    batch = (128, 256, 256, 64, "float32", "float32", matrix, matrix, moved)
    assert is_faster(GemmProblem(*batch, copies_operand=True), None)


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k", "lds", "vendor"),
    [
        ("bfloat16", 4096, 4096, 4096, (4096, 4096), True),
        ("bfloat16", 4096, 50257, 768, (768, 768), False),  # rows of the result are misaligned
        ("bfloat16", 300, 700, 1000, (1000, 1000), False),
        ("bfloat16", 300, 700, 1000, (1000, 700), True),  # too small for repacking
        ("bfloat16", 4095, 4095, 4095, (4095, 4095), False),
        ("float32", 4095, 4095, 4095, (4095, 4095), True),
        ("bfloat16", 8, 50257, 768, (768, 768), True),
        ("bfloat16", 4096, 4096, 1, (1, 4096), False),
        ("float32", 4096, 4096, 1, (1, 4096), False),
        ("float64", 4096, 4096, 1, (1, 4096), True),
        ("bfloat16", 4096, 4096, 8, (8, 4096), False),  # bound by writing the result
        ("float32", 1000, 1000, 8, (8, 1000), False),
        ("float32", 4096, 4096, 9, (9, 4096), True),
        ("bfloat16", 16, 4096, 8, (8, 4096), True),
        ("float32", 8, 4096, 4096, (4096, 4096), False),  # by reading the matrix
        ("float32", 8, 512, 512, (512, 512), True),
        ("float32", 1000000, 8, 64, (64, 8), True),
        ("float32", 17, 4096, 4096, (4096, 4096), True),
        ("bfloat16", 1, 4096, 4096, (4096, 4096), False),
        ("bfloat16", 1, 512, 512, (512, 512), True),
    ],
)
def test_native_is_faster(dtype, m, n, k, lds, vendor):
    left, right = (StridedMatrix(0, 0, ld, False) for ld in lds)
    assert is_faster(GemmProblem(1, m, n, k, dtype, dtype, left, right, 0), None) is vendor


def test_k_major_gemv_is_native():
    for transposed in (True, False):
        rows, column = StridedMatrix(0, 0, 512, transposed), StridedMatrix(0, 0, 1, False)
        for dtype in ("float32", "bfloat16"):
            problem = GemmProblem(1, 512, 1, 512, dtype, dtype, rows, column, 0)
            assert is_faster(problem, None) is transposed


def test_empty_matmuls_are_native():
    got, names = run(lambda a, b: a @ b, draw(4, 0), draw(0, 3))
    assert "numpy" not in names
    assert got.tolist() == np.zeros((4, 3)).tolist()


def test_winograd_matmuls_by_a_vendor(monkeypatch):
    from numus.compiler.lower.conv import tuning, winograd

    monkeypatch.setattr(tuning, "GPU", replace(tuning.GPU, min_padded_gemm_macs=1))
    monkeypatch.setattr(winograd, "cost", lambda g, engine: 0)
    x, w, up = draw(2, 3, 6, 5), draw(4, 3, 3, 3), draw(2, 4, 6, 5)

    def both_ways(x, w, up):
        y, pull = nm.vjp(lambda x, w: nm.conv2d(x, w, padding=1), x, w)
        return (y, *pull(up))

    runtime = nm.device("simt_sm80").runtime
    runtime.launched.clear()
    got = both_ways(*(nm.asarray(a, device="simt_sm80") for a in (x, w, up)))
    nm.eval(got)
    assert [p.name for p in runtime.launched].count("numpy") == 3
    want = both_ways(*(nm.asarray(a.astype(np.float64)) for a in (x, w, up)))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
