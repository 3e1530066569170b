"""Attention of threads that are lanes of a vector, against the CPU's: on the imitated machine, and
on a software adapter for WebGPU where there is one."""

import group_machine
import numpy as np
import pytest

import numus as nm
from numus.kernels import vector_attention

group_machine.install()


# queries, keys, their size, the width of values: whole runs and not, several spans
CASES = [
    ("lockstep8", (19, 70, 16, 12), {}),
    ("lockstep8", (20, 20, 12, 16), {"is_causal": True}),
    ("lockstep4", (9, 40, 8, 40), {}),
]
if group_machine.has_software_adapter():
    CASES += [
        ("webgpu", (40, 70, 64, 64), {}),
        ("webgpu", (75, 75, 24, 130), {"is_causal": True}),
        ("webgpu", (33, 33, 20, 12), {"is_causal": True, "scale": 0.3}),
    ]


def compare(device, f, arrays, bound=2e-6):
    results = []
    for place in (device, "cpu"):
        results.append(f(*(nm.asarray(a).to(place) for a in arrays)))
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), atol=bound, rtol=0)


def drawn(queries, keys, size, width, lead=(2,)):
    rng = np.random.default_rng(0)
    shapes = (queries, size), (keys, size), (keys, width)
    return [rng.standard_normal((*lead, *s)).astype(np.float32) for s in shapes]


@pytest.mark.parametrize(("device", "sizes", "how"), CASES)
def test_attention_by_blocks_of_keys(device, sizes, how, monkeypatch):
    if sizes[2] == 64:
        monkeypatch.setattr(vector_attention, "SMALL", 0)  # large tiles
    attend = nm.scaled_dot_product_attention
    compare(device, lambda q, k, v: [attend(q, k, v, **how)], drawn(*sizes))
    if device != "webgpu":
        assert nm.device(device).runtime.launched[-1].name == "vector_attention"


HERE = "webgpu" if group_machine.has_software_adapter() else "lockstep8"


def test_masks_and_rows_that_see_nothing():
    q, k, v = drawn(11, 21, 8, 8)
    seen = np.random.default_rng(1).random((11, 21)) < 0.6
    seen[3] = False
    bias = np.random.default_rng(2).standard_normal((2, 11, 21)).astype(np.float32)
    bias[0, 2] = -np.inf
    attend = nm.scaled_dot_product_attention
    compare(HERE, lambda q, k, v, m: [attend(q, k, v, attn_mask=m)], (q, k, v, seen))
    compare(HERE, lambda q, k, v, m: [attend(q, k, v, attn_mask=m)], (q, k, v, bias))
    q[1, 4, 2] = np.nan
    k[0, 20] = np.inf
    compare(HERE, lambda q, k, v: [attend(q, k, v)], (q, k, v))


GRADIENTS = [
    ("lockstep8", (9, 13, 8, 8), {}),
    ("lockstep4", (10, 10, 6, 12), {"is_causal": True}),
]
if group_machine.has_software_adapter():
    GRADIENTS += [
        ("webgpu", (40, 70, 64, 72), {}),
        ("webgpu", (43, 43, 24, 16), {"is_causal": True}),
    ]


@pytest.mark.parametrize(("device", "sizes", "how"), GRADIENTS)
def test_gradients_by_blocks(device, sizes, how):
    def step(q, k, v):
        def loss(q, k, v):
            return nm.sum(nm.scaled_dot_product_attention(q, k, v, **how) ** 2)

        return nm.grad(loss, argnums=(0, 1, 2))(q, k, v)

    compare(device, step, drawn(*sizes, lead=(1,)), 1e-5)
    if device != "webgpu":
        names = [p.name for p in nm.device(device).runtime.launched]
        assert "vector_attention_grad" in names
        assert "attention_grad" not in names


def test_gradients_with_masks():
    q, k, v = drawn(11, 21, 8, 8, lead=(1,))
    seen = np.random.default_rng(1).random((11, 21)) < 0.6
    seen[3] = False

    def step(q, k, v, m):
        def loss(q, k, v):
            return nm.sum(nm.scaled_dot_product_attention(q, k, v, attn_mask=m) ** 2)

        return nm.grad(loss, argnums=(0, 1, 2))(q, k, v)

    compare(HERE, step, (q, k, v, seen), 1e-5)


@pytest.mark.skipif(not group_machine.has_software_adapter(), reason="there is no software adapter")
def test_heads_narrow_floats_and_training():
    q, k, v = drawn(24, 24, 16, 16, lead=(2, 3))
    attend = nm.scaled_dot_product_attention

    def step(q, k, v):
        def loss(q, k, v):
            return nm.sum(attend(q, k, v, is_causal=True) ** 2)

        return nm.grad(loss, argnums=(0, 1, 2))(q, k, v)

    compare("webgpu", step, (q, k, v), 1e-5)
    turned = [np.swapaxes(a, 1, 2).copy() for a in (q, k, v)]  # heads in the middle
    compare(
        "webgpu", lambda *qkv: [attend(*(nm.permute_dims(a, (0, 2, 1, 3)) for a in qkv))], turned
    )
    halves = [a.astype(np.float16) for a in (q, k, v)]
    compare("webgpu", lambda q, k, v: [attend(q, k, v)], halves, 2e-3)


@pytest.mark.skipif(not group_machine.has_software_adapter(), reason="there is no software adapter")
def test_more_keys_than_a_loop_has_turns():
    q, k, v = drawn(2, 70_000, 8, 8, lead=(1,))
    compare("webgpu", lambda q, k, v: [nm.scaled_dot_product_attention(q, k, v)], (q, k, v))
