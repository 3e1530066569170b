"""Training steps in bfloat16 (autocast) against PyTorch, eager and compiled: speed and memory.

`python -m tools.cuda_bars.training NAME DEVICE SECONDS` measures one model, in a process of its
own. Both libraries begin from the same weights, and their first losses must agree.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tools.cuda_bars.bars import Bar, Figure
from tools.cuda_bars.processes import answer, output
from tools.cuda_timing import Bench

LOSS_TOLERANCE = 2e-2  # relative, of the first losses in bfloat16
STEPS = 4  # until all is compiled and captured
DRY_EXTENT = 64


@dataclass(frozen=True)
class Model:
    """A model of both libraries, its batch, and its losses."""

    ours: Callable[[bool], Any]  # given whether it is a trial
    theirs: Callable[[bool], Any]
    batch: Callable[[Any, bool], Sequence[Any]]
    loss: Callable[..., Any]  # of a library's functions, its model and the batch
    asked: float = 1.0
    order: int = 0


def _images(torch: Any, dry: bool) -> Sequence[Any]:
    n, side = (2, 32) if dry else (128, 224)
    return torch.randn(n, 3, side, side), torch.randint(0, 1000, (n,))


def _classified(f: Any, model: Any, x: Any, y: Any) -> Any:
    return f.cross_entropy(model(x), y)


RESNET = {False: (3, 4, 6, 3), True: (1, 1, 1, 1)}  # blocks of each size


def _resnet(dry: bool) -> Any:
    import numus as nm

    return nm.models.ResNet(nm.models.Bottleneck, RESNET[dry])


def _their_resnet(dry: bool) -> Any:
    from tools.cuda_bars.torch_models import ResNet

    return ResNet(RESNET[dry])


VIT = {
    False: (224, 16, 12, 12, 768),
    True: (32, 16, 2, 2, 64),
}  # image, patch, layers, heads, width


def _vit(dry: bool) -> Any:
    import numus as nm

    *sizes, width = VIT[dry]
    return nm.models.VisionTransformer(*sizes, width, 4 * width)


def _their_vit(dry: bool) -> Any:
    from tools.cuda_bars.torch_models import ViT

    return ViT(*VIT[dry])


def _llama_config(dry: bool) -> Any:
    import numus as nm

    sizes = (64, 96, 2, 4, 100) if dry else (1024, 2048, 24, 16, 32000)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    given = dict(zip((*names, "vocab_size"), sizes, strict=True))
    return nm.models.LlamaConfig(tie_word_embeddings=True, **given)


def _llama(dry: bool) -> Any:
    import numus as nm

    return nm.models.LlamaForCausalLM(_llama_config(dry))


def _their_llama(dry: bool) -> Any:
    from tools.cuda_bars.torch_models import Llama

    return Llama(_llama_config(dry))


def _texts(torch: Any, dry: bool) -> Sequence[Any]:
    rows, length, words = (2, 32, 100) if dry else (8, 2048, 32000)
    tokens = torch.randint(0, words, (rows, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _next_token(f: Any, model: Any, tokens: Any, targets: Any) -> Any:
    scores = model(tokens)
    return f.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1))


def _unet_sizes(dry: bool) -> dict[str, Any]:
    width, multipliers = (32, (1, 2)) if dry else (128, (1, 2, 2, 2))
    attention = (False, True, False, False)[: len(multipliers)]
    return {"width": width, "multipliers": multipliers, "attention": attention}


def _unet(dry: bool) -> Any:
    import numus as nm

    return nm.models.UNet(3, 3, blocks=2, heads=4, **_unet_sizes(dry))


def _their_unet(dry: bool) -> Any:
    from tools.cuda_bars.torch_models import UNet

    sizes = _unet_sizes(dry)
    return UNet(sizes["width"], sizes["multipliers"], 2, sizes["attention"], 4)


def _noisy(torch: Any, dry: bool) -> Sequence[Any]:
    n, side = (2, 16) if dry else (64, 64)
    x = torch.randn(n, 3, side, side)
    return x, torch.randint(0, 1000, (n,)).float(), torch.randn_like(x)


def _denoised(f: Any, model: Any, x: Any, times: Any, noise: Any) -> Any:
    return f.mse_loss(model(x, times), noise)


MODELS = {
    "ResNet-50, 128 of 224^2": Model(_resnet, _their_resnet, _images, _classified),
    "Llama 290M, 8 of 2048": Model(_llama, _their_llama, _texts, _next_token, 1.05),
    "ViT-B/16, 128 of 224^2": Model(_vit, _their_vit, _images, _classified),
    "DDPM U-Net, 64 of 64^2": Model(_unet, _their_unet, _noisy, _denoised, order=1),
}


def measured(name: str, device: str, seconds: float) -> dict[str, Any]:
    """Times of a step, peaks of memory in bytes, and first losses."""
    dry = device == "cpu"
    bench = Bench(seconds, print, device=device, most=DRY_EXTENT if dry else 0)
    torch, nm, model = bench.torch, bench.nm, MODELS[name]
    torch.manual_seed(0)
    nm.random.seed(0)
    batch = list(model.batch(torch, dry))
    calls: dict[str, Callable[[], Any]] = {}
    peaks, losses = {}, {}
    own = model.ours(dry)
    state = {k: torch.from_numpy(v.numpy().copy()) for k, v in own.state_dict().items()}
    calls["numus"] = _step(nm, model, own, [bench.from_torch(t) for t in batch])
    losses["numus"] = float(calls["numus"]())
    for _ in range(STEPS):
        calls["numus"]()
    bench.runtime.synchronize()
    peaks["numus"] = nm.memory_stats(device)["peak"]
    for kind in ("torch",) if dry else ("torch", "torch.compile"):
        if not dry:
            torch.cuda.reset_peak_memory_stats()
        before = 0 if dry else torch.cuda.memory_allocated()
        calls[kind] = _their_step(bench, model, state, dry, batch, kind == "torch.compile")
        losses[kind] = float(calls[kind]())
        for _ in range(STEPS):
            calls[kind]()
        peaks[kind] = 1 if dry else torch.cuda.max_memory_allocated() - before
    return {"ms": bench.in_turns(calls, 3), "peaks": peaks, "losses": losses}


def _step(nm: Any, model: Model, own: Any, batch: list[Any]) -> Callable[[], Any]:
    optimizer = nm.optim.AdamW(own.parameters(), lr=1e-4)

    @nm.jit
    def step(*given: Any) -> Any:
        optimizer.zero_grad()
        with nm.autocast("bf16"):
            loss = model.loss(nm.nn.functional, own, *given)
        loss.backward()
        optimizer.step()
        return loss

    def call() -> Any:
        loss = step(*batch)
        nm.eval(loss)
        return loss

    return call


def _their_step(
    bench: Bench, model: Model, state: dict[str, Any], dry: bool, batch: list[Any], compiled: bool
) -> Callable[[], Any]:
    torch = bench.torch
    module = model.theirs(dry).train()
    missing, unexpected = module.load_state_dict(state, strict=False)
    unknown = [k for k in (*missing, *unexpected) if not k.endswith("num_batches_tracked")]
    if unknown:
        raise AssertionError(f"the models differ in {unknown[:4]}")
    module = module.to(bench.device)
    fused = bench.device == "cuda"
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)
    run = torch.compile(module) if compiled else module

    def call() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(bench.device, torch.bfloat16):
            loss = model.loss(torch.nn.functional, run, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def _figures(name: str, bench: Bench) -> Iterator[Figure]:
    found = answer("tools.cuda_bars.training", name, bench.device, str(bench.seconds))
    ms, peaks, losses = found["ms"], found["peaks"], found["losses"]
    error = max(abs(losses[k] - losses["torch"]) / abs(losses["torch"]) for k in losses)
    if not error <= LOSS_TOLERANCE:
        raise AssertionError(f"wrong: first losses {losses}")
    best = min(v for k, v in ms.items() if k != "numus")
    yield Figure(name, best / ms["numus"], MODELS[name].asked, ms=ms, error=error)
    least = min(v for k, v in peaks.items() if k != "numus")
    told = f"{name}: peak memory of PyTorch's"
    yield Figure(told, peaks["numus"] / least, 1.0, "", at_most=True, ms={"GiB": least / 2**30})


def _gpt2(bench: Bench) -> Iterator[Figure]:
    """GPT-2 124M: first steps with a cold and a warm cache of kernels, speed, memory."""
    dry = bool(bench.most)
    shape = ("tiny", "2", "16") if dry else ("124M", "16", "1024")
    given = ["--device", bench.device, "--warmup", "700", "--clip", "1"]
    for option, value in zip(("size", "batch", "length"), shape, strict=True):
        given += [f"--{option}", value]
    given += [] if dry else ["--precision", "bf16"]
    timed = ["--steps", "5"] if dry else ["--steps", "20", "--compile"]
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (
            _lines(output("bench.gpt2", *given, *more, NUMUS_CACHE_DIR=folder))
            for more in (timed, ["--steps", "2"])
        )
    for name, found, asked in (("cold", cold, 8.0), ("warm", warm, 2.0)):
        told = f"GPT-2 124M: first step, {name} cache"
        yield Figure(told, found["numus"]["first"], asked, "s", at_most=True)
    ms = {kind: line["ms"] for kind, line in cold.items()}
    best = min(v for k, v in ms.items() if k != "numus")
    yield Figure("GPT-2 124M, 16 of 1024", best / ms["numus"], 1.05, ms=ms)
    yield Figure("GPT-2 124M: peak memory", cold["numus"]["gib"], 9.0, "GiB", at_most=True)


def _lines(text: str) -> dict[str, dict[str, float]]:
    """What `bench.gpt2` printed of each library."""
    pattern = (
        r"^(numus|torch[.\w]*) +first step +([\d.]+) s, then +([\d.]+) ms, .*?([\d.]+|nan) GiB"
    )
    found = re.findall(pattern, text, re.MULTILINE)
    return {k: {"first": float(a), "ms": float(b), "gib": float(c)} for k, a, b, c in found}


def bars(bench: Bench) -> Iterator[Bar]:
    yield Bar("training", "GPT-2 124M", _gpt2, order=0)
    for name, model in MODELS.items():
        yield Bar("training", name, partial(_figures, name), model.order)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
