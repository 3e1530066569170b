"""What a training step takes of memory, beside PyTorch: bytes at the peak, above what stays.

Both sides count what their own allocators hand out: numus the blocks of its pool (results, the
arena of temporaries, scratch memory of all threads, rounded up as the pool does), PyTorch the
records of its profiler. Libraries that PyTorch calls may take more without telling. What is there
before a step and after it (parameters, moments, the batch) is left out on both sides, and so are the
gradients of PyTorch's last step, which are freed before the next is looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numus as nm

from .libraries import torch
from .training import MODELS, Model, numus_step, torch_step

STEPS = 3
MIB = 1 << 20


class Peak(NamedTuple):
    name: str
    numus: int
    torch: int | None


def numus_peak(model: Model) -> int:
    """From before the first step: what a traced function keeps between calls counts."""
    step = numus_step(model)
    pool = nm.device("cpu").runtime.memory
    before = pool.peak = pool.in_use
    for _ in range(STEPS):
        nm.eval(step())
    return int(pool.peak - before)


def torch_peak(model: Model) -> int:
    """From after the first step, which makes the optimiser's moments."""
    step = torch_step(model)
    step()
    for thing in _leaves_with_gradients():
        thing.grad = None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        for _ in range(STEPS):
            step()
    records: list[Any] = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    taken = peak = 0
    for event in sorted(records, key=lambda e: e.start_ns()):
        taken += event.nbytes()
        peak = max(peak, taken)
    return peak


def _leaves_with_gradients() -> list[Any]:
    import gc

    return [t for t in gc.get_objects() if isinstance(t, torch.nn.Parameter)]


def report() -> bool:
    """Print both peaks of each model; whether numus's is nowhere above PyTorch's."""
    print(f"{'MiB':28} {'numus':>13} {'torch':>13} {'torch/numus':>12}")
    fine = True
    for model in MODELS:
        own = numus_peak(model)
        other = torch_peak(model) if torch is not None else None
        cells = [f"{own / MIB:>13.1f}", f"{'-':>13}", f"{'-':>12}"]
        if other is not None:
            cells[1:] = [f"{other / MIB:>13.1f}", f"{other / own:>12.2f}"]
            fine &= own <= other
        print(f"{model.name:28}", *cells, flush=True)
    return fine
