"""`numus generate` and `numus finetune`, with a tokenizer of the package `tokenizers`."""

import numpy as np
import pytest

import numus as nm
from numus import cli, nn

tokenizers = pytest.importorskip("tokenizers")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TEXT = "the cat sat on the mat and the dog sat on the cat. "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model of characters."""
    path = tmp_path_factory.mktemp("model")
    letters = sorted(set(TEXT))
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token=" ")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    inner.save(str(path / "tokenizer.json"))
    nm.random.seed(0)
    nm.models.save(nm.models.from_config(CONFIG, vocab_size=len(letters)), path)
    return path


def test_tokenizers(folder, tmp_path):
    found = nm.models.load_tokenizer(folder)
    assert found.decode(found.encode("the cat")) == "the cat"
    assert len(found) == len(set(TEXT))
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        nm.models.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(nm.errors.RecordError, match="not a tokenizer"):
        nm.models.load_tokenizer(tmp_path)


def test_finetuning_and_generating(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT * 20)
    device = ["--device", "reference"]
    options = ["--steps", "15", "--batch", "4", "--length", "24", "--rate", "0.02", *device]
    out = tmp_path / "out"
    cli.main(["finetune", str(folder), str(tmp_path / "text.txt"), "--out", str(out), *options])
    shown = capsys.readouterr().out
    first, last = (float(x) for x in shown.split("loss ")[-1].split(";")[0].split(" … "))
    assert last < first - 0.2
    cli.main(["generate", str(out), "the cat", "--tokens", "5", *device])
    text = capsys.readouterr().out.strip("\n")
    assert text.startswith("the cat")
    assert len(text) == 12


def test_generating_what_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match="numus generate: "):
        cli.main(["generate", str(tmp_path), "the cat"])


def test_adapters_are_merged_and_memory_is_traded(folder):
    model = nm.models.load(folder, device="reference")
    tokens = [[1, 2, 3, 4]]
    plain = model(tokens).numpy()
    nm.models.lora_(model, rank=2)
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 14  # two for each of seven layers
    assert not any("lm_head" in n for n in trained)
    np.testing.assert_allclose(model(tokens).numpy(), plain, atol=1e-6)

    def gradient():
        model.zero_grad()
        model(tokens).square().sum().backward()
        return model.get_parameter(trained[1]).grad.numpy()

    wanted = gradient()
    model.recompute_blocks_()
    np.testing.assert_allclose(gradient(), wanted, atol=1e-5)
    with nm.no_grad():
        model.get_parameter(trained[1]).assign(0.1)
    adapted = model(tokens).numpy()
    nm.models.merge_lora_(model)
    assert not any(isinstance(m, nn.LoRALinear) for m in model.modules())
    np.testing.assert_allclose(model(tokens).numpy(), adapted, atol=1e-5)
