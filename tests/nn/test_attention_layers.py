"""What attention has beyond PyTorch's: groups, caches, rotary positions."""

import math

import numpy as np
import pytest

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.nn import functional as F


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_a_cache_gives_what_the_whole_gives(groups, rotary):
    block = nn.TransformerBlock(
        *(16, 4, 32),
        causal=True,
        rotary=rotary,
        num_kv_heads=groups,
        norm="rms",
        activation="swiglu",
    )
    x = nm.random.normal((2, 7, 16), key=nm.random.key(0))
    whole = block(x)
    cache = nn.KVCache()
    parts = [block(x[:, :3], cache=cache)]
    parts += [block(x[:, t : t + 1], cache=cache) for t in range(3, 7)]
    assert cache.length == 7
    close(nm.concat(parts, axis=1), whole)


@pytest.mark.parametrize("groups", [pytest.param(4, marks=pytest.mark.slow), 2])
def test_a_traced_function_decodes_with_a_static_cache(groups):
    block = nn.TransformerBlock(16, 4, 32, causal=True, rotary=True, num_kv_heads=groups).eval()
    x = nm.random.normal((2, 7, 16), key=nm.random.key(0))
    cache = nn.StaticKVCache(2, groups, 9, 4)
    calls = []

    @nm.jit
    def decode(token):
        calls.append(1)
        return block(token, cache=cache)

    with nm.no_grad():
        whole = block(x)
        for _ in range(2):
            parts = [block(x[:, :3], cache=cache)]
            parts += [decode(x[:, t : t + 1]) for t in range(3, 7)]
            assert cache.length.item() == 7
            close(nm.concat(parts, axis=1), whole)
            cache.reset()
        assert len(calls) == 1
        everything, _ = block.self_attn(x, cache=cache)  # not causal: all that is filled is seen
        close(everything, block.self_attn(x)[0])


def test_groups_share_keys_and_values():
    grouped = nn.MultiheadAttention(8, 4, num_kv_heads=2, batch_first=True)
    plain = nn.MultiheadAttention(8, 4, batch_first=True)
    w = grouped.in_proj_weight.detach()
    q, k, v = w[:8], w[8:12], w[12:]
    twice = [nm.repeat(part.reshape((2, 2, 8)), 2, axis=0).reshape((8, 8)) for part in (k, v)]
    with nm.no_grad():
        plain.in_proj_weight.assign(nm.concat([q, *twice]))
        plain.out_proj.weight.assign(grouped.out_proj.weight)
    x = nm.random.normal((2, 5, 8), key=nm.random.key(1))
    for a, b in zip(grouped(x), plain(x), strict=True):
        close(a, b)
    with pytest.raises(ShapeError, match="num_heads by num_kv_heads=3"):
        nn.MultiheadAttention(8, 4, num_kv_heads=3)


def test_causal_weights():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = nm.random.normal((1, 4, 8), key=nm.random.key(2))
    out, weights = attention(x, is_causal=True, average_attn_weights=False)
    assert weights.shape == (1, 2, 4, 4)
    assert not np.triu(weights.numpy(), 1).any()
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-6)
    masked, _ = attention(x, attn_mask=~F.causal_mask(4, 4))
    close(out, masked)
    padded, _ = attention(
        x, key_padding_mask=nm.asarray([[False, False, False, True]]), is_causal=True
    )
    close(padded[:, :3], out[:, :3])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_scores_depend_on_distance(interleaved):
    q, k = (nm.random.normal((1, 8), key=nm.random.key(i), dtype="f64") for i in (3, 4))

    def score(i, j):
        a = F.rotary_embedding(q, nm.asarray([i]), interleaved=interleaved)
        b = F.rotary_embedding(k, nm.asarray([j]), interleaved=interleaved)
        return (a @ b.T).item()

    assert score(5, 2) == pytest.approx(score(103, 100), rel=1e-9)
    assert score(5, 2) != pytest.approx(score(5, 3), rel=1e-3)


def test_rotary_is_a_rotation():
    x = nm.random.normal((2, 3, 4, 6), key=nm.random.key(5))
    y = nn.RotaryEmbedding(dim=4)(x)
    np.testing.assert_array_equal(y.numpy()[..., 4:], x.numpy()[..., 4:])
    np.testing.assert_array_equal(y.numpy()[:, :, 0], x.numpy()[:, :, 0])
    angle = 3.0
    a, b = x.numpy()[0, 1, 3, 0], x.numpy()[0, 1, 3, 2]
    expected = a * math.cos(angle) - b * math.sin(angle)
    assert y.numpy()[0, 1, 3, 0] == pytest.approx(expected, rel=1e-5)
    close(nn.RotaryEmbedding()(x[:, :, 2:], offset=2), nn.RotaryEmbedding()(x)[:, :, 2:])
    rows = nm.asarray([[0, 1, 2, 3], [4, 5, 6, 7]])  # one row of positions for each example
    close(F.rotary_embedding(x, rows)[1], nn.RotaryEmbedding()(x[1], offset=4))
    with pytest.raises(ShapeError, match="pairs"):
        F.rotary_embedding(nm.ones((2, 5)))


def test_added_positions():
    table = nn.SinusoidalPositionalEncoding(6, 10)
    y = table(nm.zeros((1, 4, 6)), offset=2).numpy()
    assert y[0, 1, 2] == pytest.approx(math.sin(3 / 10000 ** (2 / 6)), rel=1e-5)
    assert y[0, 1, 3] == pytest.approx(math.cos(3 / 10000 ** (2 / 6)), rel=1e-5)
    assert not table.state_dict()
    learned = nn.LearnedPositionalEncoding(5, 6)
    close(learned(nm.zeros((2, 3, 6)))[1], learned.weight[:3])
    with pytest.raises(ShapeError, match="go beyond"):
        learned(nm.zeros((1, 6, 6)))


def test_a_module_as_a_function():
    layer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    params = dict(layer.named_parameters())
    x = nm.random.normal((5, 3), key=nm.random.key(6))

    def loss(params, x):
        return nn.functional_call(layer, params, x).square().mean()

    gradient = nm.grad(loss)(params, x)
    layer(x).square().mean().backward()
    for name, p in layer.named_parameters():
        close(gradient[name], p.grad)
    # many models at once
    many = {n: nm.stack([p.detach(), p.detach() * 2]) for n, p in params.items()}
    both = nm.vmap(loss, in_axes=(0, None))(many, x)
    np.testing.assert_allclose(both[0].item(), loss(params, x).item(), rtol=1e-5)
    # one gradient for each example
    each = nm.vmap(nm.grad(loss), in_axes=(None, 0))(params, x[:, None])
    mean = each["0.weight"].mean(axis=0)
    np.testing.assert_allclose(mean.numpy(), gradient["0.weight"].numpy(), rtol=1e-4, atol=1e-6)
    assert layer[0].weight is params["0.weight"]
    with pytest.raises(KeyError, match=r"no 9\.weight"):
        nn.functional_call(layer, {"9.weight": x}, x)


def test_recurrent_errors_and_edges():
    with pytest.raises(ShapeError, match="no steps"):
        nn.GRU(3, 4)(nm.zeros((0, 2, 3)))
    with pytest.raises(ShapeError, match=r"hx of shape \(1, 3, 4\), not \(1, 2, 4\)"):
        nn.GRU(3, 4)(nm.zeros((5, 2, 3)), nm.zeros((1, 3, 4)))
    with pytest.raises(ShapeError, match=r"takes \(length, batch, 3\)"):
        nn.LSTM(3, 4)(nm.zeros((5, 2, 4)))
    out, (h, c) = nn.LSTM(3, 4, dropout=0.5, num_layers=2).double()(
        nm.zeros((1, 2, 3), dtype="f64")
    )
    assert (out.dtype, h.shape, c.shape) == (nm.float64, (2, 2, 4), (2, 2, 4))
    assert "num_layers=2" in repr(nn.LSTM(3, 4, num_layers=2))
