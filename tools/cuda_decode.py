"""Decoding on a GPU: milliseconds a token, and the time of each kind of kernel.

`python -m tools.cuda_decode` times steps of decoders with random weights as `nm.models` generates
with them (greedy, replayed), in `bfloat16` and `int4-g128`, after it has compared small ones with
`float32` on the CPU. Kernels are timed apart in CUDA graphs, those of all layers in turns, so that
weights come from memory; a launch takes part in these times, which therefore add up to more than a
step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus import models
from numus.compiler.hooks import before_run
from numus.models.generation.sampling import Sampler
from numus.models.generation.session import Chosen, Session

BANDWIDTH = 4.3e12  # bytes/s that a copy reaches on one H200


@dataclass(frozen=True)
class Decoder:
    """Sizes of a model, and of its cache."""

    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    cache: int

    def model(self) -> Any:
        config = models.LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.cache,
        )
        return models.LlamaForCausalLM(config).eval()


SMALL = Decoder("24 layers of 1024", 24, 1024, 4096, 16, 16, 32000, 1024)
LARGE = Decoder("1.1 B parameters", 22, 2048, 5632, 32, 4, 32000, 2048)
DECODERS = (SMALL, LARGE)


def made(decoder: Decoder, device: str, format: str = "bfloat16") -> Any:
    """A model with random weights on a device, in a dtype or a format of few bits."""
    before = nm.default_device()
    nm.set_default_device(device)
    try:
        model = decoder.model().to(getattr(nm, format) if hasattr(nm, format) else nm.bfloat16)
    finally:
        nm.set_default_device(before)
    if not hasattr(nm, format):
        nm.quant.quantize_(model, format)
    return model


def weight_bytes(model: Any) -> int:
    """What a token reads of the model: all but the embeddings it looks up."""
    own = {id(p): p.nbytes for p in model.state_dict().values()}
    return sum(own.values()) - model.model.embed_tokens.weight.nbytes


class Steps:
    """Steps of a model whose cache is nearly full."""

    def __init__(self, model: Any, cache: int, rows: int = 1, room: int = 128) -> None:
        self.session = Session(model, rows, cache, Sampler())
        self.session.begin(0)
        ints = self.session._ints
        self.first = ints(np.zeros(rows, int))
        start = cache - room
        self.start = Chosen(
            ints(np.full((rows, 1), 5)), ints(np.arange(start, start + 1)), ints(np.asarray(0))
        )
        self.end = cache
        self.room = room - 1

    def milliseconds(self, repeats: int = 5) -> float:
        """The least time of a step, of runs of as many as the cache has room for."""
        best = float("inf")
        for _ in range(repeats + 1):  # the first compiles, and is captured
            state = self.start
            nm.eval(*state)
            nm.synchronize(self.session.device)
            began = time.perf_counter()
            for _ in range(self.room):
                state = self.session.step(state, self.first, self.end)
            nm.eval(*state)
            nm.synchronize(self.session.device)
            best = min(best, time.perf_counter() - began)
        return best / self.room * 1e3

    def scores(self) -> np.ndarray[Any, Any]:
        """Of the token after the first one."""
        program = nm.jit(self._scored)
        with nm.no_grad():
            return np.asarray(program(*self.start, self.first).astype(nm.float32)).astype(float)

    def _scored(self, tokens: Any, slots: Any, number: Any, first: Any) -> Any:
        hidden = self.session._hidden(tokens, slots, first, None, None, self.end)
        return self.session.model.head(hidden[:, -1:])[:, 0]

    def kernels(self, rounds: int = 20) -> list[tuple[str, int, float]]:
        """Of each kind of kernel the name with what is fused, the number, and µs of one."""
        found: list[list[tuple[str, int, float]]] = []

        def hook(device: Any, plan: Any, leaves: Sequence[Any], constants: Sequence[Any]) -> None:
            if not found and len(plan.steps) > 10:
                found.append(list(_kernel_times(plan, leaves, constants, rounds)))

        before_run.append(hook)
        try:
            self.scores()
        finally:
            before_run.remove(hook)
        return found[0] if found else []


def _kernel_times(
    plan: Any, leaves: Sequence[Any], constants: Sequence[Any], rounds: int
) -> Iterator[tuple[str, int, float]]:
    memories, addresses, values = plan.arguments(leaves, constants)
    launches, kinds, at = plan.single_launches(), dict[Any, list[Any]](), 0
    for step, program, launch in zip(plan.steps, plan.programs, launches, strict=True):
        count = 1 + len(step.scalars)
        own = launch, values[at : at + count]
        kinds.setdefault((id(program), step.grid), []).append((program, own))
        at += count
    for members in kinds.values():
        program = members[0][0]
        best = float("inf")

        def work(members: Any = members) -> None:
            for _ in range(rounds):
                for _, (launch, own) in members:
                    launch(addresses, own)

        work()
        replay = captured(plan.runtime, work) if hasattr(plan.runtime, "stream") else work
        for _ in range(4):
            plan.runtime.synchronize()
            began = time.perf_counter()
            replay()
            plan.runtime.synchronize()
            best = min(best, time.perf_counter() - began)
        name = f"{program.kernel.name}: {' '.join(dict.fromkeys(program.kernel.notes))}"
        yield name, len(members), best / rounds / len(members) * 1e6
    del memories


def captured(runtime: Any, work: Callable[[], None]) -> Callable[[], Any]:
    """The launches of a function as a CUDA graph, which the host has no part in."""
    from numus.runtime.cuda import driver

    mode = driver.constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
    runtime.synchronize()
    driver.call("cuStreamBeginCapture", runtime.stream, mode)
    try:
        work()
    finally:
        graph = driver.call("cuStreamEndCapture", runtime.stream)
    ready = driver.call("cuGraphInstantiate", graph, 0)
    driver.call("cuGraphDestroy", graph)
    return lambda: driver.call("cuGraphLaunch", ready, runtime.stream)


def checks(device: str) -> Iterator[str]:
    """Small decoders against float32 on the CPU."""
    small = Decoder("small", 2, 512, 640, 8, 2, 500, 256)
    for name, bound in (("float32", 1e-4), ("bfloat16", 3e-2), ("int4-g128", 3e-2)):
        for rows in (1, 3, 8):
            nm.random.seed(1)
            model = made(small, "cpu", "float32" if name == "float32" else name)
            want = Steps(model.to("cpu"), small.cache, rows).scores()
            got = Steps(model.to(device), small.cache, rows).scores()
            error = float(np.abs(got - want).max() / np.abs(want).max())
            again = Steps(model, small.cache, rows).scores()
            verdict = "ok" if error < bound and (again == got).all() else "WRONG"
            yield f"{name}, {rows} rows: {error:.1e} of the largest score, {verdict}"


def row(decoder: Decoder, model: Any, format: str, rows: int) -> tuple[str, Steps]:
    """A line of the table."""
    steps = Steps(model, decoder.cache, rows)
    taken = steps.milliseconds()
    share = weight_bytes(model) / BANDWIDTH * 1e3 / taken
    return f"| {decoder.name} | {format} | {rows} | {taken:.3f} | {share:.0%} |", steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", default="1,8", help="texts at once")
    parser.add_argument("--formats", default="bfloat16,int4-g128")
    given = parser.parse_args()
    for line in checks(given.device):
        print("-", line, flush=True)
    print("\n| decoder | weights | rows | ms a token | of the memory's bandwidth |")
    print("|---|---|---:|---:|---:|", flush=True)
    for decoder in DECODERS:
        for format in given.formats.split(","):
            model = made(decoder, given.device, format)
            for rows in map(int, given.rows.split(",")):
                line, steps = row(decoder, model, format, rows)
                print(line, flush=True)
                if rows == 1:
                    for name, count, us in steps.kernels():
                        print(f"    {count:3} x {us:7.2f} us {name[:100]}", flush=True)


if __name__ == "__main__":
    main()
