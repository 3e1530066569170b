"""Fully sharded training against one process with the whole batch; checks that every rank runs."""

import gc
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tiny_gpt as tiny

import numus as nm
from numus import nn, optim
from numus.errors import GradientError

dist = nm.distributed


class Quick:
    """A smaller problem than that of `tiny_gpt`, with fewer kernels."""

    @staticmethod
    def model():
        nm.random.seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4))

    @staticmethod
    def loss_of(model, x, y):
        return ((model(x) - y) ** 2).mean()

    @staticmethod
    def batches(steps, size):
        rng = np.random.default_rng(1)
        for _ in range(steps):
            yield rng.normal(size=(2, size, 4)).astype("f4")


problem, STEPS = (Quick, 6) if "--quick" in sys.argv else (tiny, 20)


def trainer(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = problem.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def alone():
    """The weights of one process after training, and before the last step but one."""
    model = problem.model()
    step = nm.jit(trainer(model, optim.AdamW(model.parameters(), lr=1e-2)))
    for x, y in problem.batches(STEPS, 8):
        step(nm.asarray(x), nm.asarray(y))
    return model.state_dict()


def check_training(how):
    """Eager steps, one of them in two parts, then compiled ones, against one process."""
    n, me = dist.world_size(), dist.rank()
    shared = problem.model()
    if me:  # the first rank's parameters count
        for p in shared.parameters():
            p.assign(p.detach() * 0)
    model = dist.FSDP(shared, **how)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    eager = trainer(model, optimizer)
    step = nm.jit(eager)
    for i, (x, y) in enumerate(problem.batches(STEPS, 8)):
        mine = [tiny.part(z, me, n) for z in (x, y)]
        if i == 1:
            optimizer.zero_grad()
            halves = [np.split(z.numpy(), 2) for z in mine]
            with model.no_sync():
                a, b = (nm.asarray(h[0]) for h in halves)
                (problem.loss_of(model, a, b) / 2).backward()
            assert all(p.grad is None for p in model.parameters())
            a, b = (nm.asarray(h[1]) for h in halves)
            (problem.loss_of(model, a, b) / 2).backward()
            optimizer.step()
        else:
            (eager if i < 3 else step)(*mine)
    return model, optimizer


def held(wrap):
    """Bytes that the allocator has given out for parameters, gradients and optimiser state."""
    gc.collect()
    before = nm.memory_stats("cpu")["in_use"]
    # powers of two, of which the allocator's size classes waste nothing
    net = wrap(nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(4)]))
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)
    net(nm.ones((2, 128))).sum().backward()
    optimizer.step()
    assert all(p.grad is not None for p in net.parameters())
    gc.collect()
    return nm.memory_stats("cpu")["in_use"] - before


def check_memory():
    """A rank holds its part, and what is padded."""
    n = dist.world_size()
    whole = held(lambda net: net)
    mine = held(dist.FSDP)
    print(f"memory: {mine} of {whole} bytes, {100 * mine / whole:.1f} %", flush=True)
    assert whole >= 4 * 4 * 4 * 128 * 128
    assert mine <= (1 / n + 0.05) * whole


def check_whole_parameters():
    n, me = dist.world_size(), dist.rank()
    nm.random.seed(me)
    model = dist.FSDP(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))
    state = model.state_dict()
    both = dist.all_gather(state["0.weight"].reshape(1, -1)).numpy()
    assert (both == both[0]).all()
    assert model.num_parameters() == 32
    with model.summon_full_params() as module:
        module[2].bias.assign(nm.full((2,), 7.0))
        assert module[0].weight.shape == (5, 3)
        model(nm.ones((1, 3))).sum().backward()  # as one process would
        assert module[2].bias.grad.tolist() == [1.0, 1.0]
    assert model.state_dict()["2.bias"].tolist() == [7.0, 7.0]
    state["2.bias"] = nm.ones(2)
    model.load_state_dict(state)
    assert model.state_dict()["2.bias"].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="shape"):
        model.load_state_dict({**state, "2.bias": nm.ones(3)})
    with pytest.raises(AttributeError, match="only a part of it outside"):
        model.module[0].weight.sum()
    x = nm.ones((2, 3)) * (me + 1.0)
    model(x).sum().backward()
    norm = model.clip_grad_norm_(1e-3)
    plain = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    plain.load_state_dict(model.state_dict())
    sum(plain(nm.ones((2, 3)) * (r + 1.0)).sum() / n for r in range(n)).backward()
    want = nn.utils.clip_grad_norm_(plain.parameters(), 1e-3)
    np.testing.assert_allclose(norm.item(), want.item(), rtol=1e-5)
    own = sum(float((p.grad.numpy() ** 2).sum()) for p in model.parameters())
    total = dist.all_reduce(nm.asarray([own])).item()
    np.testing.assert_allclose(total**0.5, min(1e-3, want.item()), rtol=1e-3)
    with pytest.raises(GradientError, match="reverse-mode derivatives only"):
        nm.jvp(lambda x: model(x), (x,), (x,))


def check_precision_and_frozen_parameters():
    me = dist.rank()
    nm.random.seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    net[0].bias.requires_grad = False
    policy = dist.MixedPrecision(param_dtype=nm.bfloat16, reduce_dtype=nm.float32)
    seen = []
    net[1].register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
    model = dist.FSDP(net, mixed_precision=policy, cpu_offload=True)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert len(frozen) == 1
    before = frozen[0].numpy().copy()
    optimizer = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(nm.ones((2, 4)) * (me + 1.0)).astype(nm.float32) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    assert all(p.dtype is nm.float32 for p in model.parameters())
    assert all(x is nm.bfloat16 for x in seen)
    assert (frozen[0].numpy() == before).all()


def check_trace(model, optimizer):
    """Parameters of the next layer are under way while a layer computes."""
    step = nm.jit(trainer(model, optimizer))
    mine = [tiny.part(z, dist.rank(), dist.world_size()) for z in next(problem.batches(1, 8))]
    step(*mine)
    folder = Path(tempfile.mkdtemp())
    with dist.trace(folder / "step.json"):
        step(*mine)
    if dist.rank():
        return
    events = json.loads((folder / "step.json").read_text())["traceEvents"]
    for rank in range(dist.world_size()):
        own = [e for e in events if e["pid"] == rank]
        programs = [(e["ts"], e["ts"] + e["dur"]) for e in own if e.get("cat") == "program"]
        begins = {e["id"]: e for e in own if e["ph"] == "b"}
        ends = {e["id"]: e["ts"] for e in own if e["ph"] == "e"}
        overlapped = set()
        for number, event in begins.items():
            inside = [p for p in programs if p[0] > event["ts"] and p[1] < ends[number]]
            if inside:
                overlapped.add(event["name"].partition("(")[0])
        assert {"all_gather", "reduce_scatter"} <= overlapped, overlapped


def main():
    dist.init(timeout=60)
    want = alone()
    ways = [{}, {"reshard_after_forward": False}] if "--all" in sys.argv else [{}]
    for how in ways:
        model, optimizer = check_training(how)
        state = model.state_dict()
        assert tiny.difference(state, want) < 1e-5, tiny.difference(state, want)
        print("bits", tiny.digest(state), flush=True)
    check_memory()
    check_trace(model, optimizer)
    check_whole_parameters()
    check_precision_and_frozen_parameters()
    print(f"rank {dist.rank()}: all right", flush=True)


if __name__ == "__main__":
    main()
