"""Byte-pair encoding against its definition and `tokenizers`, packing, masking, streams."""

import itertools
import json
import pickle
import random

import numpy as np
import pytest

import numus as nm
from numus import text
from numus.data import DataLoader
from numus.text.pretokenization import words

SAMPLES = [
    "Hello, world! It's we'll they've  two   spaces\n\nnew lines \t tab ",
    "naïve café Ⅳ ½ x² 12345 Ünïcödé 你好 こんにちは 한국어 emoji 👩‍👩‍👧 _under_score__",
    "  leading", "trailing  ", "\u00a0nbsp\u2003em\x1cfs", "", "'S 'LL don't", "a\r\nb\x00c",
]  # fmt: skip
CORPUS = [" ".join(SAMPLES), "low lower lowest newer wider new low " * 7]


def by_definition(corpus, count):
    """The most frequent pair again and again, counted from scratch; ties by number."""
    tokenizer = text.train_bpe([], 256)
    number = {b: n for n, b in tokenizer.tokens.items()}
    parts = [[number[bytes([b])] for b in w.encode()] for t in corpus for w in words(t)]
    tokens = [tokenizer.tokens[n] for n in range(256)]
    merges = []
    while len(merges) < count:
        totals = {}
        for word in parts:
            for pair in itertools.pairwise(word):
                totals[pair] = totals.get(pair, 0) + 1
        pair = min(totals, key=lambda p: (-totals[p], p))
        merges.append(pair)
        tokens.append(tokens[pair[0]] + tokens[pair[1]])
        new = []
        for word in parts:
            at, made = 0, []
            while at < len(word):
                hit = tuple(word[at : at + 2]) == pair
                made.append(len(tokens) - 1 if hit else word[at])
                at += 2 if hit else 1
            new.append(made)
        parts = new
    return merges, [n for word in parts for n in word]


def test_training_is_what_the_definition_says():
    merges, encoded = by_definition(CORPUS, 25)
    tokenizer = text.train_bpe(CORPUS, 256 + 25)
    assert tokenizer.merges == merges
    assert [n for t in CORPUS for n in tokenizer.encode(t)] == encoded
    assert len(tokenizer) == 281


def test_text_comes_back():
    tokenizer = text.train_bpe(CORPUS, 300, special_tokens=["<|end|>", "<|pad|>"])
    for sample in [*SAMPLES, "\ud800 lone"]:
        assert "".join(words(sample)) == sample
        found = tokenizer.decode(tokenizer.encode(sample), errors="surrogatepass")
        assert found == sample
    rng = random.Random(0)
    for _ in range(20):
        sample = "".join(chr(rng.randrange(0x3000)) for _ in range(50))
        assert tokenizer.decode(tokenizer.encode(sample)) == sample
    end = tokenizer.special_tokens["<|end|>"]
    assert tokenizer.encode("low<|end|>er")[-2:] != tokenizer.encode("lower")[-2:]
    assert end in tokenizer.encode("low<|end|>er")
    assert end not in tokenizer.encode("low<|end|>er", special=False)
    assert tokenizer.decode(tokenizer.encode("low<|end|>er")) == "low<|end|>er"
    assert tokenizer.decode([tokenizer.encode("é")[0]]) in ("é", "\ufffd")
    with pytest.raises(ValueError, match="no token 999"):
        tokenizer.decode([999])


def test_files(tmp_path):
    tokenizer = text.train_bpe(CORPUS, 300, special_tokens=["<|end|>"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    for other in (text.Tokenizer.load(path), pickle.loads(pickle.dumps(tokenizer))):
        assert other.merges == tokenizer.merges
        for sample in [*SAMPLES, "low<|end|>er"]:
            assert other.encode(sample) == tokenizer.encode(sample)
    whole = json.loads(path.read_text())
    old = whole | {
        "model": whole["model"] | {"merges": [" ".join(m) for m in whole["model"]["merges"]]}
    }
    path.write_text(json.dumps(old))
    assert text.Tokenizer.load(path).merges == tokenizer.merges
    for change, message in [
        ({"model": whole["model"] | {"type": "Unigram"}}, "Unigram"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "'Whitespace' is not read here"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "256 of the 256 bytes"),
        ({"model": whole["model"] | {"merges": [["q", "zzz"]]}}, "not a tokenizer.json"),
        ({"model": 3}, "not a tokenizer.json"),
    ]:
        path.write_text(json.dumps(whole | change))
        with pytest.raises(ValueError, match=message):
            text.Tokenizer.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        text.Tokenizer.load(path)


def test_tokenizers_reads_what_is_saved(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    ours = text.train_bpe(CORPUS, 330, special_tokens=["<|end|>"])
    ours.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for sample in [*SAMPLES, "low<|end|>er"]:
        assert theirs.encode(sample).ids == ours.encode(sample)
        assert theirs.decode(ours.encode(sample), skip_special_tokens=False) == sample


def test_packing():
    rng = np.random.default_rng(0)
    documents = [list(range(1, 1 + n)) for n in rng.integers(1, 30, 40)]
    packed = text.pack(documents, 16, pad=-1)
    assert ((packed.tokens == -1) == (packed.segments == 0)).all()
    found = []
    for tokens, segments, positions in zip(*packed, strict=True):
        for k in range(1, segments.max() + 1):
            at = segments == k
            assert positions[at].tolist() == list(range(at.sum()))
            found.append(tokens[at].tolist())
    want = [d[i : i + 16] for d in documents for i in range(0, len(d), 16)]
    assert sorted(found) == sorted(want)
    used = sum(map(len, documents))
    assert len(packed.tokens) <= used / 16 * 1.1 + 1  # hardly any padding


def test_masking():
    tokens = nm.asarray(np.random.default_rng(0).integers(2, 1000, (200, 100)))
    tokens = nm.where(nm.arange(100) > 90, 0, tokens)
    masked = text.mask_tokens(tokens, 1, 1000, special_tokens=[0], key=nm.random.key(1))
    seen, labels, x = (np.asarray(v) for v in (*masked, tokens))
    picked = labels != -100
    assert not picked[x == 0].any()
    assert abs(picked[x != 0].mean() - 0.15) < 0.01
    np.testing.assert_array_equal(labels[picked], x[picked])
    np.testing.assert_array_equal(seen[~picked], x[~picked])
    assert abs((seen[picked] == 1).mean() - 0.8) < 0.03
    assert abs((seen[picked] == x[picked]).mean() - 0.1) < 0.03
    again = text.mask_tokens(tokens, 1, 1000, special_tokens=[0], key=nm.random.key(1))
    np.testing.assert_array_equal(again.tokens, seen)


def test_streams_from_record_files(tmp_path):
    tokenizer = text.train_bpe(CORPUS, 280)
    path = tmp_path / "a.rrec"
    assert text.write_token_records(path, ["low lower", "newer"], tokenizer) > 3
    both = list(text.TextDataset(path, 1))
    assert [int(b[0]) for b in both] == tokenizer.encode("low lower") + tokenizer.encode("newer")
    documents = [[100_000 + i] * (i % 5 + 1) for i in range(50)]
    paths = [tmp_path / "b.rrec", tmp_path / "c.rrec"]
    for p, part in zip(paths, (documents[:30], documents[30:]), strict=True):
        text.write_token_records(p, part)
    flat = [t for d in documents for t in [*d, 7]]
    stream = text.TextDataset(paths, 8, separator=7)
    np.testing.assert_array_equal(np.concatenate(list(stream)), flat[: len(flat) // 8 * 8])
    shuffled = text.TextDataset(paths, 8, separator=7, key=nm.random.key(0))
    first = np.concatenate(list(shuffled))
    np.testing.assert_array_equal(np.concatenate(list(shuffled)), first)
    shuffled.set_epoch(1)
    assert (np.concatenate(list(shuffled)) != first).any()
    batches = list(DataLoader(stream, batch_size=4, num_workers=2))
    assert batches[0].shape == (4, 8)
    seen = {int(t) for b in batches for t in np.asarray(b).ravel()}
    assert len(seen) > 40
    with pytest.raises(ValueError, match="need a tokenizer"):
        text.write_token_records(tmp_path / "d.rrec", ["text"])


def test_perplexity_has_a_gradient():
    logits = nm.asarray(np.random.default_rng(0).normal(size=(2, 5, 9)).astype(np.float32))
    targets = nm.asarray([[1, 2, 3, -100, 4], [0, 8, -100, 7, 6]])
    metric = nm.metrics.Perplexity()
    metric.update(logits, targets)
    assert np.isclose(text.perplexity(logits, targets).item(), metric.compute(), rtol=1e-5)
    g = np.asarray(nm.grad(lambda x: text.perplexity(x, targets))(logits))
    assert (g[0, 3] == 0).all()
    assert (g[0, 0] != 0).all()
