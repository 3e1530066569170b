"""Attention of few queries, split along the keys, on the interpreted GPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.models.language import attention
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


@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "options", "rows"),
    [
        ("bfloat16", (2, 4, 1, 128), (2, 2, 333, 128), {}, 2),
        ("float16", (1, 8, 2, 80), (1, 2, 200, 80), {}, 8),
        ("bfloat16", (1, 2, 16, 64), (1, 2, 150, 64), {"is_causal": True}, 16),
        ("bfloat16", (1, 4, 3, 96), (1, 2, 150, 96), {"is_causal": True}, 6),
        ("bfloat16", (1, 4, 2, 256), (1, 1, 130, 256), {}, 8),
        ("bfloat16", (1, 1, 3, 40), (1, 1, 130, 40), {}, 3),
        ("bfloat16", (1, 24, 1, 16), (1, 1, 80, 16), {}, 12),
        ("float32", (1, 16, 1, 16), (1, 1, 100, 16), {}, 8),
    ],
)
def test_heads_that_share_keys_are_rows_of_a_block(dtype, queries, keys, options, rows):
    """In 16 bits on tensor cores, up to 16 of them; keys are read once for all."""
    rng = np.random.default_rng(keys[2])
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (queries, keys, keys)]
    mask = rng.random((*queries[:3], keys[2])) < 0.6
    mask[..., :40] = False  # whole tiles without a key
    for own in (options, {"attn_mask": mask}):
        own = {"enable_gqa": True, **own}
        want = attended("cpu", arrays, dtype, **own)
        for device in ("decoding", "decoding_apart"):
            launched = nm.device(device).runtime.launched
            launched.clear()
            got = attended(device, arrays, dtype, **own)
            step = 1e-5 if dtype == "float32" else 2.0 ** -getattr(nm, dtype).mantissa
            assert np.linalg.norm(got - want) <= step * np.linalg.norm(want)
            first = next(p.kernel for p in launched if p.name == "attention_split_keys")
            assert ("mma" in ir.kernel_text(first)) is (dtype != "float32")
            staged = next(b for b in first.buffers if b.name == "stats")
            assert staged.size.attr == 2 * first.block_size // 32 * rows


def test_vectors_of_other_alignments_are_read_by_elements():
    rng = np.random.default_rng(5)
    shapes = ((1, 2, 3, 24), *[(1, 2, 90, 25)] * 2)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]

    def run(device):
        q, k, v = (nm.asarray(a, device=device).astype("bfloat16") for a in arrays)
        k, v = (nm.reshape(x, (-1,))[1:4321].reshape(1, 2, 90, 24) for x in (k, v))
        return nm.scaled_dot_product_attention(q, k, v).astype("float32").numpy()

    np.testing.assert_allclose(run("decoding"), run("cpu"), rtol=2e-2, atol=2e-2)


def decoded(device, dtype, sizes, ats, column=slice(None)):
    """Attention to a cache in which each step replaces a row, and the cache."""
    rows, heads, own, slots, size = sizes
    rng = np.random.default_rng(1)

    def given(*shape):
        return nm.asarray(rng.standard_normal(shape).astype("f"), device=device).astype(dtype)

    caches = given(rows, own, slots, size), given(rows, own, slots, size)
    query, key, value = (
        given(rows, heads, 1, size),
        given(rows, own, 1, size),
        given(rows, own, 1, size),
    )
    nm.eval(caches, query, key, value)

    def step(q, k, v, slot):
        for cache, new in zip(caches, (nm.flip(k, axis=-1) * 2, v), strict=True):
            cache[:, :, slot] = new
        seen = (nm.arange(slots, device=device) <= slot)[None, None, None]
        keys, values = (cache[..., column] for cache in caches)
        return nm.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=True)

    program = nm.jit(step)
    found = [program(query, key, value, nm.asarray([at], device=device)) for at in ats]
    return [x.astype("float32").numpy() for x in (*found, *caches)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(2, 2, 2, 96, 16), (1, 8, 2, 130, 64), (1, 1, 1, 64, 24)])
def test_a_replaced_row_comes_from_its_update(dtype, sizes):
    """Attention does not wait until the row is in memory, and loads the others ahead."""
    machine = nm.device("decoding").runtime
    machine.launched.clear()
    ats = (60, 61, 0, sizes[3] - 1, 60)
    got, want = (decoded(d, dtype, sizes, ats) for d in ("decoding", "cpu"))
    tolerance = 1e-6 if dtype == "float32" else 2e-2
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    names = [p.name for p in machine.launched if p.name in ("attention_split_keys", "scatter_set")]
    assert names == ["attention_split_keys", "scatter_set"] * len(ats)
    kernel = next(p.kernel for p in machine.launched if p.name == "attention_split_keys")
    assert {"k_new_row", "v_new_row"} <= {b.name for b in kernel.buffers}


def test_rows_of_several_updates_come_from_memory():
    machine = nm.device("decoding").runtime
    machine.launched.clear()
    got, want = (_two_rows(d) for d in ("decoding", "cpu"))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    names = [p.name for p in machine.launched]
    assert names.index("scatter_set") < names.index("attention_split_keys")


def _two_rows(device):
    rng = np.random.default_rng(2)
    given = [
        nm.asarray(rng.standard_normal(s).astype("f"), device=device)
        for s in ((1, 2, 256, 16), (1, 2, 2, 16), (1, 2, 1, 16))
    ]
    cache, new, query = given
    nm.eval(given)

    @nm.jit
    def step(q, rows, slots):
        cache[:, :, slots] = rows
        return nm.scaled_dot_product_attention(q, cache, cache)

    return step(query, new, nm.asarray([70, 3], device=device)).numpy()


def test_groups_of_heads_are_parted_where_multiprocessors_would_idle():
    """Eight heads of one group of keys: the splits of one cluster would be too few for 12 SMs."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype("f") for s in ((1, 8, 1, 16), *[(1, 1, 400, 16)] * 2)]
    found = []
    for device in ("decoding", "cpu"):
        nm.device("decoding").runtime.launched.clear()
        given = [nm.asarray(a, device=device) for a in arrays]
        assert attention._shared_heads(8, 8, 2 * given[1].nbytes, nm.device("decoding")) == 4
        found.append(attention.attend(*given).numpy())
        if device == "decoding":
            (kernel,) = [p.kernel for p in nm.device(device).runtime.launched]
            assert kernel.cluster_blocks > 1
    np.testing.assert_allclose(*found, rtol=2e-6, atol=2e-6)
