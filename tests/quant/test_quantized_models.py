"""Quantised layers and models: swapped, saved, resumed, loaded from other layouts, trained."""

import json

import numpy as np
import pytest

import numus as nm
from numus import nn, optim
from numus.errors import RecordError, ShapeError
from numus.quant.nf4 import nf4_values


def mlp(seed=0):
    nm.random.seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))


def inputs(rows=16):
    return nm.asarray(np.random.default_rng(1).standard_normal((rows, 64), dtype=np.float32))


def distance(a, b):
    return float(np.linalg.norm(a.numpy() - b.numpy()) / np.linalg.norm(b.numpy()))


SCHEMES = {
    **{"int8": 0.02, "int4-g32": 0.15, "int4-g32-mse": 0.15, "int4-g32-percentile": 0.15},
    **{"int4-g32-hqq": 0.15, "int4-g32-hessian": 0.15, "int4-g32-gptq": 0.15, "nf4-g32": 0.2},
    **{"int4-g32-gptqo": 0.15, "int4-g32-awq": 0.15, "int8-smooth": 0.02, "int8-llmint8": 0.02},
    **{"int4-g32-spqr": 0.15},
}


def test_every_scheme_keeps_the_outputs():
    x = inputs(128)
    for scheme, bound in SCHEMES.items():
        model = mlp()
        wanted = model(x)
        report = nm.quant.quantize_(model, scheme, data=[x[:64], x[64:]], at_once=2)
        assert isinstance(model[0], nn.QLinear)
        assert distance(model(x), wanted) < bound, scheme
        assert report.bytes_after < report.bytes_before / 2
        assert "total" in str(report)


def test_outlier_columns_stay_in_full():
    x = inputs(64) * nm.asarray(np.where(np.arange(64) == 5, 50.0, 1.0).astype(np.float32))
    plain, mixed = mlp(), mlp()
    wanted = plain(x)
    nm.quant.quantize_(plain, "int4-g32")
    nm.quant.quantize_(mixed, "int4-g32-llmint8", data=[x])
    assert mixed[0].outlier_columns.tolist() == [5]
    assert distance(mixed(x), wanted) < distance(plain(x), wanted)


def test_single_weights_stay_in_full(tmp_path):
    x = inputs(128)
    model, other = mlp(), mlp(1)
    nm.quant.quantize_(model, "int2-g32-spqr", data=[x], checkpoint=tmp_path / "parts")
    layer = model[0]
    assert 0 < layer.single_values.size < 0.2 * layer.in_features * layer.out_features
    wanted = (x @ layer.dense_weight().T + layer.bias).numpy()
    for part in (x, x[:3], x[5], x[:4].reshape(2, 2, 64)):  # many rows and few of them
        found = layer(part)
        assert found.shape == (*part.shape[:-1], 32)
    np.testing.assert_allclose(layer(x).numpy(), wanted, atol=1e-4)
    for count in (3, 128):
        found = nm.jit(lambda x: layer(x))(x[:count])
        np.testing.assert_allclose(found.numpy(), wanted[:count], atol=1e-4)
    slope = nm.grad(lambda x: nm.sum(layer(x)))(x[:3])
    np.testing.assert_allclose(slope[0].numpy(), layer.dense_weight().sum(0).numpy(), atol=1e-4)
    nm.quant.save_quantized(model, tmp_path / "model.safetensors")
    nm.quant.load_quantized(other, tmp_path / "model.safetensors")
    assert nm.array_equal(other(x), model(x))
    resumed = mlp()
    nm.quant.quantize_(resumed, "int2-g32-spqr", data=[x], checkpoint=tmp_path / "parts")
    assert nm.array_equal(resumed(x), model(x))


def test_embeddings_and_convolutions():
    table = nn.Embedding(20, 64)
    model = nn.Sequential(table)
    index = nm.asarray([[1, 19], [0, 1]])
    wanted = table(index)
    nm.quant.quantize_(model, "int8-row", filter=lambda name, layer: True)
    assert distance(model(index), wanted) < 0.02
    for format in ("q8-b32", "nf4-g64"):
        assert distance(nn.QEmbedding.of(table, format)(index), wanted) < 0.15
    conv = nn.Conv2d(8, 4, 3, padding=1)
    x = nm.asarray(np.random.default_rng(0).standard_normal((1, 8, 5, 5), dtype=np.float32))
    assert distance(nn.QConv2d.of(conv, "int4-g32")(x), conv(x)) < 0.2
    assert nn.QConv2d(8, 4, 3, format="int4-g32")(x).shape == (1, 4, 3, 3)


def test_files(tmp_path):
    x, model = inputs(), mlp()
    nm.quant.quantize_(model, "int4-g32-awq", data=[x])
    wanted = model(x)
    nm.quant.save_quantized(model, tmp_path / "m.safetensors")
    other = nm.quant.load_quantized(mlp(1), tmp_path / "m.safetensors")
    assert nm.array_equal(other(x), wanted)
    nn.save_model(mlp(), tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="no quantised layers"):
        nm.quant.load_quantized(mlp(), tmp_path / "plain.safetensors")


def test_a_stopped_quantisation_goes_on(tmp_path):
    x = inputs()
    whole, broken = mlp(), mlp()
    nm.quant.quantize_(whole, "int4-g32-gptq", data=[x])

    class Stops:
        def __init__(self):
            self.passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes == 2:
                raise KeyboardInterrupt
            return iter([x])

    with pytest.raises(KeyboardInterrupt):
        nm.quant.quantize_(broken, "int4-g32-gptq", data=Stops(), checkpoint=tmp_path / "c")
    fresh = mlp()
    report = nm.quant.quantize_(fresh, "int4-g32-gptq", data=[x], checkpoint=tmp_path / "c")
    assert [r.name for r in report.layers] == ["0", "2"]
    assert nm.array_equal(fresh(x), whole(x))
    with pytest.raises(ValueError, match="int4-g32-gptq, not by int8"):
        nm.quant.quantize_(mlp(), "int8", checkpoint=tmp_path / "c")


def pack_along(codes, axis, order=range(8)):
    """Eight 4-bit codes to an int32, `order[i]` in bits 4 i."""
    moved = np.moveaxis(codes, axis, -1)
    groups = moved.reshape(*moved.shape[:-1], -1, 8).astype(np.uint32)
    words = sum(groups[..., p] << np.uint32(4 * i) for i, p in enumerate(order))
    return np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)


@pytest.mark.parametrize("layout", ["gptq", "gptq-act-order", "awq"])
def test_gptq_and_awq_layouts(layout):
    rng = np.random.default_rng(0)
    codes, zeros = rng.integers(0, 16, (64, 32)), rng.integers(1, 16, (2, 32))
    scales = rng.uniform(0.01, 0.1, (2, 32)).astype(np.float16)
    group = np.arange(64) // 32
    if layout == "gptq-act-order":
        group = rng.permutation(group)
    wanted = (codes - zeros[group]) * scales.astype(np.float32)[group]
    state = {"0.scales": scales, "0.bias": np.ones(32, np.float32)}
    if layout == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        state |= {"0.qweight": pack_along(codes, 1, order), "0.qzeros": pack_along(zeros, 1, order)}
    else:
        state |= {"0.qweight": pack_along(codes, 0), "0.qzeros": pack_along(zeros - 1, 1)}
        state["0.g_idx"] = group.astype(np.int32)
    model = mlp()
    state |= {f"2.{k}": v for k, v in model[2].state_dict().items()}
    nn.load_pretrained_quantized(model, state)
    assert isinstance(model[0], nn.QLinear)
    assert isinstance(model[2], nn.Linear)
    np.testing.assert_allclose(model[0].dense_weight().numpy(), wanted.T, atol=1e-6)
    x = inputs(2)
    np.testing.assert_allclose(model[0](x).numpy(), x.numpy() @ wanted + 1, atol=1e-4)
    state["0.qweight"] = state["0.qweight"][:5]
    with pytest.raises(RecordError, match="qweight is"):
        nn.load_pretrained_quantized(mlp(), state)
    del state["0.scales"]
    with pytest.raises(RecordError, match="scales is missing"):
        nn.load_pretrained_quantized(mlp(), state)


def test_bitsandbytes_layouts():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (32, 64)).astype(np.uint8)
    absmax = rng.integers(0, 256, 32).astype(np.uint8)
    nested_map = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
    described = {"shape": [32, 64], "blocksize": 64, "nested_blocksize": 256, "nested_offset": 2.0}
    scale = nested_map[absmax] * 0.5 + 2.0
    flat = codes.reshape(-1)
    state = {
        "0.weight": (flat[::2] << 4 | flat[1::2])[:, None],
        "0.weight.absmax": absmax,
        "0.weight.quant_map": np.array(nf4_values(), np.float32),
        "0.weight.nested_absmax": np.array([0.5], np.float32),
        "0.weight.nested_quant_map": nested_map,
        "0.weight.quant_state.bitsandbytes__nf4": np.frombuffer(
            json.dumps(described).encode(), np.uint8
        ),
        "2.weight": rng.integers(-127, 128, (8, 32)).astype(np.int8),
        "2.SCB": rng.uniform(0.1, 1, 8).astype(np.float32),
    }
    model = nn.load_pretrained_quantized(mlp(), state)
    wanted = np.array(nf4_values())[codes] * scale[:, None]
    np.testing.assert_allclose(model[0].dense_weight().numpy(), wanted, rtol=1e-5)
    wanted = state["2.weight"] * state["2.SCB"][:, None] / 127
    np.testing.assert_allclose(model[2].dense_weight().numpy(), wanted, rtol=1e-5)


# -- training -------------------------------------------------------------------------------------


def fit(model, steps=30, lr=0.02):
    x = inputs(32)
    target = nm.sin(x[:, :8] * 2)
    opt = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.mse_loss(model(x), target)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def test_fake_quantisation_is_straight_through():
    x = nm.asarray([0.26, -9.0, 1.4])
    step = nm.asarray(0.5)
    x.requires_grad = step.requires_grad = True
    y = nn.fake_quantize(x, step, 4)
    assert y.tolist() == [0.5, -4.0, 1.5]
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0]  # clipped values have none
    np.testing.assert_allclose(step.grad.item(), (1 - 0.52) - 8 + (3 - 2.8), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"learned_step": True}, {"activation_bits": 8}])
def test_trained_layers_fold_to_what_they_computed(options):
    model = nn.prepare_qat_(mlp(), "int4-g32", **options)
    losses = fit(model)
    assert losses[-1] < 0.8 * losses[0]
    model.eval()
    x = inputs(8)
    wanted = model(x)
    nn.convert_(model)
    assert isinstance(model[0], nn.QLinear)
    assert distance(model(x), wanted) < (0.02 if "activation_bits" in options else 1e-5)


def test_observers_follow_the_range():
    seen = nn.RangeObserver(momentum=None)
    seen(nm.asarray([1.0, -3.0]))
    seen(nm.asarray([2.0]))
    assert seen.largest.item() == 3.0
    slow = nn.RangeObserver(momentum=0.5, quantile=0.5)
    slow(nm.asarray([1.0, 2.0, 3.0]))
    slow(nm.asarray([4.0]))
    assert slow.largest.item() == 3.0


def test_adapters_learn_over_fixed_weights_and_merge():
    model = nn.add_lora_(mlp(), rank=4, format="nf4-g32")
    fixed = model[0].base.weight.numpy()
    losses = fit(model)
    assert losses[-1] < 0.9 * losses[0]
    assert np.array_equal(model[0].base.weight.numpy(), fixed)
    x = inputs(4)
    merged = model[0].merge()
    assert distance(merged(x), model[0](x)) < 1e-5
    with pytest.raises(ValueError, match="rank=0"):
        nn.LoRALinear(nn.Linear(4, 4), rank=0)


def test_caches_of_few_bits():
    rng = np.random.default_rng(0)
    keys = nm.asarray(rng.standard_normal((1, 2, 5, 32), dtype=np.float32))
    for format, bound in (("int8-row", 0.02), ("int4-g32", 0.2)):
        cache = nn.QuantizedKVCache(format)
        cache.append(keys[:, :, :3], keys[:, :, :3])
        held, _ = cache.append(keys[:, :, 3:], keys[:, :, 3:])
        assert len(cache) == 5
        assert cache.nbytes < keys.nbytes
        assert distance(held, keys) < bound
    with pytest.raises(ShapeError, match="holds"):
        cache.append(keys[..., :16], keys[..., :16])


def test_bad_input_says_so():
    with pytest.raises(ValueError, match="calibrates: give data="):
        nm.quant.quantize_(mlp(), "int4-gptq")
    with pytest.raises(ValueError, match="chooses integers"):
        nm.quant.quantize_(mlp(), "nf4-gptq")
    with pytest.raises(ValueError, match="takes no Linear"):
        nm.quant.quantize_(mlp(), "int8", filter=lambda name, layer: False)
    with pytest.raises(ShapeError, match="for a layer of"):
        nn.QLinear.of(nn.Linear(8, 4), nm.quant.quantize(nm.ones((4, 32)), "int8-row"))
    with pytest.raises(ValueError, match="no steps of groups"):
        nn.FakeQuantLinear(nn.Linear(64, 4), "nf4-g64", learned_step=True)
    unused = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 32)})
    unused.forward = unused["a"].forward
    with pytest.raises(ValueError, match="never reached"):
        nm.quant.quantize_(unused, "int4-g32-gptq", data=[nm.ones((2, 32))], at_once=2)


def test_scales_fold_into_the_layer_before():
    nm.random.seed(0)

    class Branches(nn.Module):
        def __init__(self):
            self.norm = nn.LayerNorm(32)
            self.one, self.two = nn.Linear(32, 8), nn.Linear(32, 4, bias=False)

        def forward(self, x):
            y = self.norm(x)
            return nm.concat([self.one(y), self.two(y)], axis=-1)

    model = Branches()
    model.norm.weight = nn.Parameter(nm.asarray(np.geomspace(0.05, 20, 32).astype(np.float32)))
    x = nm.random.normal((64, 32))
    wanted = model(x).numpy()
    fold = {"norm": ("one", "two")}
    report = nm.quant.quantize_(model, "int8-g32-awq", data=[x], fold=fold)
    assert [r.name for r in report.layers] == ["one", "two"]
    assert max(r.error for r in report.layers) < 0.05
    assert model.one.input_scale is None
    assert model.two.input_scale is None
    assert not np.allclose(model.norm.weight.numpy(), np.geomspace(0.05, 20, 32))
    assert np.linalg.norm(model(x).numpy() - wanted) < 0.02 * np.linalg.norm(wanted)
    for wrong in ({"norm": ("one", "one")}, {"nothing": ("one",)}, {"norm": ("norm",)}):
        with pytest.raises(ValueError, match="each once"):
            nm.quant.quantize_(Branches(), "int8-g32-awq", data=[x], fold=wrong)
    with pytest.raises(ValueError, match="awq and smooth"):
        nm.quant.quantize_(Branches(), "int8", fold=fold)


def test_scales_that_differ_do_not_fold():
    layers = [nn.QLinear.of(nn.Linear(32, 4), "int8", input_scale=nm.full(32, s)) for s in (1, 2)]
    with pytest.raises(ValueError, match="different input scales"):
        nn.fold_input_scale_(nn.LayerNorm(32), *layers)
    with pytest.raises(TypeError, match="not ReLU"):
        nn.fold_input_scale_(nn.ReLU(), layers[0])
    before = nn.Linear(8, 32)
    old = before.bias.numpy()
    nn.fold_input_scale_(before, layers[1])
    np.testing.assert_allclose(before.bias.numpy(), 2 * old)


def test_layers_that_round_their_inputs():
    nm.random.seed(0)
    model = nn.Sequential(nn.Linear(64, 16))
    x = nm.random.normal((3, 64))
    wanted = model(x).numpy()
    nm.quant.quantize_(model, "int8", activations="int8")
    assert model[0].activations == "int8"
    error = np.linalg.norm(model(x).numpy() - wanted) / np.linalg.norm(wanted)
    assert 1e-3 < error < 0.03
    with pytest.raises(ValueError, match="activations="):
        nm.quant.quantize_(nn.Sequential(nn.Linear(64, 16)), "int8", activations="int2")
