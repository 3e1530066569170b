"""A training step of GPT-2 (examples/gpt2.py) against PyTorch: losses, speed, memory.

    python -m bench.gpt2 --device cuda --size 124M --batch 16 --length 1024 --precision bf16
    python -m bench.gpt2                     # tiny, on the CPU

Both start from the same weights and see the same tokens at every step. PyTorch runs eagerly and,
with `--compile`, compiled. In 16 bits, losses diverge by rounding if the learning rate is large
from the first step on; `--warmup 700 --clip 1` is how GPT-2 is usually trained.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def example() -> Any:
    """The module examples/gpt2.py."""
    spec = importlib.util.spec_from_file_location("gpt2", ROOT / "examples" / "gpt2.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_model(size: Any) -> Any:
    """The same model in PyTorch, with the same names."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn = nn.Linear(size.width, 3 * size.width)
            self.c_proj = nn.Linear(size.width, size.width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.c_attn(x).view(batch, length, 3, size.heads, width // size.heads)
            q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
            self.attn = Attention()
            self.c_fc = nn.Linear(size.width, 4 * size.width)
            self.c_proj = nn.Linear(4 * size.width, size.width)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(size.vocabulary, size.width)
            self.wpe = nn.Embedding(size.length, size.width)
            self.h = nn.ModuleList([Block() for _ in range(size.layers)])
            self.ln_f = nn.LayerNorm(size.width)

        def forward(self, tokens: Any, targets: Any) -> Any:
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.h:
                x = block(x)
            scores = self.ln_f(x) @ self.wte.weight.T
            return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.reshape(-1))

    with torch.device("meta"):
        return GPT2()


class Torch:
    """PyTorch: a step that returns the loss."""

    def __init__(self, size: Any, weights: Any, given: Any, compiled: bool) -> None:
        import torch

        self.torch = torch
        model = torch_model(size).to_empty(device=given.device)
        model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=given.rate, weight_decay=0.1, fused=given.device != "cpu"
        )
        self.rates = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / max(1, given.warmup))
        )
        self.model, self.clip = model, given.clip
        self.run = torch.compile(model) if compiled else model
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(given.precision)
        self.device = given.device
        self.cast = (lambda: torch.autocast(given.device, kind)) if kind else contextlib.nullcontext

    def put(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array).to(self.device)

    def step(self, tokens: Any, targets: Any) -> Any:
        self.optimizer.zero_grad()
        with self.cast():
            loss = self.run(tokens, targets)
        loss.backward()
        if self.clip:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.rates.step()
        return loss.detach()

    def peak(self) -> float:
        if self.device == "cpu":
            return float("nan")
        return float(self.torch.cuda.max_memory_allocated()) / 2**30


class Numus:
    """numus: a step that returns the loss."""

    def __init__(self, gpt2: Any, size: Any, given: Any) -> None:
        import numus as nm

        self.nm, self.device = nm, given.device
        schedule = (given.rate, given.warmup, given.clip)
        self.training = gpt2.Training(size, given.device, given.precision, *schedule)
        self.step = self.training.step

    def weights(self) -> dict[str, np.ndarray]:
        return {k: np.array(v.numpy()) for k, v in self.training.model.state_dict().items()}

    def put(self, array: np.ndarray) -> Any:
        x = self.nm.asarray(array, device=self.device)
        self.nm.eval(x)
        return x

    def peak(self) -> float:
        return float(self.nm.memory_stats(self.device).get("peak", 0)) / 2**30


def run(name: str, side: Any, batches: list[np.ndarray], steps: int) -> list[float]:
    """Train and print the speed; the losses of all steps."""
    pairs = [(side.put(b[:, :-1].copy()), side.put(b[:, 1:].copy())) for b in batches]
    losses, times = [], []
    for number in range(steps):
        began = time.perf_counter()
        losses.append(float(side.step(*pairs[number % len(pairs)])))  # synchronises
        times.append(time.perf_counter() - began)
    best = sorted(times[3:])[len(times[3:]) // 2] if steps > 4 else times[-1]
    tokens = batches[0][:, 1:].size
    print(
        f"{name:16} first step {times[0]:6.1f} s, then {best * 1e3:8.2f} ms, "
        f"{tokens / best:9.0f} tokens/s, {side.peak():5.2f} GiB, loss {losses[0]:.4f} … "
        f"{losses[-1]:.4f}",
        flush=True,
    )
    return losses


def main() -> None:
    gpt2 = example()
    parser = gpt2.options(__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="torch.compile as well")
    parser.add_argument("--prefer", default="auto", help="kernel preference: native, vendor, auto")
    given = parser.parse_args()
    import numus as nm

    nm.kernels.prefer(given.prefer)
    size = gpt2.SIZES[given.size]
    rng = np.random.default_rng(0)
    shape = (given.batch, given.length + 1)
    # learnable: each token depends on the last
    batches = [np.cumsum(rng.integers(0, 3, shape), axis=1) % size.vocabulary for _ in range(4)]
    print(f"kernel preference: {nm.kernels.preference()}")
    ours = Numus(gpt2, size, given)
    weights = ours.weights()
    losses = {"numus": run("numus", ours, batches, given.steps)}
    del ours
    for name, compiled in (("torch", False), ("torch.compile", True)):
        if compiled and not given.compile:
            continue
        losses[name] = run(name, Torch(size, weights, given, compiled), batches, given.steps)
        difference = max(abs(a - b) for a, b in zip(losses["numus"], losses[name], strict=True))
        print(f"  losses of numus and {name} differ by at most {difference:.4f}")


if __name__ == "__main__":
    main()
