"""Models from folders and GGUF files: what fits, what does not, and what is written."""

import json

import numpy as np
import pytest

import numus as nm
from numus import nn
from numus.errors import RecordError

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
}
TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6]]


@pytest.fixture
def model():
    nm.random.seed(0)
    return nm.models.from_config(CONFIG).to("reference")


@pytest.fixture
def folder(model, tmp_path):
    nm.models.save(model, tmp_path, max_shard_size="100KB")
    return tmp_path


def load(folder, **options):
    return nm.models.load(folder, device="reference", **options)


def logits(model):
    with nm.no_grad():
        return model(TOKENS).numpy()


def edit(folder, change):
    """Change the configuration of a folder."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_what_is_saved_is_loaded(model, folder):
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    found = load(folder)
    np.testing.assert_array_equal(logits(found), logits(model))
    assert found.config.more["torch_dtype"] == "float32"  # what it has no use for is kept
    assert not found.training


def test_loading_draws_no_numbers(folder):
    nm.random.seed(5)
    load(folder)
    first = nm.random.uniform(3).tolist()
    nm.random.seed(5)
    assert nm.random.uniform(3).tolist() == first


def test_dtypes(folder):
    found = load(folder, dtype="bfloat16")
    assert {p.dtype.name for p in found.parameters()} == {"bfloat16"}
    with pytest.raises(TypeError, match="int32"):
        load(folder, dtype="int32")


def test_quantised_models_are_saved_and_loaded(model, folder, tmp_path_factory):
    found = load(folder, quantize="int8-row")
    assert isinstance(found.model.layers[0].mlp.up_proj, nn.QLinear)
    assert found.lm_head.format == "int8-row"
    np.testing.assert_allclose(logits(found), logits(model), atol=0.05)
    other = tmp_path_factory.mktemp("quantised")
    nm.models.save(found, other)
    np.testing.assert_array_equal(logits(load(other)), logits(found))
    with pytest.raises(ValueError, match="quantised already"):
        load(other, quantize="int4")


def test_tied_heads_are_written_once(tmp_path):
    nm.models.save(nm.models.from_config(CONFIG, tie_word_embeddings=True), tmp_path)
    names = nn.load_safetensors(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in names
    found = load(tmp_path)
    assert found.lm_head.weight is found.model.embed_tokens.weight
    rounded = load(tmp_path, quantize="int8")
    assert isinstance(rounded.lm_head, nn.QLinear)


def test_files_of_a_bare_model(tmp_path):
    sizes = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = nm.models.from_config({"model_type": "gpt2"}, **sizes)
    nm.models.save(model, tmp_path)
    path = tmp_path / "model.safetensors"
    bare = {k.removeprefix("transformer."): v for k, v in nn.load_safetensors(path).items()}
    bare["h.0.attn.bias"] = nm.ones((1, 1, 8, 8))  # a mask, in files of old
    nn.save_safetensors(bare, path)
    found = load(tmp_path)
    np.testing.assert_allclose(logits(found), logits(model.to("reference")), atol=1e-6)


def test_gpt2_is_quantised_too(tmp_path):
    sizes = {"vocab_size": 20, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = nm.models.from_config({"model_type": "gpt2"}, **sizes)
    nm.models.save(model, tmp_path / "full")
    found = load(tmp_path / "full", quantize="int8-row")
    assert isinstance(found.transformer.h[0].mlp.c_fc, nn.QLinear)
    np.testing.assert_allclose(logits(found), logits(model.to("reference")), atol=0.2)
    nm.models.save(found, tmp_path / "rounded")
    np.testing.assert_array_equal(logits(load(tmp_path / "rounded")), logits(found))


# -- errors ---------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_named_at_once(folder):
    nn.save_safetensors({"stray": nm.ones(2)}, folder / "more.safetensors")
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    whole = sorted(folder.glob("model-*.safetensors"))[0].name
    listed["weight_map"] |= {"stray": "more.safetensors", "gone.weight": whole}
    index.write_text(json.dumps(listed))
    edit(folder, lambda config: config.update(vocab_size=41))
    shard = sorted(folder.glob("model-*.safetensors"))[-1]
    lost = [k for k, v in listed["weight_map"].items() if v == shard.name]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(RecordError) as caught:
        load(folder)
    text = str(caught.value)
    assert "unexpected (1): stray" in text
    assert "is cut off" in text
    assert "not in its file: gone.weight" in text
    assert lost
    assert all(name in text for name in lost)
    assert "model.embed_tokens.weight is (40, 64), and (41, 64) in the model" in text


def test_missing_shards(folder):
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(RecordError, match=f"{shard.name} is missing"):
        load(folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(RecordError, match=r"no \*.safetensors file"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llamas"}, "model_type is 'llamas'; there are bert, "),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        (
            {"hidden_size": "64", "num_attention_heads": 2.5},
            r"hidden_size is '64', .*num_attention_heads is 2\.5",
        ),
        ({"num_key_value_heads": 3}, "4 query heads do not share 3 key heads"),
        ({"rope_scaling": {"rope_type": "yarns"}}, "rope_type 'yarns' is not known"),
        ({"rope_scaling": {"type": "linear"}}, "needs factor"),
        ({"hidden_act": "softplus2"}, "softplus2"),
    ],
)
def test_wrong_configurations(folder, changes, message):
    edit(folder, lambda config: config.update(changes))
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_wrong_configuration_of_clip_lists_all_that_is_wrong(tmp_path):
    config = {
        "model_type": "clip",
        "text_config": {"hidden_size": "x", "hidden_act": "tanh2"},
        "vision_config": {"patch_size": -1, "num_attention_heads": 0},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"hidden_size is 'x'.*heads is 0.*patch_size is -1"):
        load(tmp_path)


def test_no_folder_of_a_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(RecordError, match="not a configuration"):
        load(tmp_path)
    with pytest.raises(TypeError, match="no configuration"):
        nm.models.save(nn.Linear(2, 2), tmp_path)


# -- GGUF -----------------------------------------------------------------------------------------

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(model, path, format=None, **metadata):
    """A model as llama.cpp's converter writes it."""
    c = model.config
    tensors = {}
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        heads = {"q": c.num_attention_heads, "k": c.num_key_value_heads}.get(name[-13:-12])
        if heads and "_proj" in name and "self_attn" in name:  # adjacent pairs turn there
            halves = array.reshape(heads, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        new = name.replace("model.layers.", "blk.")
        for ours, theirs in GGUF_NAMES.items():
            new = new.replace(ours, theirs)
        tensor = nm.asarray(np.ascontiguousarray(array))
        if format is not None and array.ndim == 2:
            tensor = nm.quant.quantize(tensor, format)
        tensors[new] = tensor
    described = {
        "general.architecture": "llama",
        "llama.embedding_length": c.hidden_size,
        "llama.feed_forward_length": c.intermediate_size,
        "llama.block_count": c.num_hidden_layers,
        "llama.attention.head_count": c.num_attention_heads,
        "llama.attention.head_count_kv": c.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "llama.rope.freq_base": 10000.0,
        "llama.context_length": c.max_position_embeddings,
    }
    nm.quant.save_gguf(path, tensors, described | metadata)


def test_gguf_files(model, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(model, path)
    np.testing.assert_allclose(logits(load(path)), logits(model), atol=1e-5)
    write_gguf(model, path, "q8_0")
    found = load(path)
    assert found.model.layers[0].self_attn.q_proj.format == "q8_0"
    assert isinstance(found.model.embed_tokens, nn.QEmbedding)
    np.testing.assert_allclose(logits(found), logits(model), atol=0.05)
    again = load(path, quantize="int8-row")
    assert again.model.layers[0].self_attn.q_proj.format == "int8-row"
    np.testing.assert_allclose(logits(again), logits(model), atol=0.1)


def test_gguf_files_that_do_not_fit(model, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(model, path, **{"general.architecture": "mamba"})
    with pytest.raises(ValueError, match=r"general\.architecture is 'mamba'"):
        load(path)
    write_gguf(model, path, **{"llama.block_count": 3})
    with pytest.raises(RecordError, match=r"missing \(9\): model.layers.2"):
        load(path)


def test_clip_from_a_folder(tmp_path):
    nm.random.seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    text = {**sizes, "num_attention_heads": 2, "vocab_size": 30, "eos_token_id": 29}
    vision = {**sizes, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    config = {"model_type": "clip", "text_config": text, "vision_config": vision}
    model = nm.models.from_config(config, projection_dim=8).to("reference").eval()
    nm.models.save(model, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == ["CLIPModel"]
    assert written["text_config"] == text
    loaded = nm.models.load(tmp_path, device="reference")
    images = nm.ones((2, 3, 8, 8), device="reference")
    words = nm.asarray([[1, 5, 29], [4, 29, 29]], device="reference")
    want, found = (m(words, images).logits_per_image.numpy() for m in (model, loaded))
    np.testing.assert_allclose(found, want, rtol=1e-6)
    with pytest.raises(ValueError, match="text_config is 3"):
        nm.models.from_config({"model_type": "clip", "text_config": 3})
