"""Attention of few queries, split along the keys, on the interpreted GPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices


@pytest.fixture(scope="module", autouse=True)
def machine():
    clusters = replace(simt_machine.HOPPER, name="clusters", num_cores=12)
    apart = replace(clusters, name="apart", max_cluster_size=1)
    devices.BACKENDS["decoding"] = lambda index: simt_machine.Machine(clusters)
    devices.BACKENDS["decoding_apart"] = lambda index: simt_machine.Machine(apart)


def attended(device, arrays, dtype, **options):
    given = [nm.asarray(a, device=device).astype(dtype) for a in arrays]
    options = {
        k: nm.asarray(v, device=device) if k == "attn_mask" else v for k, v in options.items()
    }
    return nm.scaled_dot_product_attention(*given, **options).astype("float32").numpy()


@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "size", "value_size"),
    [
        ("float32", 1, 130, 16, 16),
        ("float32", 3, 65, 12, 20),
        ("bfloat16", 1, 200, 64, 64),
        ("bfloat16", 8, 97, 40, 24),
        ("float64", 2, 70, 6, 6),
        ("float32", 1, 300, 128, 128),
    ],
)
def test_few_queries(dtype, queries, keys, size, value_size):
    rng = np.random.default_rng(keys)
    shapes = ((2, 2, queries, size), (2, 2, keys, size), (2, 2, keys, value_size))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    mask = rng.random((2, 1, queries, keys)) < 0.7
    mask[0] &= np.arange(keys) < 40  # whole splits without a key
    combined = {"decoding": set(), "decoding_apart": {"attention_combine"}}
    for device, second in combined.items():
        launched = nm.device(device).runtime.launched
        launched.clear()
        for options in ({}, {"attn_mask": mask}, {"is_causal": True}):
            got = attended(device, arrays, dtype, **options)
            want = attended("cpu", arrays, dtype, **options)
            tolerance = 2e-2 if dtype == "bfloat16" else 2e-6
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        kernels = [p.kernel for p in launched if "attention" in p.name]
        split = kernels[0].cluster_blocks > 1 or "attention_combine" in {k.name for k in kernels}
        assert {k.name for k in kernels} == {"attention_split_keys", *(second if split else ())}


def test_shared_heads_and_no_keys():
    rng = np.random.default_rng(0)
    shapes = ((1, 4, 1, 16), (1, 2, 80, 16), (1, 2, 80, 16))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    for options in (
        {"enable_gqa": True},
        {"enable_gqa": True, "attn_mask": np.zeros((1, 80), bool)},
    ):
        got, want = (attended(d, arrays, "float32", **options) for d in ("decoding", "cpu"))
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
