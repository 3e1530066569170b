"""Layers that are divided among ranks, against whole ones; checks that every rank runs.

`python rank_layers.py [--all] [CHECK ...]`: with all cases, compiled as well; some checks only.
"""

import copy
import math
import sys
import time
import traceback
from functools import partial

import numpy as np
import pytest
from rank_parallel import llama, mixtral, part

import numus as nm
from numus import nn

dist = nm.distributed
par = dist.parallel
ALL = "--all" in sys.argv


def check_messages():
    """Messages that are read in another order than they came in."""
    if dist.world_size() < 2 or dist.rank() > 1:
        dist.barrier()
        return

    x = nm.arange(100_000.0)
    if dist.rank() == 0:
        time.sleep(0.2)  # the other one waits for both when they come
        for work in [dist.start(dist.send, k * x, 1) for k in (1, 2)]:
            work.wait()
    else:
        first, second = (dist.start(dist.recv, x, 0) for _ in range(2))
        assert (second.wait().numpy() == 2 * x.numpy()).all()
        assert (first.wait().numpy() == x.numpy()).all()
    dist.barrier()


def check_errors():
    n = dist.world_size()
    ranks = ", ".join(map(str, range(n)))
    for call, words in [
        (lambda: par.ColumnParallelLinear(4, n + 1), [f"{n} ranks", "divides it"]),
        (lambda: par.VocabParallelEmbedding(n + 1, 2), [f"{n} ranks", f"ranks {ranks}"]),
        (lambda: par.ExpertParallelMoE(4, 4, n + 1), [f"{n + 1} are not divisible", ranks]),
        (lambda: par.context_positions(2 * n + 1), [f"{2 * n + 1} tokens", "pad it"]),
        (lambda: nm.Mesh(tensor=n + 1), [f"{n + 1} ranks", f"the world has {n}"]),
        (
            lambda: par.Pipeline([nn.Linear(2, 2)] * (n + 1), nm.Mesh(pipe=n), microbatches=2),
            [f"{n + 1} stages for the {n} ranks", f"multiple of {n}"],
        ),
        (
            lambda: par.parallelize(llama(num_key_value_heads=1), nm.Mesh(tensor=n)),
            ["kv_heads: 1 are not divisible", f"{n} ranks"],
        )
        if n > 1
        else (lambda: par.cut(nm.ones(())), ["cut"]),
    ]:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        assert all(word in str(caught.value) for word in words), (caught.value, words)


def check_regions():
    """Gradients of layers against whole ones, and the cross entropy of divided classes."""
    group = dist.world()
    n = group.size
    rng = np.random.default_rng(2)
    x = nm.asarray(rng.normal(size=(3, 2 * n, 4 * n)).astype("f4"), requires_grad=True)
    nm.random.seed(0)
    up, down = nn.Linear(4 * n, 8 * n), nn.Linear(8 * n, 4 * n)
    weights = nm.asarray(rng.normal(size=x.shape).astype("f4"))
    want = down(nn.gelu(up(x)))
    (want * weights).sum().backward()
    for sequence in (False, True):
        options = {"sequence": sequence}
        first = par.ColumnParallelLinear(4 * n, 8 * n, layer=copy.deepcopy(up), **options)
        second = par.RowParallelLinear(8 * n, 4 * n, layer=copy.deepcopy(down), **options)
        given = part(x.numpy(), group, 1) if sequence else nm.asarray(x.numpy())
        given.requires_grad = True
        first.weight.grad = second.weight.grad = second.bias.grad = None
        y = second(nn.gelu(first(given)))
        mine = part(weights.numpy(), group, 1) if sequence else weights
        (y * mine).sum().backward()
        cut = (lambda z: part(z, group, 1).numpy()) if sequence else np.asarray
        np.testing.assert_allclose(y.numpy(), cut(want.numpy()), atol=1e-5)
        np.testing.assert_allclose(given.grad.numpy(), cut(x.grad.numpy()), atol=1e-4)
        np.testing.assert_allclose(
            first.weight.grad.numpy(), part(up.weight.grad.numpy(), group).numpy(), atol=1e-4
        )
        wide = part(down.weight.grad.numpy(), group, 1).numpy()
        np.testing.assert_allclose(second.weight.grad.numpy(), wide, atol=1e-4)
        np.testing.assert_allclose(second.bias.grad.numpy(), down.bias.grad.numpy(), atol=1e-4)
    scores = rng.normal(size=(6, 4 * n)).astype("f4") * 30
    classes = np.array([0, 4 * n - 1, 3, -100, 2, 1])
    whole = nm.asarray(scores, requires_grad=True)
    want = nn.cross_entropy(whole, nm.asarray(classes))
    want.backward()
    mine = part(scores, group, 1)
    mine.requires_grad = True
    loss = par.vocab_parallel_cross_entropy(mine, nm.asarray(classes))
    loss.backward()
    np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-6)
    np.testing.assert_allclose(
        mine.grad.numpy(), part(whole.grad.numpy(), group, 1).numpy(), atol=1e-6
    )
    x = nm.asarray(rng.normal(size=(2 * n,)), requires_grad=True)
    twice = nm.grad(lambda z: (nm.grad(lambda w: (par.join(par.cut(w)) ** 3).sum())(z) ** 2).sum())
    np.testing.assert_allclose(twice(x).numpy(), 36 * x.numpy() ** 3, rtol=1e-6)


def check_stages():
    """Gradients of a pipeline of linear layers, of which the first and the last share a weight."""
    n = dist.world_size()
    rng = np.random.default_rng(8)
    x, y = (nm.asarray(rng.normal(size=(4 * n, 3)).astype("f4")) for _ in range(2))

    def make():
        nm.random.seed(1)
        stages = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2 * n)]
        stages[-1][0].weight = stages[0][0].weight
        return stages

    whole = make()
    want = nn.mse_loss(nn.Sequential(*whole)(x), y)
    want.backward()
    pipe = par.Pipeline(make(), nm.Mesh(pipe=n), microbatches=2 * n, schedule="interleaved")
    loss = pipe.step(x, y, nn.mse_loss)
    np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-6)
    np.testing.assert_allclose(pipe(x).numpy(), nn.Sequential(*whole)(x).numpy(), atol=1e-6)
    for name, p in pipe.named_parameters():
        _, stage, _, kind = name.split(".")
        expected = getattr(whole[int(stage)][0], kind).grad.numpy()
        np.testing.assert_allclose(p.grad.numpy(), expected, atol=1e-6)
    parameters = {id(p): p for stage in whole for p in stage.parameters()}
    total = math.sqrt(sum(float((p.grad**2).sum().item()) for p in parameters.values()))
    norm = par.clip_grad_norm_(pipe, 0.1, mesh=nm.Mesh(pipe=n))
    np.testing.assert_allclose(norm.item(), total, rtol=1e-5)


def check_ring():
    group = dist.world()
    n = group.size
    rng = np.random.default_rng(5)
    # without a triangle there are fewer kernels to compile
    cases = [(False, True, 2, 1), (True, True, 2, 1), (True, False, 2, 2)]
    for causal, zigzag, heads, own in cases if ALL else cases[:1]:
        shapes = [(2, heads, 6 * n, 8), (2, own, 6 * n, 8), (2, own, 6 * n, 5)]
        q, k, v = (rng.normal(size=s).astype("f4") for s in shapes)
        w = rng.normal(size=(2, heads, 6 * n, 5)).astype("f4")
        whole = [nm.asarray(x, requires_grad=True) for x in (q, k, v)]
        want = nm.scaled_dot_product_attention(*whole, is_causal=causal, enable_gqa=True)
        (want * nm.asarray(w)).sum().backward()
        zig = zigzag and causal
        mine = partial(par.shard_sequence, axis=2, zigzag=zig)
        weights = mine(w)

        def attend(q, k, v, causal=causal, zigzag=zigzag):
            return par.ring_attention(q, k, v, is_causal=causal, zigzag=zigzag)

        def loss(q, k, v, w=weights, attend=attend):
            return (attend(q, k, v) * w).sum()

        parts = [mine(x) for x in (q, k, v)]
        out = attend(*parts)
        back = par.unshard_sequence(out, 2, zigzag=zig)
        np.testing.assert_allclose(back.numpy(), want.numpy(), atol=1e-5)
        grads = nm.grad(loss, argnums=(0, 1, 2))
        for f in (grads, nm.jit(grads)) if ALL else (grads,):
            for g, x in zip(f(*parts), whole, strict=True):
                np.testing.assert_allclose(g.numpy(), mine(x.grad).numpy(), atol=1e-5)


def check_moe():
    """Values and gradients against Mixtral's own layer; capacity against a loop."""
    group = dist.world()
    n = group.size
    whole = mixtral().model.layers[0].block_sparse_moe
    x = np.random.default_rng(6).normal(size=(2 * n, 5, 16)).astype("f4")
    w = np.random.default_rng(7).normal(size=x.shape).astype("f4")
    given = nm.asarray(x, requires_grad=True)
    want = whole(given)
    if not ALL:  # values alone: gradients are a hundred kernels to compile
        y = par.ExpertParallelMoE.of(whole)(part(x, group))
        np.testing.assert_allclose(y.numpy(), part(want.numpy(), group).numpy(), atol=1e-5)
        return
    (want * nm.asarray(w)).sum().backward()
    for compiled in (False, True):
        moe = par.ExpertParallelMoE.of(mixtral().model.layers[0].block_sparse_moe)

        def run(mine, w, moe=moe):
            y, balance = moe(mine, with_loss=True)
            return (y * w).sum(), (y, balance)

        f = nm.value_and_grad(run, has_aux=True)
        (_, (y, balance)), g = (nm.jit(f) if compiled else f)(part(x, group), part(w, group))
        np.testing.assert_allclose(y.numpy(), part(want.numpy(), group).numpy(), atol=1e-5)
        np.testing.assert_allclose(g.numpy(), part(given.grad.numpy(), group).numpy(), atol=1e-5)
        routing = moe.route(nm.asarray(x.reshape(-1, 16)))
        hits = np.bincount(routing.which.numpy().reshape(-1), minlength=4) / routing.which.size
        loss = 4 * (hits * routing.chances.numpy().mean(0)).sum()
        np.testing.assert_allclose(balance.item(), loss, rtol=1e-5)
    tight = par.ExpertParallelMoE.of(whole, capacity_factor=0.5)
    mine = part(x, group)
    got = tight(mine).numpy().reshape(-1, 16)
    flat = mine.reshape(-1, 16)
    routing = tight.route(flat)
    tokens = flat.shape[0]
    room = [max(1, math.ceil(0.5 * 2 * tokens / 4))] * 4
    expected = np.zeros((tokens, 16), "f4")
    which, shares = routing.which.numpy(), routing.shares.numpy()
    for choice in range(2):
        for token in range(tokens):
            expert = which[token, choice]
            if room[expert]:
                room[expert] -= 1
                one = whole.experts[expert](flat[token : token + 1]).numpy()[0]
                expected[token] += shares[token, choice] * one
    np.testing.assert_allclose(got, expected, atol=1e-5)


def main():
    dist.init(timeout=250)
    checks = (check_messages, check_errors, check_regions, check_stages, check_ring, check_moe)
    named = [name for name in sys.argv[1:] if not name.startswith("-")]
    for check in checks:
        if named and check.__name__.removeprefix("check_") not in named:
            continue
        begin = time.perf_counter()
        try:
            check()
        except Exception:
            print(f"rank {dist.rank()}: {check}", traceback.format_exc(), flush=True)
            raise
        print(f"{check.__name__}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(f"rank {dist.rank()} of {dist.world_size()}: all right", flush=True)


if __name__ == "__main__":
    main()
