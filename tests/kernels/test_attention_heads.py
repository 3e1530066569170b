"""Attention of heads that are slices of one projection, on the simulated GPU: operands are read
and results stored through views, without copies."""

import numpy as np
import pytest
import simt_machine

import numus as nm

simt_machine.install()


def heads(x, length, count):
    """(batch, length, 3 count size): the result of attention, (batch, length, count size)."""
    batch, _, width = x.shape
    parts = x.reshape(batch, length, 3, count, width // 3 // count)
    q, k, v = (parts[:, :, i].permute(0, 2, 1, 3) for i in range(3))
    y = nm.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.permute(0, 2, 1, 3).reshape(batch, length, width // 3)


def both_ways(x, out, w, length, count):
    """Attention between two matmuls, and its gradient by the input."""

    def run(x):
        return heads(x @ w, length, count) @ out

    y, pull = nm.vjp(run, x)
    (gradient,) = pull(y)
    return y, gradient


def launched(device, function, *arrays, dtype):
    runtime = nm.device(device).runtime
    given = [nm.asarray(a, device=device).astype(dtype) for a in arrays]
    nm.eval(*given)
    runtime.launched.clear()
    found = nm.jit(function)(*given)
    nm.eval(*found)
    programs = list(runtime.launched)
    return [x.astype("float32").numpy() for x in found], programs


@pytest.mark.parametrize(("device", "length"), [("simt_wgmma", 130), ("simt", 20)])
def test_heads_of_one_projection(device, length):
    dtype = "bfloat16" if device == "simt_wgmma" else "float32"
    rng, count, width = np.random.default_rng(0), 2, 32
    shapes = ((2, length, width), (width, width), (width, 3 * width))
    arrays = [rng.standard_normal(s).astype(np.float32) / 3 for s in shapes]
    arrays = [nm.asarray(a).astype(dtype).astype("float32").numpy() for a in arrays]

    def run(x, out, w):
        return both_ways(x, out, w, length, count)

    want = [x.numpy() for x in run(*map(nm.asarray, arrays))]
    got, programs = launched(device, run, *arrays, dtype=dtype)
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) <= (1e-2 if dtype == "bfloat16" else 1e-5) * np.linalg.norm(b)
    attention = [p for p in programs if "attention" in p.name]
    names = [p.name for p in programs]
    assert "pointwise" not in names, "dq, dk and dv are stored to one buffer, without a copy"
    if device == "simt_wgmma":
        for program in attention:
            assert "copy 16" in program.text, "operands are copied by 16-byte cp.async"


def test_results_are_stored_plain_and_through_views():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 3, 20, 8)).astype(np.float32) for _ in range(3))
    w = rng.standard_normal((24, 5)).astype(np.float32)

    def run(q, k, v, w):
        y = nm.scaled_dot_product_attention(q, k, v)
        return y, y.permute(0, 2, 1, 3).reshape(40, 24) @ w, y.permute(3, 0, 1, 2) + 1

    want = [x.numpy() for x in run(*map(nm.asarray, (q, k, v, w)))]
    got, _ = launched("simt", run, q, k, v, w, dtype="float32")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
