"""Data-parallel training against one process with the whole batch; checks that every rank runs."""

import numpy as np
import pytest

import numus as nm
from numus import nn, optim
from numus.errors import DistributedError

dist = nm.distributed


def model():
    nm.random.seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 2))


def batches(steps, size):
    rng = np.random.default_rng(1)
    for _ in range(steps):
        yield rng.normal(size=(size, 4)).astype("f4"), rng.normal(size=(size, 2)).astype("f4")


def mine(x, group=None):
    return nm.asarray(np.split(x, dist.world_size(group))[dist.rank(group)])


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def check_training():
    n = dist.world_size()
    alone, shared = model(), model()
    if dist.rank():  # the first rank's parameters count
        for p in shared.parameters():
            p.assign(p.detach() * 0)
    parallel = dist.DistributedDataParallel(shared, bucket_mib=2e-4)  # several buckets
    assert len(parallel._buckets) > 2
    one, all_of_us = (optim.AdamW(m.parameters(), lr=1e-2) for m in (alone, shared))

    @nm.jit
    def step(x, y):
        all_of_us.zero_grad()
        loss = loss_of(parallel, x, y)
        loss.backward()
        all_of_us.step()
        return loss

    for i, (x, y) in enumerate(batches(8, 6 * n)):
        one.zero_grad()
        loss_of(alone, nm.asarray(x), nm.asarray(y)).backward()
        one.step()
        if i >= 4:  # the first half eagerly, the second half compiled
            step(mine(x), mine(y))
            continue
        all_of_us.zero_grad()
        if i == 2:  # two parts of a batch, averaged once
            halves = [np.split(mine(z).numpy(), 2) for z in (x, y)]
            with parallel.no_sync():
                (loss_of(parallel, *map(nm.asarray, (halves[0][0], halves[1][0]))) / 2).backward()
            (loss_of(parallel, *map(nm.asarray, (halves[0][1], halves[1][1]))) / 2).backward()
        else:
            loss_of(parallel, mine(x), mine(y)).backward()
        all_of_us.step()
    for p, q in zip(alone.parameters(), shared.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), atol=1e-5)
        both = dist.all_gather(q.detach().reshape(1, -1)).numpy()
        assert (both == both[0]).all()  # the same bits on all ranks


def check_unused():
    class Net(nn.Module):
        def __init__(self):
            self.used, self.spare = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x, both):
            return self.used(x) + self.spare(x) if both else self.used(x)

    me, n = dist.rank(), dist.world_size()
    net = dist.DistributedDataParallel(Net(), find_unused_parameters=True)
    net(nm.ones((1, 2)), me == 0).sum().backward()
    assert (net.module.spare.bias.grad.numpy() == 1 / n).all()
    assert (net.module.used.bias.grad.numpy() == 1).all()
    strict = dist.DistributedDataParallel(Net())
    strict(nm.ones((1, 2)), False).sum().backward()
    with pytest.raises(DistributedError, match="reached no gradient of spare"):
        strict(nm.ones((1, 2)), False)
    static = dist.DistributedDataParallel(Net(), static_graph=True)
    for i in range(3):
        static(nm.ones((1, 2)) * (me + i), False)  # without a backward pass
        static(nm.ones((1, 2)) * (me + i), False).sum().backward()
        weight = static.module.used.weight
        assert np.allclose(weight.grad.numpy(), i + (n - 1) / 2)
        assert not static.module.spare.bias.grad.numpy().any()
        weight.grad = None
    broken = dist.DistributedDataParallel(Net(), static_graph=True)
    for both in (True, False):
        broken(nm.ones((1, 2)), both).sum().backward()
    with pytest.raises(DistributedError, match="reached no gradient of spare"):
        broken(nm.ones((1, 2)), False)


def check_samplers():
    n, me = dist.world_size(), dist.rank()
    sampler = nm.data.DistributedSampler(range(8 * n))
    mine = nm.asarray([list(sampler)])
    assert (sampler.num_replicas, sampler.rank) == (n, me)
    assert sorted(dist.all_gather(mine).reshape(-1).tolist()) == list(range(8 * n))


def check_batch_norm():
    n = dist.world_size()
    x = np.random.default_rng(2).normal(size=(4 * n, 3, 5)).astype("f4")
    plain, sync = nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm1d(3))
    sync = dist.convert_sync_batchnorm(sync)
    whole, part = nm.asarray(x, requires_grad=True), mine(x)
    part.requires_grad = True
    weights = np.random.default_rng(4).normal(size=x.shape).astype("f4")
    (plain(whole) * nm.asarray(weights)).sum().backward()
    y = sync(part)
    (y * mine(weights)).sum().backward()
    np.testing.assert_allclose(y.numpy(), mine(plain(whole).numpy()).numpy(), atol=1e-5)
    np.testing.assert_allclose(part.grad.numpy(), mine(whole.grad.numpy()).numpy(), atol=1e-5)
    plain = nn.BatchNorm1d(3)
    plain(nm.asarray(x))
    for name in ("running_mean", "running_var"):
        want = getattr(plain, name).numpy()
        np.testing.assert_allclose(getattr(sync[0], name).numpy(), want, atol=1e-6)


def check_clipping_and_hooks():
    me, n = dist.rank(), dist.world_size()
    shard = nm.ones(3, requires_grad=True)
    (shard * (me + 1.0)).sum().backward()
    norm = dist.clip_grad_norm_([shard], 1.0)
    expected = np.sqrt(3 * sum((r + 1.0) ** 2 for r in range(n)))
    np.testing.assert_allclose(norm.item(), expected, rtol=1e-6)
    np.testing.assert_allclose(shard.grad.numpy(), (me + 1) / expected, rtol=1e-5)
    shard.grad = None
    with nm.register_backward_hook(dist.AllReduceSync()):
        (shard * (me + 1.0)).sum().backward()
    np.testing.assert_allclose(shard.grad.numpy(), (n + 1) / 2)


def check_mesh():
    n, me = dist.world_size(), dist.rank()
    mesh = nm.Mesh(data=-1, tensor=2)
    assert mesh.shape == {"data": n // 2, "tensor": 2}
    assert (mesh.coordinate("data"), mesh.coordinate("tensor")) == divmod(me, 2)
    along = dist.all_gather(nm.asarray([float(me)]), group=mesh.group("tensor")).tolist()
    assert along == [me - me % 2, me - me % 2 + 1]
    down = dist.all_gather(nm.asarray([float(me)]), group=mesh.group("data")).tolist()
    assert down == list(range(me % 2, n, 2))
    assert mesh.group(("data", "tensor")).size == n
    with pytest.raises(DistributedError, match=f"but the world has {n}"):
        nm.Mesh(data=3, tensor=5)


def main():
    dist.init(timeout=60)
    check_mesh()
    check_training()
    check_unused()
    check_samplers()
    check_batch_norm()
    check_clipping_and_hooks()
    print(f"rank {dist.rank()}: all right", flush=True)


if __name__ == "__main__":
    main()
