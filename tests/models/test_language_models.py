"""Language models against transformers: names, logits, gradients, generated tokens."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from language_cases import CASES, SHORT, audio, targets, tokens, weight

import numus as nm
from numus import nn

STORED = np.load(Path(__file__).parents[1] / "fixtures" / "language_models.npz")
BY_NAME = {case.name: case for case in CASES}
TOLERANCE = 1e-4


def stored(name, what):
    return STORED[f"{name}/{what}"]


@cache
def described(name):
    return json.loads(stored(name, "described").tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of a case as transformers writes it."""
    made = {}

    def of(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            shapes = described(name)["shapes"]
            arrays = {n: weight(n, tuple(s)) for n, s in shapes.items()}
            nn.save_safetensors(arrays, path / "model.safetensors")
            (path / "config.json").write_text(json.dumps(described(name)["config"]))
            made[name] = path
        return made[name]

    return of


def mask_of(case):
    mask = np.ones(tokens(case).shape, int)
    if case.kind == "causal":
        mask[0, : mask.shape[1] - SHORT] = 0
    else:
        mask[0, SHORT:] = 0
    return mask


def called(model, case, **options):
    if case.kind == "audio":
        return model(audio(case), tokens(case), **options)
    if case.kind == "seq2seq":
        return model(tokens(case), tokens(case, 6), **options)
    return model(tokens(case), **options)


# Families differ in what they compute, not in how it is compiled: the reference device shows it
# without compiling some hundred kernels.
@pytest.mark.parametrize("name", BY_NAME)
def test_logits_and_gradients(name, folder):
    case = BY_NAME[name]
    model = nm.models.load(folder(name), device="reference")
    assert {n for n, _ in model.named_parameters()} == set(described(name)["shapes"])
    logits = called(model, case)
    np.testing.assert_allclose(logits.numpy(), stored(name, "logits"), atol=TOLERANCE)
    wanted = nm.asarray(targets(case, logits.shape[:-1]), device="reference")
    loss = nn.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1))
    loss.backward()
    for key, parameter in model.named_parameters():
        wanted = stored(name, f"grad/{key}")
        np.testing.assert_allclose(parameter.grad.numpy(), wanted, atol=TOLERANCE, err_msg=key)
    if case.kind != "audio":
        mask = mask_of(case)
        with nm.no_grad():
            found = called(model, case, attention_mask=mask).numpy()
        kept = mask > 0 if case.kind != "seq2seq" else np.ones(found.shape[:2], bool)
        np.testing.assert_allclose(found[kept], stored(name, "masked")[kept], atol=TOLERANCE)


def greedy(model, case, **options):
    given = audio(case) if case.kind == "audio" else tokens(case)
    if case.kind != "audio":
        options["attention_mask"] = mask_of(case)
    return model.generate(given, max_new_tokens=case.new_tokens, **options).numpy()


GENERATES = [name for name, case in BY_NAME.items() if case.kind != "masked"]


def check_greedy(model, name):
    new = BY_NAME[name].new_tokens
    found = greedy(model, BY_NAME[name])
    assert found[:, -new:].tolist() == stored(name, "greedy")[:, -new:].tolist()


@pytest.mark.parametrize("name", GENERATES)
def test_greedy_tokens(name, folder):
    check_greedy(nm.models.load(folder(name), device="reference"), name)


@pytest.mark.parametrize(
    "name", [n if n == "mistral" else pytest.param(n, marks=pytest.mark.slow) for n in GENERATES]
)
def test_greedy_tokens_of_compiled_programs(name, folder):
    check_greedy(nm.models.load(folder(name)), name)


# Beams with equal scores would make this a coin toss; these have none.
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "whisper"])
def test_beam_search(name, folder):
    case = BY_NAME[name]
    model = nm.models.load(folder(name), device="reference")
    found = greedy(model, case, num_beams=3)
    new = case.new_tokens
    assert found[:, -new:].tolist() == stored(name, "beams")[:, -new:].tolist()


@pytest.mark.parametrize("tokens", [24, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_experts_compute_their_own_tokens(tokens):
    """However many tokens choose an expert, also all of them or none, nothing is lost."""
    config = nm.models.MixtralConfig(
        vocab_size=8, hidden_size=8, intermediate_size=12, num_attention_heads=2,
        num_hidden_layers=1, num_key_value_heads=2, num_local_experts=5,
    )  # fmt: skip
    nm.random.seed(0)
    layer = nm.models.MixtralForCausalLM(config).model.layers[0].block_sparse_moe

    def all_experts(x):
        chances = nm.softmax(layer.gate(x), axis=-1)
        best, which = nm.topk(chances, 2)
        shares = nm.zeros_like(chances).at[nm.arange(tokens)[:, None], which].set(best)
        shares = shares / shares.sum(-1, keepdims=True)
        return sum(e(x) * shares[:, i : i + 1] for i, e in enumerate(layer.experts))

    for push in (0.0, 50.0):  # all tokens choose the same experts, if pushed
        with nm.no_grad():
            layer.gate.weight.assign(layer.gate.weight + push * nm.eye(5, 8) * (nm.arange(8) == 1))
        x = nm.random.normal((tokens, 8)).at[:, 1].set(4.0)
        wanted, slopes = nm.value_and_grad(lambda x: nm.sum(nm.sin(all_experts(x))))(x)
        for run in (lambda f: f, nm.jit):
            found = run(nm.value_and_grad(lambda x: nm.sum(nm.sin(layer(x[None])))))(x)
            np.testing.assert_allclose(found[0].numpy(), wanted.numpy(), atol=1e-4)
            np.testing.assert_allclose(found[1].numpy(), slopes.numpy(), atol=1e-4)
