"""The same training on one process, on several, and on a Ray cluster.

    python examples/data_parallel.py                     # one process
    numus launch -n 4 examples/data_parallel.py          # four on this machine
    mpiexec -n 4 python examples/data_parallel.py        # or by MPI; Slurm: examples/train.slurm
    python examples/data_parallel.py --ray 4             # four workers of a Ray cluster
    python examples/data_parallel.py --ray 4 --nodes 2   # on two local nodes, for a try

Each rank trains on its part of every batch, and gradients are averaged: however many there are, the
losses are the same up to rounding.
"""

from __future__ import annotations

import argparse

import numpy as np

import numus as nm
from numus import distributed as dist
from numus import nn, optim

BATCH = 64


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole batch of a step: points, and the waves at them."""
    x = np.random.default_rng(step).uniform(-2, 2, (BATCH, 2)).astype(np.float32)
    return x, np.sin(3 * x[:, :1]) * np.cos(2 * x[:, 1:])


def train(steps: int) -> list[float]:
    """Train on this rank; the losses of whole batches."""
    world = dist.init()
    nm.random.seed(1)
    model = dist.DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    )
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)

    @nm.jit
    def step(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        optimizer.zero_grad()
        loss = nn.mse_loss(model(x), y)
        loss.backward()  # gradients leave bucket by bucket, while it goes on
        optimizer.step()
        return dist.all_reduce(loss.detach(), "mean")

    losses = []
    for number in range(steps):
        x, y = batch_of(number)
        mine = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)
        losses.append(float(step(nm.asarray(x[mine]), nm.asarray(y[mine])).item()))
    return losses


def on_ray(workers: int, nodes: int, steps: int) -> list[float]:
    """Train on workers of a Ray cluster, which may be one of local nodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = None
    if nodes > 1:
        each = -(-workers // nodes)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": each})
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=each)
        ray.init(address=cluster.address)
    try:
        found: list[list[float]] = dist.ray.run(train, steps, num_workers=workers, max_restarts=1)
        return found[0]
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ray", type=int, help="workers of a Ray cluster")
    parser.add_argument("--nodes", type=int, default=1, help="local ones, to be started for it")
    options = parser.parse_args()
    if options.ray:
        losses = on_ray(options.ray, options.nodes, options.steps)
    else:
        losses = train(options.steps)
    if options.ray or dist.rank() == 0:
        ranks = options.ray or dist.world_size()
        print(f"{ranks} ranks: loss {losses[0]:.5f} -> {losses[-1]:.5f}")


if __name__ == "__main__":
    main()
