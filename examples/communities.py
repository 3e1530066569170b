"""Find the communities of a stochastic block model with a graph network, from few labels.

    python examples/communities.py

Nodes have features that hardly tell their community, and edges that mostly stay inside one. A
two-layer GCN learns from a few labelled nodes of each; the same network without edges shows what
the graph adds. Writes the adjacency, in the order of the predicted communities, to
out/communities.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import graphs, nn, optim
from numus.png import write_png


def block_model(
    nodes: int, communities: int, inside: float, between: float, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Edges of a graph in which nodes have `inside` neighbours of their own community on average,
    and `between` others; and the community of each node."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, communities, nodes)
    share = 1 / communities
    tries = int(nodes * (inside / share + between / (1 - share)))
    source, target = rng.integers(0, nodes, (2, tries))
    # candidates are uniform pairs: keep as many of both kinds as are wanted
    same = label[source] == label[target]
    rate = np.where(same, inside / share, between / (1 - share)) * nodes / tries
    keep = (rng.random(tries) < rate) & (source != target)
    return np.stack([source[keep], target[keep]]), label


class Net(nn.Module):
    """Two graph convolutions with dropout between them."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        self.first = graphs.GCNConv(features, hidden)
        self.drop = nn.Dropout(0.3)
        self.second = graphs.GCNConv(hidden, classes)

    def forward(self, x: Any, edges: Any) -> nm.Tensor:
        return self.second(self.drop(self.first(x, edges).relu()), edges)


def accuracy(x: nm.Tensor, y: nm.Tensor, edges: Any, known: nm.Tensor, steps: int) -> Any:
    """Train on the known nodes; gives the share of others that is right, and all predictions."""
    model = Net(x.shape[1], 32, int(y.max()) + 1)
    opt = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    @nm.jit
    def step(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        opt.zero_grad()
        losses = nn.cross_entropy(model(x, edges), y, reduction="none")
        loss = (losses * known).sum() / known.sum()
        loss.backward()
        opt.step()
        return loss

    for _ in range(steps):
        step(x, y)
    model.eval()
    with nm.no_grad():
        found = model(x, edges).argmax(-1)
    right = ((found == y) & (known == 0)).sum() / (known == 0).sum()
    return 100 * float(right), found.numpy()


def picture(pairs: NDArray[Any], found: NDArray[Any], size: int = 512) -> NDArray[np.uint8]:
    """The adjacency in the order of the predictions: blocks on the diagonal."""
    place = np.empty(found.size, np.int64)
    place[np.argsort(found, kind="stable")] = np.arange(found.size) * size // found.size
    image = np.zeros((size, size))
    np.add.at(image, (place[pairs[1]], place[pairs[0]]), 1.0)
    return (255 * (1 - np.minimum(1, image / max(image.mean() * 4, 1e-9)))).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--communities", type=int, default=5)
    parser.add_argument("--labels", type=int, default=20, help="known nodes of each community")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("out/communities.png"))
    options = parser.parse_args()

    nm.random.seed(0)
    rng = np.random.default_rng(1)
    pairs, label = block_model(options.nodes, options.communities, inside=3, between=3)
    edges = graphs.to_undirected(pairs, num_nodes=options.nodes)
    centres = rng.standard_normal((options.communities, 16))
    features = 0.5 * centres[label] + 1.5 * rng.standard_normal((options.nodes, 16))
    known = np.zeros(options.nodes, np.float32)
    for c in range(options.communities):
        known[np.flatnonzero(label == c)[: options.labels]] = 1

    x, y = nm.asarray(features.astype(np.float32)), nm.asarray(label)
    alone = graphs.EdgeIndex(np.zeros((2, 0), np.int64), options.nodes)
    without, _ = accuracy(x, y, alone, nm.asarray(known), options.steps)
    share, found = accuracy(x, y, edges, nm.asarray(known), options.steps)
    image = picture(edges.numpy(), found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_png(options.out, np.repeat(image[..., None], 3, -1))
    print(f"nodes            {options.nodes}")
    print(f"edges            {edges.num_edges}")
    print(f"without edges    {without:.1f} %")
    print(f"accuracy         {share:.1f} %")
    print(f"picture          {options.out}")


if __name__ == "__main__":
    main()
