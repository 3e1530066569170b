"""Hierarchical collectives among four ranks that pretend to be two nodes, against flat ones."""

import numpy as np

import numus as nm

dist = nm.distributed


def main():
    group = dist.init(timeout=60)
    assert group.transport(nm.device("cpu")).name == "hierarchical"
    n, me = group.size, group.rank
    for size in (40_000, 40_001):
        given = [np.random.default_rng(r).normal(size=size).astype("f4") for r in range(n)]
        x = nm.asarray(given[me])
        for op, f in (("sum", np.sum), ("max", np.max), ("mean", np.mean)):
            found = dist.all_reduce(x, op).numpy()
            np.testing.assert_allclose(found, f(given, axis=0), rtol=2e-5, atol=2e-6)
            again = dist.all_gather(dist.all_reduce(x, op)[None]).numpy()
            assert (again == found).all()  # the same bits everywhere, each time
        for root in (0, n - 1):
            assert (dist.broadcast(x, root).numpy() == given[root]).all()
        assert (dist.all_gather(x).numpy() == np.concatenate(given)).all()
        long = nm.asarray(np.concatenate([given[me]] * n))
        parts = dist.reduce_scatter(long).numpy()
        np.testing.assert_allclose(parts, np.sum(given, axis=0), rtol=2e-5, atol=2e-6)
    works = [dist.start(dist.all_reduce, nm.full((20_000,), float(me + i))) for i in range(4)]
    small = dist.all_reduce(nm.asarray([1.0]))  # a flat one while others are under way
    assert small.item() == n
    for i in (2, 0, 3, 1):
        assert (works[i].wait().numpy() == n * (n - 1) / 2 + n * i).all()
    print(f"rank {me}: all right", flush=True)


if __name__ == "__main__":
    main()
