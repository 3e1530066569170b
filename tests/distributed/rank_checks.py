"""Checks that every rank of a job runs: `python rank_checks.py [--all]`; prints what failed."""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
import traceback

import ml_dtypes
import numpy as np
import pytest

import numus as nm
from numus.errors import DistributedError

dist = nm.distributed
REDUCED = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean}


def of_rank(shape, dtype, rank, seed=0):
    """The operand of a rank, which all ranks know."""
    rng = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return rng.integers(1, 4, shape).astype(dtype)
    if dtype.startswith("complex"):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return rng.integers(-8, 9, shape).astype(np.float32).astype(kind)  # sums are exact


def same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    np.testing.assert_allclose(
        found.astype(np.complex128), expected.astype(np.complex128), rtol=2e-6, atol=1e-6
    )


def check_collectives(group, dtype="float32", shape=(3, 4)):
    n, me = group.size, group.rank
    all_given = [of_rank(shape, dtype, r) for r in group.ranks]
    x = nm.asarray(all_given[me])
    stack = np.stack(all_given)
    wide = stack.astype(np.float32) if dtype in ("float16", "bfloat16") else stack
    for op, f in REDUCED.items():
        if dtype.startswith("complex") and op in ("max", "min"):
            continue
        if (dtype == "bool" and op not in ("max", "min")) or (
            op == "mean" and dtype.startswith(("int", "uint"))
        ):
            continue
        want = f(wide, axis=0).astype(stack.dtype)
        same(dist.all_reduce(x, op, group=group), want)
        reduced = dist.reduce(x, group.ranks[-1], op, group=group)
        same(reduced, want if me == n - 1 else 0 * want)
        if shape and op != "mean":
            long = np.concatenate([stack] * n, axis=1)
            part = dist.reduce_scatter(nm.asarray(long[me]), op, group=group)
            same(part, want)
    for root in {group.ranks[0], group.ranks[-1]}:
        same(dist.broadcast(x, root, group=group), all_given[group.ranks.index(root)])
    ring = [(group.ranks[i], group.ranks[(i + 1) % n]) for i in range(n)]
    same(dist.permute(x, ring, group=group), all_given[me - 1])
    first = dist.permute(x, ring[:1], group=group)
    same(first, all_given[0] if me == 1 % n else np.zeros(shape))
    if not shape:
        return
    for axis in range(-1, len(shape) - 1):
        same(dist.all_gather(x, axis, group=group), np.concatenate(all_given, axis))
        got = dist.gather(x, group.ranks[0], axis, group=group)
        if me == 0:
            same(got, np.concatenate(all_given, axis))
        else:
            assert got.size == 0
        whole = [np.concatenate([g] * n, axis) + i for i, g in enumerate(all_given)]
        if dtype == "bool":
            whole = [w.astype(bool) for w in whole]
        same(
            dist.scatter(nm.asarray(whole[me]), group.ranks[-1], axis, group=group),
            np.split(whole[-1], n, axis)[me],
        )
        want = np.concatenate([np.split(w, n, axis)[me] for w in whole], 0)
        same(dist.all_to_all(nm.asarray(whole[me]), axis, 0, group=group), want)


def check_nan():
    me = dist.rank()
    x = nm.asarray([me, np.nan if me else 0.0, -0.0, -np.inf * (me == 0) if me == 0 else 1.0])
    for dtype in ("float32", "float64", "bfloat16"):
        high = dist.all_reduce(x.astype(dtype), "max").astype("float64").numpy()
        low = dist.all_reduce(x.astype(dtype), "min").astype("float64").numpy()
        n = dist.world_size()
        same(high[[0, 3]], [n - 1, 1.0])
        assert np.isnan(high[1])
        assert np.isnan(low[1])
        assert low[3] == -np.inf


def check_strided_and_lazy():
    x = nm.arange(24.0).reshape(4, 6) * (dist.rank() + 1)
    n = dist.world_size()
    total = n * (n + 1) / 2
    same(dist.all_reduce((x + 1).T[1:]), ((np.arange(24.0).reshape(4, 6)) * total + n).T[1:])


def check_send_recv():
    me, n = dist.rank(), dist.world_size()
    if me == 0:
        x = nm.asarray([1.0, 2.0, 3.0], requires_grad=True)
        for other in range(1, n):
            dist.send(x * other, other).backward()
        same(x.grad, sum(2.0 * r * r * np.array([1.0, 2.0, 3.0]) for r in range(1, n)))
    else:
        like = nm.zeros(3, requires_grad=True)
        got = dist.recv(like, 0)
        same(got, me * np.array([1.0, 2.0, 3.0]))
        (got * got).sum().backward()


def check_asynchronous():
    me, n = dist.rank(), dist.world_size()
    xs = [nm.full((1000 * (i + 1),), float(me + i)) for i in range(5)]
    works = [dist.start(dist.all_reduce, x, "mean") for x in xs]
    gathered = dist.start(dist.all_gather, nm.asarray([float(me)]))
    for i, work in enumerate(works):
        same(work.wait(), np.full(1000 * (i + 1), (n - 1) / 2 + i))
    large = [nm.full((100_000,), float(me + i)) for i in range(6)]  # payloads behind their headers
    works = [dist.start(dist.all_reduce, x) for x in large]
    small = dist.start(dist.reduce_scatter, nm.full((n * 300,), float(me)))
    same(small.wait(), np.full(300, n * (n - 1) / 2))
    for i in (3, 5, 0, 4, 1, 2):  # read in another order than they were called in
        same(works[i].wait(), np.full(100_000, n * ((n - 1) / 2 + i)))
    while not gathered.is_completed():
        time.sleep(1e-3)
    same(gathered.wait() + 1, np.arange(n) + 1.0)


def check_jit():
    me, n = dist.rank(), dist.world_size()

    @nm.jit
    def step(x):
        y = dist.all_reduce(x * 2) + x
        dist.all_reduce(x)  # not used, and yet called: others may use theirs
        return dist.all_gather(y.sum(axis=0)), y

    for k in range(3):
        gathered, y = step(nm.full((2, 3), float(me + k)))
        total = 2 * sum(r + k for r in range(n))
        same(y, np.full((2, 3), total + me + k))
        same(gathered, np.repeat([2.0 * (total + r + k) for r in range(n)], 3))

    @nm.jit
    def trained(w, x):
        return nm.value_and_grad(lambda w: dist.all_reduce(nm.tanh(w * x), "mean").sum())(w)

    w = nm.asarray([0.3, -0.2])
    _, grad = trained(w, nm.asarray([1.0 + me, 2.0]))
    same(grad, np.array([1.0 + me, 2.0]) / np.cosh(w.numpy() * [1.0 + me, 2.0]) ** 2)

    w, m = nm.ones(100_000), nm.zeros(100_000)

    @nm.jit(donate=(0, 1))
    def update(w, m, x):
        first, second = dist.all_reduce(w * x), dist.all_reduce(w + x)  # under way together
        m = 0.5 * m + (w - 1) * 2  # meanwhile
        return w + second + first / n, m

    text = str(nm.explain(update, nm.ones(100_000), m + 0, nm.asarray(float(me)), timed=False))
    assert "while all_reduce(sum) of float32[100000] is under way" in text
    w, m = update(w, m, nm.asarray(float(me)))
    same(w[:2], np.full(2, 1 + (1 + (n - 1) / 2) * n + (n - 1) / 2))
    same(m[:2], np.zeros(2))

    @nm.jit
    def beside(x, w):  # a product that needs no result of the collective
        return dist.all_reduce(x) + nm.sin(x @ w)

    x, w = nm.full((300, 300), float(me)), nm.full((300, 300), 1 / 64)  # exact
    first, _ = nm.explain(beside, x, w, timed=False).programs
    assert first.under_way == ("all_reduce(sum) of float32[300, 300]",)
    assert "contract" in first.kernels[0].fused
    same(beside(x, w)[0, :2], np.full(2, n * (n - 1) / 2 + np.sin(300 / 64 * me)))

    def iteration(carry, x):
        return dist.all_reduce(carry, "mean") + x, carry.sum()

    carry, _ = nm.jit(lambda c: nm.scan(iteration, c, nm.arange(3.0)))(nm.full((2,), float(me)))
    same(carry, np.full(2, (n - 1) / 2 + 3.0))


def check_vmap():
    me, n = dist.rank(), dist.world_size()
    xs = np.stack([of_rank((5, n, 2), "float32", r) for r in range(n)])
    mine = nm.asarray(xs[me])
    same(nm.vmap(dist.all_reduce)(mine), xs.sum(0))
    same(nm.vmap(dist.all_gather)(mine), np.concatenate(list(xs), axis=1))
    same(nm.vmap(dist.reduce_scatter)(mine), xs.sum(0)[:, me : me + 1])
    want = np.concatenate([x[:, me : me + 1] for x in xs], axis=1)
    same(nm.vmap(dist.all_to_all)(mine), want)
    same(nm.vmap(nm.vmap(dist.all_gather))(mine), np.concatenate(list(xs), axis=2))
    same(nm.vmap(lambda x: dist.broadcast(x, n - 1), in_axes=1, out_axes=1)(mine), xs[-1])
    grad = nm.vmap(nm.grad(lambda x: (dist.all_gather(x) ** 2).sum()))(mine)
    same(grad, 2 * n * xs[me])
    twice = nm.jit(nm.vmap(lambda x: dist.all_reduce(x * 2)))(mine)
    same(twice, 2 * xs.sum(0))


def check_derivatives():
    """The transpose of each linear collective, by finite differences of the sum over ranks."""
    me, n = dist.rank(), dist.world_size()
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, n, 3))  # of all ranks
    ring = [(i, (i + 1) % n) for i in range(n)]
    cases = {
        "all_reduce": lambda x: dist.all_reduce(x),
        "mean": lambda x: dist.all_reduce(x, "mean"),
        "max": lambda x: dist.all_reduce(x, "max"),
        "prod": lambda x: dist.all_reduce(x, "prod"),
        "reduce": lambda x: dist.reduce(x, n - 1),
        "broadcast": lambda x: dist.broadcast(x, n - 1),
        "all_gather": lambda x: dist.all_gather(x, 1),
        "reduce_scatter": lambda x: dist.reduce_scatter(x),
        "reduce_scatter max": lambda x: dist.reduce_scatter(x, "max"),
        "all_to_all": lambda x: dist.all_to_all(x, 0, 1),
        "gather": lambda x: dist.gather(x, 0),
        "scatter": lambda x: dist.scatter(x, n - 1),
        "permute": lambda x: dist.permute(x, ring[: max(1, n - 1)]),
    }
    step = 1e-6
    for name, f in cases.items():
        mine = nm.asarray(x[me])
        weights = nm.asarray(np.random.default_rng([7, me]).normal(size=f(mine).shape))

        def loss(x, f=f, weights=weights):
            return (nm.sin(f(x)) * weights).sum()

        grad = nm.grad(loss)(mine).numpy()
        tangent = np.random.default_rng([9, me]).normal(size=x[me].shape)
        _, moved = nm.jvp(loss, (mine,), (nm.asarray(tangent),))
        slope = dist.all_reduce(moved).item()
        ends = [
            dist.all_reduce(loss(nm.asarray(x[me] + s * tangent))).item() for s in (step, -step)
        ]
        expected = (ends[0] - ends[1]) / (2 * step)
        back = dist.all_reduce(nm.asarray((grad * tangent).sum())).item()
        assert abs(slope - expected) < 1e-6 * (1 + abs(expected)), (name, slope, expected)
        assert abs(back - expected) < 1e-6 * (1 + abs(expected)), (name, back, expected)
        twice = nm.jvp(nm.grad(loss), (mine,), (nm.asarray(tangent),))[1].numpy()
        if name not in ("max", "reduce_scatter max"):
            near = nm.grad(loss)(nm.asarray(x[me] + step * tangent)).numpy()
            np.testing.assert_allclose(twice, (near - grad) / step, rtol=1e-4, atol=1e-4)


def check_groups():
    n, me = dist.world_size(), dist.rank()
    evens = dist.new_group(range(0, n, 2))
    turned = dist.new_group(reversed(range(n)))
    assert turned.rank == n - 1 - me
    same(dist.all_gather(nm.asarray([float(me)]), group=turned), np.arange(n)[::-1])
    if me % 2 == 0:
        check_collectives(evens)
    else:
        assert evens.rank == -1
        with pytest.raises(DistributedError, match=f"rank {me} is no member"):
            dist.all_reduce(nm.ones(2), group=evens)
    dist.barrier()


def check_mismatch():
    """The last one: it ends the world."""
    me = dist.rank()
    with pytest.raises(DistributedError, match="called different things") as caught:
        dist.all_reduce(nm.ones(3 + (me == 1)))
    assert re.search(r"rank 1: all_reduce\(sum\) of float32\[4\]", str(caught.value))
    assert re.search(r"ranks? 0.*: all_reduce\(sum\) of float32\[3\]", str(caught.value))
    with pytest.raises(DistributedError, match="this world has failed before"):
        dist.barrier()


def check_everything():
    n = dist.world_size()
    groups = [dist.world(), dist.new_group(range(0, n, 2)), dist.new_group(range(n - 1, -1, -1))]
    if n > 2:
        groups.append(dist.new_group([n - 1, 1]))
    kinds = "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    dtypes = [*kinds.split(), "bool", "complex64", "complex128"]
    shapes = [(), (1,), (7,), (0, 4), (2, 3, 129)]
    for group, dtype, shape in itertools.product(groups, dtypes, shapes):
        if group.rank >= 0:
            check_collectives(group, dtype, shape)
    dist.barrier()


def main():
    dist.init(timeout=float(os.environ.get("CHECK_TIMEOUT", "60")))
    checks = [
        lambda: check_collectives(dist.world()),
        lambda: check_collectives(dist.world(), "bfloat16", (5,)),
        lambda: check_collectives(dist.world(), "int64", ()),
        *(check_nan, check_strided_and_lazy, check_send_recv, check_asynchronous, check_jit),
        *(check_vmap, check_derivatives, check_groups, check_mismatch),
    ]
    if "--all" in sys.argv:
        checks = [check_everything]
    for check in checks:
        try:
            check()
        except Exception:
            print(f"rank {dist.rank()}: {check}", traceback.format_exc(), flush=True)
            raise
    print(f"rank {dist.rank()} of {dist.world_size()}: all right", flush=True)


if __name__ == "__main__":
    main()
