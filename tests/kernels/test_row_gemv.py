"""Products with one vector by warps, norms and gates inside, on the interpreted GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.runtime import devices

rng = np.random.default_rng(3)


@pytest.fixture(scope="module", autouse=True)
def machine():
    devices.BACKENDS["vectors"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("vectors").runtime


def draw(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def check(machine, function, arrays, dtype, kernels):
    """The same on both devices, by these kernels of the interpreted one."""
    own, other = (
        [nm.asarray(a, device=d).astype(dtype) for a in arrays] for d in ("vectors", "cpu")
    )
    nm.eval(*own)
    program = nm.jit(function)
    machine.launched.clear()
    got = program(*own)
    nm.eval(*got) if isinstance(got, tuple) else nm.eval(got)
    names, kernel = [p.name for p in machine.launched], machine.launched[-1].kernel
    want = function(*other)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    tolerance = {"float64": 1e-12, "float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for x, y in pairs:
        assert x.dtype is y.dtype
        x, y = x.astype(nm.float64).numpy(), y.astype(nm.float64).numpy()
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * abs(y).max())
    assert names == kernels
    return kernel


def normed(x, weight):
    wide = x if x.dtype.itemsize >= 4 else x.astype(nm.float32)
    scaled = wide * nm.rsqrt(nm.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return weight * scaled.astype(x.dtype, copy=False)


@pytest.mark.parametrize(
    ("dtype", "rows", "k"),
    [("bfloat16", 67, 264), ("float32", 64, 128), ("float16", 300, 512), ("float64", 65, 66)],
)
def test_norms_are_inside_of_products(machine, dtype, rows, k):
    arrays = [draw(1, k), draw(k), draw(rows, k)]
    check(machine, lambda x, g, w: normed(x, g) @ w.T, arrays, dtype, ["row_gemv"])


def test_gates_and_residuals_are_epilogues(machine):
    def block(x, weight, gate, up, down):
        h = normed(x, weight)
        return x + (nm.silu(h @ gate.T) * (h @ up.T)) @ down.T

    arrays = [draw(1, 256), draw(256), draw(520, 256) / 16, draw(520, 256) / 16, draw(256, 520)]
    for dtype in ("bfloat16", "float32"):
        check(machine, block, arrays, dtype, ["row_gemv", "row_gemv"])


def test_products_of_one_vector_share_a_kernel(machine):
    """Those of the same shape as one group, the others side by side."""

    def projections(x, weight, *matrices):
        h = normed(x, weight)
        return tuple(h @ m.T for m in matrices)

    arrays = [draw(1, 136), draw(136), draw(192, 136), *(draw(70, 136) for _ in range(4))]
    check(machine, projections, arrays, "float32", ["row_gemv"])


def test_matrices_on_the_left_and_vectors_that_begin_anywhere(machine):
    a, x = draw(66, 128), draw(131)
    check(machine, lambda a, x: nm.silu(a @ x[3:]), [a, x], "float32", ["row_gemv"])
    check(machine, lambda a, x: (a @ x[2:130]) * 2, [a, x], "float64", ["row_gemv"])


def test_a_vector_that_others_read_is_stored(machine):
    arrays = [draw(1, 128), draw(128), draw(80, 128)]

    def both(x, g, w):
        h = normed(x, g)
        return h, h @ w.T

    kernels = ["register_row_reduction", "row_gemv"]
    check(machine, both, arrays, "float32", kernels)


def test_centred_vectors(machine):
    def centred(x, w):
        return (x - nm.mean(x, axis=-1, keepdims=True)) / nm.std(x, axis=-1, keepdims=True) @ w.T

    check(machine, centred, [draw(1, 160) + 5, draw(64, 160)], "float32", ["row_gemv"])


def test_weights_of_a_norm_come_before_the_wait(machine):
    def layer(x, gain, first, second):
        return normed(x @ first.T, gain) @ second.T

    arrays = [draw(1, 256), draw(200), draw(200, 256), draw(70, 200)]
    kernel = check(machine, layer, arrays, "float32", ["row_gemv", "row_gemv"])
    inner = list(ir.statements(kernel.body))
    wait = next(i for i, s in enumerate(inner) if isinstance(s, ir.DependencyWait))
    assert len([s for s in inner[:wait] if isinstance(s, ir.Prefetch)]) == 1


def test_misaligned_memory(machine):
    x, w = (nm.asarray(draw(n), device="vectors") for n in (129, 64 * 128 + 1))
    nm.eval(x, w)
    found = nm.from_dlpack(x[1:]) @ nm.from_dlpack(w[1:]).reshape(64, 128).T
    want = x.numpy()[1:] @ w.numpy()[1:].reshape(64, 128).T
    np.testing.assert_allclose(found.numpy(), want, rtol=3e-5, atol=1e-4)


def test_rows_end_within_a_warp(machine):
    """So many rows that a warp takes several."""
    arrays = [draw(1, 128), draw(301, 128), draw(301, 128)]
    two = check(machine, lambda x, a, b: (x @ a.T) * (x @ b.T), arrays, "float32", ["row_gemv"])
    assert sum(b.access == "write" for b in two.buffers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("k", [256, 264, 1032, 2056])
@pytest.mark.parametrize("rows", [64, 97, 1030])
def test_gated_layers(machine, dtype, k, rows):
    weights = [draw(k), draw(rows, k), draw(rows, k), draw(rows)]

    def layer(x, g, gate, up, bias):
        h = normed(x, g)
        return nm.gelu(h @ gate.T + bias) * (h @ up.T + bias)

    check(machine, layer, [draw(1, k), *weights], dtype, ["row_gemv"])
