"""Generation: sampling, batches, streams, stops, caches, guesses."""

import copy
import itertools

import numpy as np
import pytest

import numus as nm
from numus.models import LlamaConfig, LlamaForCausalLM, Sampler
from numus.models.generation.session import Session

DEVICE = "reference"  # what is compiled is compared with transformers elsewhere
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1]]


def llama(seed=0, **changes):
    nm.random.seed(seed)
    options = {"vocab_size": 31, "num_hidden_layers": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **options, **changes}))
    for parameter in model.parameters():  # sharper than what training starts from
        with nm.no_grad():
            parameter.assign(parameter * (3.0 if parameter.ndim > 1 else 1.0))
    return model.to(DEVICE)


@pytest.fixture(scope="module")
def model():
    return llama()


def greedy_without_cache(model, prompt, count):
    text = list(prompt)
    for _ in range(count):
        with nm.no_grad():
            text.append(int(model([text])[0, -1].argmax()))
    return text


def test_cached_steps_are_those_without_a_cache(model):
    found = model.generate(PROMPTS, max_new_tokens=6).numpy()
    for row, prompt in zip(found, PROMPTS, strict=True):
        assert row[len(row) - len(prompt) - 6 :].tolist() == greedy_without_cache(model, prompt, 6)


@pytest.mark.parametrize("chunk", [3])
def test_prompts_in_chunks(model, chunk):
    whole = model.generate(PROMPTS, max_new_tokens=5)
    assert model.generate(PROMPTS, max_new_tokens=5, chunk=chunk).tolist() == whole.tolist()


def test_sliding_windows_keep_a_ring(model):
    windowed = llama(model_type="mistral", sliding_window=4)
    prompt = list(range(1, 21))
    found = windowed.generate([prompt], max_new_tokens=12, chunk=3).tolist()[0]
    assert found == greedy_without_cache(windowed, prompt, 12)
    session = next(reversed(windowed.__dict__["_sessions"].values()))
    assert session.cache.rings == [6, 6]  # the window and a chunk, not 64 slots


@pytest.mark.parametrize(("format", "atol"), [("int8-row", 0.25), ("int4-row", 3.0)])
def test_quantised_caches(format, atol):
    model = llama(head_dim=32)
    tokens = np.array([PROMPTS[0]])
    scores = []
    for kind in (None, format):
        session = Session(model, 1, 64, Sampler(), kind)
        session.begin(0)
        scores.append(session.scores(tokens, 0, session._ints([0])).numpy())
    assert session.cache.nbytes < Session(model, 1, 64, Sampler()).cache.nbytes
    np.testing.assert_allclose(scores[1], scores[0], atol=atol)
    assert model.generate(PROMPTS, max_new_tokens=3, cache=format).shape == (2, 11)


def test_a_format_whose_groups_span_tokens_is_refused(model):
    with pytest.raises(ValueError, match="span several tokens"):
        model.generate(PROMPTS, max_new_tokens=3, cache="fp8-e4m3-b128")


# -- sampling -------------------------------------------------------------------------------------


def test_seeds_reproduce(model):
    options = {"max_new_tokens": 8, "temperature": 1.5}
    one, again, other = (
        model.generate(PROMPTS, seed=seed, **options).tolist() for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


def shares(sampler, scores, used=None, count=4000):
    """How often each token is chosen."""
    scores = nm.asarray(scores, dtype=nm.float32, device=DEVICE)
    rows = nm.broadcast_to(scores, (count, len(scores)))
    used = None if used is None else nm.broadcast_to(nm.asarray(used), rows.shape)
    key, number = nm.random.key(3).to(DEVICE), nm.asarray(0, device=DEVICE)
    chosen = sampler.choose(rows, key, number, used)
    return np.bincount(chosen.numpy(), minlength=len(scores)) / count


SCORES = np.log([0.5, 0.25, 0.15, 0.1])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"temperature": 1.0}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, [0.25, 0.0625, 0.0225, 0.01]),
        ({"temperature": 1.0, "top_k": 2}, [0.5, 0.25, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.7}, [0.5, 0.25, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.76}, [0.5, 0.25, 0.15, 0]),
        ({"temperature": 1.0, "min_p": 0.25}, [0.5, 0.25, 0.15, 0]),
        ({"temperature": 1.0, "top_k": 3, "min_p": 0.45}, [0.5, 0.25, 0, 0]),
        ({}, [1, 0, 0, 0]),
    ],
)
def test_filters(options, wanted):
    wanted = np.array(wanted) / np.sum(wanted)
    found = shares(Sampler(**options), SCORES)
    np.testing.assert_allclose(found, wanted, atol=0.03)
    assert (found[wanted == 0] == 0).all()


def test_repetition_penalty(model):
    scores = nm.asarray([[2.0, -1.0, 1.0]], device=DEVICE)
    used = nm.asarray([[True, True, False]], device=DEVICE)
    assert Sampler(repetition_penalty=2.0).penalized(scores, used).tolist() == [[1.0, -2.0, 1.0]]
    found = model.generate([[5, 6, 7]], max_new_tokens=10, repetition_penalty=1e6).tolist()[0]
    assert len(set(found)) == len(found)  # no token twice, those of the prompt included


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0}, {"min_p": 2}, {"max_new_tokens": 0}, {"top_k": -1}]
)
def test_options_out_of_range(model, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        model.generate([[1]], **wrong)


# -- ends and streams -----------------------------------------------------------------------------


def test_eos_ends_a_row_and_pads_it(model):
    free = model.generate(PROMPTS, max_new_tokens=8).numpy()[:, 8:]
    eos = int(free[0, 2])
    found = model.generate(PROMPTS, max_new_tokens=8, eos_token_id=eos, pad_token_id=30).numpy()
    for row, wanted in zip(found[:, 8:], free, strict=True):
        end = wanted.tolist().index(eos) + 1 if eos in wanted else len(row)
        assert row[:end].tolist() == wanted[:end].tolist()
        assert (row[end:] == 30).all()


def test_streams_give_tokens_as_they_come(model):
    whole = model.generate(PROMPTS, max_new_tokens=5).numpy()[:, 8:]
    stream = model.generate(PROMPTS, max_new_tokens=5, stream=True)
    assert np.stack(list(itertools.islice(stream, 3)), 1).tolist() == whole[:, :3].tolist()


class Letters:
    """A tokenizer of capital letters."""

    def encode(self, text):
        return [ord(c) - 64 for c in text]

    def decode(self, ids):
        return "".join(chr(64 + i) for i in ids)


def test_texts_and_stop_strings(model):
    options = {"tokenizer": Letters(), "max_new_tokens": 8}
    text = model.generate("HELLO", **options)[0]
    assert len(text) == 8
    stopped = model.generate(["HELLO"], stop=text[2:4], **options)[0]
    assert stopped == text[: text.index(text[2:4]) + 2]
    assert "".join(model.generate("HELLO", stream=True, **options)) == text
    with pytest.raises(ValueError, match="tokenizer"):
        model.generate("HELLO")


# -- speculative decoding -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "temperature"), [("ngrams", 0.0), ("small", 1.0), ("itself", 1.0)]
)
def test_guesses_do_not_change_the_text(model, draft, temperature):
    options = {"max_new_tokens": 14, "temperature": temperature, "seed": 4}
    plain = model.generate([PROMPTS[0]], **options).tolist()
    if draft != "ngrams":
        draft = llama(num_hidden_layers=1) if draft == "small" else copy.deepcopy(model)
    assert model.generate([PROMPTS[0]], draft=draft, guesses=3, **options).tolist() == plain


def test_guesses_save_steps(model, monkeypatch):
    calls = []
    verify = Session.verify
    monkeypatch.setattr(
        Session, "verify", lambda self, *given: calls.append(given) or verify(self, *given)
    )
    model.generate([PROMPTS[0]], draft=copy.deepcopy(model), guesses=4, max_new_tokens=16)
    assert len(calls) == 3  # 1 + 3 * (4 + 1) tokens


def test_what_guesses_cannot_do(model):
    with pytest.raises(ValueError, match=r"single text, not 2, knows no repetition_penalty"):
        model.generate(PROMPTS, draft="ngrams", repetition_penalty=2.0)


# -- beams ----------------------------------------------------------------------------------------


def test_beams_that_end_are_compared_by_length(model):
    eos = int(model.generate([PROMPTS[0]], max_new_tokens=3).numpy()[0, -1])
    found = model.generate([PROMPTS[0]], max_new_tokens=8, num_beams=3, eos_token_id=eos).numpy()
    short = model.generate(
        [PROMPTS[0]], max_new_tokens=8, num_beams=3, eos_token_id=eos, length_penalty=-5.0
    ).numpy()
    assert short.shape[1] <= found.shape[1]


def test_copies_of_a_model_have_programs_of_their_own(model):
    model.generate([[1, 2]], max_new_tokens=2)
    other = copy.deepcopy(model)
    with nm.no_grad():
        other.lm_head.weight.assign(other.lm_head.weight.flip(0))
    first, second = (m.generate([[1, 2]], max_new_tokens=2).tolist()[0] for m in (model, other))
    assert second[2] == 30 - first[2]


def test_swapped_layers_are_seen():
    model = llama()
    before = model.generate([[1, 2]], max_new_tokens=4).tolist()
    nm.models.lora_(model, rank=2)
    assert model.generate([[1, 2]], max_new_tokens=4).tolist() == before
    for name, parameter in model.named_parameters():
        if name.endswith(".b"):
            with nm.no_grad():
                parameter.assign(nm.random.normal(parameter.shape).to(DEVICE))
    text = greedy_without_cache(model, [1, 2], 4)
    assert model.generate([[1, 2]], max_new_tokens=4).tolist() == [text]
