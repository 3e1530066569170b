"""Decoders on the card: milliseconds a token, prompts, many rows at once, the first token.

Sizes are those of `tools/cuda_decode.py`, which times steps of numus; PyTorch's peer is
`torch_models.Llama`, compiled, with a static cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tools import cuda_decode
from tools.cuda_bars.bars import BANDWIDTH, Bar, Comparison, Figure
from tools.cuda_bars.processes import answer
from tools.cuda_timing import Bench

TRIAL = cuda_decode.Decoder("trial", 2, 64, 96, 4, 2, 100, 64)
FEW_MS, SHARE, INT4 = 0.35, 0.7, 2.0
MANY_ROWS, PROMPT = 64, 2048


def _decoder(bench: Bench, of: cuda_decode.Decoder) -> cuda_decode.Decoder:
    return TRIAL if bench.most else of


def _milliseconds(bench: Bench, model: Any, cache: int, rows: int = 1) -> float:
    room = 8 if bench.most else 128
    steps = cuda_decode.Steps(model, cache, rows, room)
    return steps.milliseconds(1 if bench.most else 5)


def _small(bench: Bench) -> Iterator[Figure]:
    of = _decoder(bench, cuda_decode.SMALL)
    ms = _milliseconds(bench, cuda_decode.made(of, bench.device), of.cache)
    yield Figure("a token of 24 layers of 1024, cache 1024", ms, FEW_MS, "ms", at_most=True)


def _large(bench: Bench) -> Iterator[Figure]:
    of = _decoder(bench, cuda_decode.LARGE)
    times = {}
    for format in ("bfloat16", "int4-g32" if bench.most else "int4-g128"):
        model = cuda_decode.made(of, bench.device, format)
        times[format] = _milliseconds(bench, model, of.cache)
        if format == "bfloat16":
            share = cuda_decode.weight_bytes(model) / BANDWIDTH * 1e3 / times[format]
            name = "a token of 1.1 B parameters, of memory's speed"
            yield Figure(name, share, SHARE, "", ms=times)
    whole, packed = times.values()
    yield Figure("a token of 1.1 B parameters, int4", whole / packed, INT4, ms=times)


def _peer(bench: Bench, of: cuda_decode.Decoder) -> tuple[Any, Any]:
    """The same weights in both libraries, in bfloat16."""
    from tools.cuda_bars.torch_models import Llama

    own = cuda_decode.made(of, bench.device)
    with bench.torch.device("meta"):
        other = Llama(own.config)
    rates = own.config.rope_theta ** -(
        bench.torch.arange(0, own.config.head_size, 2).float() / own.config.head_size
    )
    state = {k: bench.torch.from_dlpack(v) for k, v in own.state_dict().items()}
    other.load_state_dict(state, assign=True)
    other.rates = bench.torch.cat([rates, rates])
    return own, other.eval()


def _prompt(bench: Bench) -> Iterator[Figure]:
    """Scores of the token after a long prompt."""
    torch, nm = bench.torch, bench.nm
    of = _decoder(bench, cuda_decode.LARGE)
    own, other = _peer(bench, of)
    length = min(PROMPT, of.cache)
    with nm.no_grad(), torch.no_grad():
        yield from Comparison(
            family="decoding",
            name="a prompt of 2048 tokens, 1.1 B parameters",
            inputs=lambda: [torch.randint(0, of.vocabulary, (1, length))],
            ours=lambda tokens: own.head(_hidden(nm, own, tokens)[:, -1:]),
            theirs=lambda tokens: other(tokens, last=True),
            compiled=True,
            tolerance=0.1,  # two libraries' roundings of bfloat16, over all layers
        ).figures(bench)


def _hidden(nm: Any, model: Any, tokens: Any) -> Any:
    from numus.models.language.attention import Pass

    return model.hidden(tokens, Pass(nm.arange(tokens.shape[1])[None]))


def _many(bench: Bench) -> Iterator[Figure]:
    """A step of many texts at once, against a static cache in PyTorch."""
    torch, of = bench.torch, _decoder(bench, cuda_decode.LARGE)
    own, other = _peer(bench, of)
    rows = 3 if bench.most else MANY_ROWS
    ms = {"numus": _milliseconds(bench, own, of.cache, rows)}
    cache, at = other.cache(rows, of.cache), torch.tensor([of.cache - 8])
    tokens = torch.full((rows, 1), 5)

    def step() -> Any:
        return other(tokens, cache, at).argmax(-1)

    peers = {"torch": step}
    if not bench.most:
        peers["torch.compile"] = torch.compile(step, mode="reduce-overhead")
    with torch.no_grad():
        ms |= bench.in_turns(peers)
    best = min(ms[k] for k in peers)
    yield Figure("64 texts at once, 1.1 B parameters", best / ms["numus"], 1.0, ms=ms)


def _first_token(bench: Bench) -> Iterator[Figure]:
    """From a folder and a warm cache of kernels, in a new process: the second of two."""
    of = _decoder(bench, cuda_decode.LARGE)
    with tempfile.TemporaryDirectory() as folder:
        bench.nm.models.save(cuda_decode.made(of, "cpu"), folder)
        told = [answer("tools.cuda_bars.decoding", folder, bench.device) for _ in "cw"]
    yield Figure("first token of 1.1 B parameters", told[1]["first"], 5.0, "s", at_most=True)


def first_token(folder: str, device: str) -> dict[str, float]:
    """Seconds from a loaded model to its first token."""
    import numus as nm

    model = nm.models.load(folder, device=device, progress=False)
    nm.eval(list(model.parameters()))
    began = time.perf_counter()
    np.asarray(model.generate([[1, 2, 3, 4]], max_new_tokens=1))
    return {"first": time.perf_counter() - began}


def bars(bench: Bench) -> Iterator[Bar]:
    yield Bar("decoding", "24 layers of 1024", _small, order=0)
    yield Bar("decoding", "1.1 B parameters, bfloat16 and int4", _large, order=0)
    yield Bar("decoding", "a prompt of 2048 tokens", _prompt, order=0)
    yield Bar("decoding", "64 texts at once", _many, order=1)
    yield Bar("decoding", "first token", _first_token, order=1)


if __name__ == "__main__":
    print(json.dumps(first_token(*sys.argv[1:3])))
