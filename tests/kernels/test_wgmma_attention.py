"""Attention on wgmma and SIMT, on the simulated GPU."""

import dataclasses

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.compiler.plan import clear_plans
from numus.kernels.attention.gpu import wgmma_pipelined
from numus.runtime.devices import BACKENDS
from numus.runtime.null import NullRuntime

simt_machine.install()
attend = nm.scaled_dot_product_attention
MACHINE = nm.device("simt_wgmma").runtime


def drawn(seed, *shape, dtype):
    """Numbers that a low-precision dtype represents, as float32."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return nm.asarray(x).astype(dtype).astype("float32").numpy()


def found(arrays, cotangent, options, dtype="float32", device="cpu", prepare=lambda x: x):
    """Output and gradients of query, key and value, in float32."""
    given = {
        name: nm.asarray(x, device=device) if isinstance(x, np.ndarray) else x
        for name, x in options.items()
    }
    if "dropout_p" in options:
        given["dropout_key"] = nm.random.key(7).to(device)
    leaves = [nm.asarray(a, device=device).astype(dtype) for a in arrays]
    for x in leaves:
        x.requires_grad = True
    y = attend(*map(prepare, leaves), **given)
    y.backward(nm.asarray(cotangent, device=device).astype(dtype))
    nm.eval([y, *(x.grad for x in leaves)])
    return [x.astype("float32").numpy() for x in (y, *(x.grad for x in leaves))]


def compare(arrays, options, dtype, prepare=lambda x: x, kernels=3, kind="attention_wgmma"):
    q, _, v = (np.asarray(prepare(nm.asarray(a)).numpy()) for a in arrays)
    cotangent = drawn(9, *q.shape[:-1], v.shape[-1], dtype=dtype)
    want = found(arrays, cotangent, options, prepare=prepare)
    MACHINE.launched.clear()
    got = found(arrays, cotangent, options, dtype, "simt_wgmma", prepare)
    names = [p.name for p in MACHINE.launched if "attention" in p.name]
    assert names == [kind, *[f"{kind}_grad"] * (kernels - 1)]
    step = max(2.0 ** -getattr(nm, dtype).mantissa, 4e-7)  # what we compare with is float32
    for a, b in zip(got, want, strict=True):
        assert np.isfinite(a).all()
        assert np.linalg.norm(a - b) <= 1.5 * step * np.linalg.norm(b)


HOLES = np.random.default_rng(2).random((70, 90)) < 0.6
HOLES[5] = False  # a query that attends to no key
SHAPES = {
    "one block": ((1, 20, 16), (1, 30, 16), (1, 30, 16), {}),
    "several blocks": ((1, 70, 64), (1, 150, 64), (1, 150, 64), {}),
    "causal": ((1, 140, 72), (1, 140, 72), (1, 140, 72), {"is_causal": True}),
    "causal, more keys": ((1, 40, 32), (1, 200, 32), (1, 200, 32), {"is_causal": True}),
    "causal, more queries": ((1, 140, 32), (1, 30, 32), (1, 30, 32), {"is_causal": True}),
    "80": ((1, 70, 80), (1, 100, 80), (1, 100, 80), {}),
    "whole blocks of vectors that are no power of two": (*[(1, 128, 48)] * 3, {}),
    "odd sizes": ((2, 30, 33), (2, 70, 33), (2, 70, 21), {}),
    "one query": ((2, 1, 64), (2, 70, 64), (2, 70, 64), {}),
    "mask": ((1, 70, 24), (1, 90, 24), (1, 90, 24), {"attn_mask": HOLES}),
    "bias": ((1, 70, 16), (1, 90, 16), (1, 90, 16), {"attn_mask": HOLES * np.float32(2)}),
    "scale": ((1, 30, 16), (1, 40, 16), (1, 40, 16), {"scale": -0.7}),
    "dropout": ((1, 70, 16), (1, 90, 16), (1, 90, 16), {"dropout_p": 0.3}),
    "pipelined": ((1, 130, 32), (1, 300, 32), (1, 300, 32), {}),
    "pipelined, causal": ((1, 210, 48), (1, 420, 48), (1, 420, 64), {"is_causal": True}),
    "pipelined, causal, more queries": (
        *[(1, n, 16) for n in (500, 260, 260)],
        {"is_causal": True},
    ),
    "pipelined, several heads": (*[(2, n, 16) for n in (150, 270, 270)], {"is_causal": True}),
    "pipelined, no scale": ((1, 100, 16), (1, 300, 16), (1, 300, 16), {"scale": 0.0}),
    "heads in groups": ((4, 20, 16), (2, 40, 16), (2, 40, 16), {"enable_gqa": True}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients(name):
    *shapes, options = SHAPES[name]
    dtype = "float16" if name in ("80", "mask") else "bfloat16"
    compare([drawn(i, *s, dtype=dtype) for i, s in enumerate(shapes)], options, dtype)


def test_results_are_stored_once_in_the_order_of_the_next_layer():
    null = NullRuntime()
    null.target = simt_machine.WGMMA
    BACKENDS["null_wgmma"] = lambda index: null
    x, w = (nm.zeros((128, 128), dtype="bfloat16", device="null_wgmma") for _ in range(2))

    def loss(x, w):
        heads = x.reshape(1, 128, 2, 64).swapaxes(1, 2)
        y = attend(heads, heads, heads, is_causal=True).swapaxes(1, 2).reshape(128, 128)
        return (y @ w).astype("float32").square().sum()

    nm.eval(nm.jit(lambda x, w: nm.grad(loss, (0, 1))(x, w))(x, w))
    (forward,) = [p.kernel for p in null.launched if p.name == "attention_wgmma"]
    assert sum(b.access == "write" for b in forward.buffers) == 2  # log-sum-exp and result


def test_rotated_queries_and_keys_are_computed_once_and_copied():
    turn = np.linspace(0, 1, 16, dtype=np.float32)

    def rotated(x):
        first, second = nm.split(x, 2, -1)
        table = nm.asarray(turn, device=x.device).astype(x.dtype)
        return x * table + nm.concat([-second, first], -1) * (1 - table)

    arrays = [drawn(i, 1, 70, 16, dtype="bfloat16") for i in range(3)]
    compare(arrays, {"is_causal": True}, "bfloat16", rotated)
    attention = [p.kernel for p in MACHINE.launched if "attention" in p.name]
    reads = [sum(b.access == "read" for b in kernel.buffers) for kernel in attention]
    assert reads == [3, 6, 6]  # no tables


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("one block", "float64"),
        ("several blocks", "float32"),
        ("causal, more keys", "float32"),
        ("causal, more queries", "float32"),
        ("odd sizes", "float64"),
        ("mask", "float32"),
        ("dropout", "float32"),
        ("heads in groups", "float32"),
    ],
)
def test_simt_values_and_gradients(name, dtype):
    *shapes, options = SHAPES[name]
    arrays = [drawn(i, *s, dtype=dtype) for i, s in enumerate(shapes)]
    compare(arrays, options, dtype, kind="attention_simt")


@pytest.mark.slow
def test_halves_with_heads_too_large_for_wgmma():
    arrays = [drawn(i, 1, n, 260, dtype="bfloat16") for i, n in enumerate((9, 20, 20))]
    compare(arrays, {}, "bfloat16", kind="attention_simt")


PIPELINED = {  # batch, queries, head and value dimension
    "odd sizes": ((2, 330, 72, 40), {}),
    "as linked": ((3, 290, 48, 64), {}),
    "registers by role": ((3, 130, 90, 128), {}),
    "long heads": ((2, 140, 130, 200), {}),
    "a task per block": ((2, 140, 64, 80), {"persistent": False}),
}


def forward_kernel():
    (kernel,) = [p.kernel for p in MACHINE.launched if p.name == "attention_wgmma"]
    return kernel


@pytest.mark.parametrize("name", PIPELINED)
@pytest.mark.parametrize("causal", [False, True])
def test_pipelined_blocks(name, causal, monkeypatch):
    """The machine has two processors: a block loops over tasks of several matrices."""
    (batch, queries, head_dim, value_dim), fields = PIPELINED[name]
    monkeypatch.setattr(
        wgmma_pipelined, "TUNING", dataclasses.replace(wgmma_pipelined.TUNING, **fields)
    )
    clear_plans()
    shapes = ((batch, queries, head_dim), (batch, 300, head_dim), (batch, 300, value_dim))
    arrays = [drawn(i, *s, dtype="bfloat16") for i, s in enumerate(shapes)]
    given = [nm.asarray(a, device="simt_wgmma").astype("bfloat16") for a in arrays]
    MACHINE.launched.clear()
    got = attend(*given, is_causal=causal).astype("float32").numpy()
    want = attend(*map(nm.asarray, arrays), is_causal=causal).numpy()
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) <= 2.0**-8 * np.linalg.norm(b)
    (roles,) = [s for s in ir.statements(forward_kernel().body) if isinstance(s, ir.WarpRoles)]
    assert bool(roles.registers) == (max(head_dim, value_dim) > 64 or not causal)
    clear_plans()


@pytest.mark.parametrize("causal", [False, True])
def test_pipelined_heads_of_several_batches_read_in_place(causal):
    """Queries, keys and values of all heads lie in one matrix; two heads share keys."""
    x = drawn(1, 2, 270, (4 + 2 + 2) * 16, dtype="bfloat16")

    def heads(x):
        q, k, v = nm.split(x.reshape(2, 270, 8, 16).swapaxes(1, 2), [4, 6], 1)
        return attend(q, k, v, is_causal=causal, enable_gqa=True).swapaxes(1, 2)

    MACHINE.launched.clear()
    got = heads(nm.asarray(x, device="simt_wgmma").astype("bfloat16")).astype("float32").numpy()
    assert any(isinstance(s, ir.WarpRoles) for s in ir.statements(forward_kernel().body))
    want = heads(nm.asarray(x)).numpy()
    for at in np.ndindex(2, 4):
        a, b = (y[at[0], :, at[1]] for y in (got, want))
        assert np.linalg.norm(a - b) <= 2.0**-8 * np.linalg.norm(b)


@pytest.mark.parametrize("shape", [(0, 300, 64), (2, 0, 300, 96)])
def test_pipelined_blocks_of_no_matrix(shape):
    x = nm.zeros(shape, dtype="bfloat16", device="simt_wgmma")
    assert attend(x, x, x).numpy().shape == shape


def test_pipelined_blocks_ignore_keys_that_no_query_sees():
    q, k, v = (drawn(i, n, 16, dtype="bfloat16") for i, n in enumerate((100, 300, 300)))
    want = found([q, k, v], q, {"is_causal": True}, "bfloat16", "simt_wgmma")
    k[100:], v[100:] = np.nan, np.inf
    got = found([q, k, v], q, {"is_causal": True}, "bfloat16", "simt_wgmma")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("growth", [1 / 30, 4, 30])
def test_maxima_that_grow_from_block_to_block(growth):
    """Blocks go from the last keys to the first; little growth rescales nothing."""
    arrays = [drawn(i, 1, n, 16, dtype="bfloat16") for i, n in enumerate((100, 400, 400))]
    arrays[1][:, 128:256] *= growth
    arrays[1][:, :128] *= growth**2
    arrays[1] = arrays[1].astype(nm.bfloat16.np).astype(np.float32)
    g = drawn(9, 1, 100, 16, dtype="bfloat16")
    want, got = (found(arrays, g, {}, *where)[0] for where in ((), ("bfloat16", "simt_wgmma")))
    assert np.linalg.norm(got - want) <= 2.0**-8 * np.linalg.norm(want)


@pytest.mark.slow
def test_large_heads():
    """dk and dv are separate kernels: a thread has too few registers for both."""
    shapes = ((1, 20, 256), (1, 40, 256), (1, 40, 200))
    compare(
        [drawn(i, *s, dtype="bfloat16") for i, s in enumerate(shapes)], {}, "bfloat16", kernels=4
    )


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x: x[:, :, 1:],  # memory that is not aligned
        lambda x: nm.permute_dims(x, (0, 2, 1)),  # rows that are not contiguous
        lambda x: x * 2,  # an expression
        lambda x: x[:, ::2],
    ],
)
def test_operands_that_are_views_or_expressions(prepare):
    arrays = [drawn(i, 4, 18, 16, dtype="bfloat16") for i in range(3)]
    compare(arrays, {}, "bfloat16", prepare)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_keys_that_no_query_sees_do_not_matter(dtype):
    q, k, v = (drawn(i, n, 16, dtype=dtype) for i, n in enumerate((20, 40, 40)))
    want = found([q, k, v], q, {"is_causal": True}, dtype, "simt_wgmma")
    k[20:], v[20:] = np.nan, np.inf
    got = found([q, k, v], q, {"is_causal": True}, dtype, "simt_wgmma")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_nan_propagates():
    q, k, v = (drawn(i, n, 16, dtype="bfloat16") for i, n in enumerate((20, 40, 40)))
    q[1, 3] = np.nan
    y = found([q, k, v], q * 0, {}, "bfloat16", "simt_wgmma")[0]
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, *range(2, 20)]]).all()
