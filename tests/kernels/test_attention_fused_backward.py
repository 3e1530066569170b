"""All gradients of attention by one pass, on an interpreted GPU whose blocks start in order."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.kernels.attention.gpu import wgmma_backward_fused
from numus.runtime import devices


@pytest.fixture(scope="module", autouse=True)
def machine():
    """Heads of all sizes and numbers."""
    before = wgmma_backward_fused.TUNING
    wgmma_backward_fused.TUNING = replace(before, head_dims=(1, 128), min_blocks=(0, 0))
    target = replace(simt_machine.WGMMA, name="in_order", forward_progress=True)
    devices.BACKENDS["in_order"] = lambda index: simt_machine.Machine(target)
    yield
    wgmma_backward_fused.TUNING = before


def drawn(seed, *shape, dtype="bfloat16"):
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return nm.asarray(x).astype(dtype).astype("float32").numpy()


def gradients(device, arrays, options, dtype="float32"):
    *given, g = (nm.asarray(a, device=device).astype(dtype) for a in arrays)
    _, pull = nm.vjp(lambda *x: nm.scaled_dot_product_attention(*x, **options), *given)
    found = pull(g)
    nm.eval(found)
    return [x.astype("float32").numpy() for x in found]


CASES = {
    "causal": ((1, 300, 72), (1, 300, 72), "bfloat16", {"is_causal": True}),
    "parts of tiles": ((1, 257, 64), (1, 333, 64), "float16", {}),
    "causal, more keys": ((1, 256, 16), (1, 400, 16), "bfloat16", {"is_causal": True}),
    "causal, more queries": ((1, 400, 16), (1, 256, 16), "bfloat16", {"is_causal": True}),
    "groups of heads": ((2, 256, 24), (1, 256, 24), "bfloat16", {"enable_gqa": True}),
    "128": ((1, 260, 128), (1, 270, 128), "bfloat16", {"scale": 0.3}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    queries, keys, dtype, options = CASES[name]
    shapes = (queries, keys, keys, queries)
    arrays = [drawn(i, *s, dtype=dtype) for i, s in enumerate(shapes)]
    launched = nm.device("in_order").runtime.launched
    launched.clear()
    got = gradients("in_order", arrays, options, dtype)
    names = [p.name for p in launched if "attention" in p.name]
    assert names == ["attention_wgmma", "attention_wgmma_grad", "attention_round_dq"]
    step = 2.0 ** -getattr(nm, dtype).mantissa
    for a, b in zip(got, gradients("cpu", arrays, options), strict=True):
        assert np.linalg.norm(a - b) <= 1.5 * step * np.linalg.norm(b)


def test_keys_that_no_query_sees_do_not_matter():
    arrays = [drawn(i, 1, n, 16) for i, n in enumerate((256, 400, 400, 256))]
    want = gradients("in_order", arrays, {"is_causal": True}, "bfloat16")
    arrays[1][:, 256:], arrays[2][:, 256:] = np.nan, np.inf
    got = gradients("in_order", arrays, {"is_causal": True}, "bfloat16")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("causal", [False, True])
def test_few_blocks_take_two_kernels(causal, monkeypatch):
    limited = replace(wgmma_backward_fused.TUNING, min_blocks=(3, 2))
    monkeypatch.setattr(wgmma_backward_fused, "TUNING", limited)
    launched = nm.device("in_order").runtime.launched
    for heads in (1, 2, 3):  # two blocks each, of two multiprocessors
        arrays = [drawn(i, heads, 256, 16) for i in range(4)]
        launched.clear()
        gradients("in_order", arrays, {"is_causal": causal}, "bfloat16")
        fused = "attention_round_dq" in [p.name for p in launched]
        assert fused is (heads >= (2 if causal else 3))


def test_a_mask_or_few_queries_take_two_kernels():
    for queries, options in ((100, {}), (256, {"attn_mask": np.ones((256, 256), bool)})):
        options = {k: nm.asarray(v, device="in_order") for k, v in options.items()}
        arrays = [drawn(i, 1, n, 16) for i, n in enumerate((queries, 256, 256, queries))]
        launched = nm.device("in_order").runtime.launched
        launched.clear()
        gradients("in_order", arrays, options, "bfloat16")
        assert [p.name for p in launched].count("attention_wgmma_grad") == 2
