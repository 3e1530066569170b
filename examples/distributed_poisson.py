"""Poisson's equation on a grid that several processes share, by conjugate gradients.

    python examples/distributed_poisson.py                         # one process
    numus launch -n 4 examples/distributed_poisson.py              # four, each with a band of rows
    mpiexec -n 64 python examples/distributed_poisson.py --points 8192

Each rank has some rows of the grid. An application of the Laplacian needs the rows next to them: a
halo exchange with both neighbours (`permute`); the products of conjugate gradients are sums over
all ranks (`all_reduce`). The ranks do together what one does alone, up to the order of sums.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

import numus as nm
from numus import distributed as dist


def rows_of(rank: int, ranks: int, points: int) -> slice:
    """The rows of a rank: as many for each, give or take one."""
    return slice(points * rank // ranks, points * (rank + 1) // ranks)


class Laplacian:
    """The five-point Laplacian with zeros around the grid, on the rows of this rank."""

    def __init__(self, group: dist.Group) -> None:
        self._group = group
        ranks = group.ranks
        self._down = list(itertools.pairwise(ranks))  # from each to the next one
        self._up = [(b, a) for a, b in self._down]

    def __call__(self, u: nm.Tensor) -> nm.Tensor:
        above = dist.permute(
            u[-1:], self._down, group=self._group
        )  # the last row of the rank above
        below = dist.permute(u[:1], self._up, group=self._group)
        tall = nm.concat([above, u, below])  # ends without a neighbour get zeros
        wide = nm.pad(u, ((0, 0), (1, 1)))
        return 4 * u - tall[:-2] - tall[2:] - wide[:, :-2] - wide[:, 2:]


def solve(
    b: nm.Tensor, group: dist.Group, tolerance: float, limit: int
) -> tuple[nm.Tensor, int, float]:
    """The solution on the rows of this rank, the number of steps, and the residual."""
    operator = Laplacian(group)

    def product(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        return dist.all_reduce((x * y).sum(), group=group)

    @nm.jit
    def step(
        x: nm.Tensor, r: nm.Tensor, p: nm.Tensor, rr: nm.Tensor
    ) -> tuple[nm.Tensor, nm.Tensor, nm.Tensor, nm.Tensor]:
        q = operator(p)
        alpha = rr / product(p, q)
        x, r = x + alpha * p, r - alpha * q
        new = product(r, r)
        return x, r, r + new / rr * p, new

    x, r, p = nm.zeros_like(b), b, b
    rr = product(b, b)
    aim = rr.item() * tolerance**2
    steps = 0
    while rr.item() > aim and steps < limit:
        x, r, p, rr = step(x, r, p, rr)
        steps += 1
    return x, steps, float(rr.item()) ** 0.5


def right_hand_side(points: int) -> np.ndarray:
    """A source and a sink, times the square of the distance of points."""
    axis = np.linspace(0, 1, points + 2)[1:-1]
    x, y = np.meshgrid(axis, axis, indexing="ij")
    source = np.exp(-200 * ((x - 0.3) ** 2 + (y - 0.4) ** 2))
    sink = np.exp(-200 * ((x - 0.7) ** 2 + (y - 0.6) ** 2))
    return (source - sink) / (points + 1) ** 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=256, help="in each direction")
    parser.add_argument("--tolerance", type=float, default=1e-8, help="of the residual")
    parser.add_argument("--steps", type=int, default=5000, help="at most")
    parser.add_argument("--check", action="store_true", help="compare with one process")
    options = parser.parse_args()
    world = dist.init()
    if options.points < world.size:
        parser.error(f"{options.points} rows are too few for {world.size} ranks")
    b = right_hand_side(options.points)
    mine = nm.asarray(b[rows_of(world.rank, world.size, options.points)])
    x, steps, residual = solve(mine, world, options.tolerance, options.steps)
    if world.rank == 0:
        print(f"{world.size} ranks, {options.points}² points: {steps} steps, {residual:.2e} left")
    if options.check:
        alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
        whole = solve(nm.asarray(b), alone, options.tolerance, options.steps)[0].numpy()
        band = whole[rows_of(world.rank, world.size, options.points)]
        apart = np.abs(x.numpy() - band).max() / np.abs(whole).max()
        print(f"rank {world.rank}: at most {apart:.1e} from the solution of one process")
        assert apart < 1e-6


if __name__ == "__main__":
    main()
