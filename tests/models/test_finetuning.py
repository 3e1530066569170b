"""Fine-tuning: adapters of GPT-2's transposed layers, rates by layer, averages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numus as nm
from numus import nn

TOKENS = [[1, 2, 3, 4]]
DEVICE = "reference"


def gpt2() -> Any:
    nm.random.seed(0)
    sizes = {"vocab_size": 20, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return nm.models.from_config({"model_type": "gpt2"}, **sizes).to(DEVICE).eval()


@pytest.mark.parametrize("format", [None, "nf4-g32"])
def test_lora_of_gpt2(tmp_path: Any, format: str | None) -> None:
    model = gpt2()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    plain = model(TOKENS).numpy()
    nm.models.lora_(model, rank=2, format=format)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 4 * 2  # two for each of four layers of two blocks
    if format is None:
        np.testing.assert_allclose(model(TOKENS).numpy(), plain, atol=1e-6)
    with nm.no_grad():
        for name in trained:
            adapter = model.get_parameter(name)
            adapter.assign(nm.random.normal(adapter.shape).to(DEVICE))
    adapted = model(TOKENS).numpy()
    assert np.abs(adapted - plain).max() > 1e-3
    nm.models.merge_lora_(model)
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    np.testing.assert_allclose(model(TOKENS).numpy(), adapted, atol=1e-5)
    nm.models.save(model, tmp_path)
    loaded = nm.models.load(tmp_path, device=DEVICE)
    np.testing.assert_allclose(loaded(TOKENS).numpy(), adapted, atol=1e-5)


def test_rates_of_layers() -> None:
    model = gpt2()
    groups = nm.models.layerwise_rates(model, 1.0, 0.5)
    assert [group["lr"] for group in groups] == [0.125, 0.25, 0.5, 1.0]
    found = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(found) == len({id(p) for p in model.parameters()})
    assert found[id(model.transformer.wte.weight)] == 0.125
    assert found[id(model.transformer.h[0].attn.c_attn.weight)] == 0.25
    assert found[id(model.transformer.h[1].mlp.c_fc.bias)] == 0.5
    assert found[id(model.transformer.ln_f.weight)] == 1.0
    for fixed in (model.transformer.wte, model.transformer.wpe):
        fixed.requires_grad_(False)
    assert [group["lr"] for group in nm.models.layerwise_rates(model, 1.0, 0.5)] == [0.25, 0.5, 1.0]
    with pytest.raises(ValueError, match="decay=0"):
        nm.models.layerwise_rates(model, 1.0, 0.0)


def test_rates_of_layers_of_images() -> None:
    vit = nm.models.VisionTransformer(8, 4, 2, 2, 8, 16, num_classes=3)
    rates = [group["lr"] for group in nm.models.layerwise_rates(vit, 1.0, 0.5)]
    assert rates == [0.125, 0.25, 0.5, 1.0]
    plain = nm.models.layerwise_rates(nn.Linear(2, 2), 0.1, 0.5)
    assert [group["lr"] for group in plain] == [0.1]


def test_averages_of_what_is_trained() -> None:
    model, text = gpt2(), np.arange(60) % 7
    nm.models.lora_(model, rank=2)
    before = {n: p.numpy().copy() for n, p in model.named_parameters() if p.requires_grad}
    options: dict[str, Any] = {"steps": 3, "batch": 2, "length": 8, "rate": 0.1}
    nm.models.finetune(model, text, ema=1.0, layer_decay=0.5, **options)
    for name, value in before.items():  # an average that takes nothing
        np.testing.assert_array_equal(model.get_parameter(name).numpy(), value)
    losses = nm.models.finetune(model, text, ema=0.0, **options)
    assert losses[-1] < losses[0]
