"""Layers as PyTorch Geometric has them: how each is made and called, on one small graph."""

import numpy as np

NODES, EDGES, GRAPHS = 9, 24, 3


def graph():
    """Edges with a loop and a repeated one, features, types, and the graph of each node."""
    rng = np.random.default_rng(7)
    pairs = rng.integers(0, NODES - 1, (2, EDGES))
    pairs[:, 3] = (2, 2)
    pairs[:, 5] = pairs[:, 4]
    return {
        "edge_index": pairs,
        "x": rng.standard_normal((NODES, 4)).astype(np.float32),
        "edge_weight": rng.uniform(0.5, 2.0, EDGES).astype(np.float32),
        "edge_attr": rng.standard_normal((EDGES, 5)).astype(np.float32),
        "edge_type": rng.integers(0, 3, EDGES),
        "batch": np.sort(rng.integers(0, GRAPHS, NODES)),
    }


def network(nn, inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


DEGREES = np.array([1, 2, 4, 2])

# name: (layer, arguments, what forward is given); nn(inputs, outputs) makes a network
CASES = {
    "gcn": ("GCNConv", lambda nn: (4, 6), {}, ()),
    "gcn weighted": ("GCNConv", lambda nn: (6, 4), {"improved": True}, ("edge_weight",)),
    "gcn plain": ("GCNConv", lambda nn: (4, 6), {"normalize": False}, ("edge_weight",)),
    "sage": ("SAGEConv", lambda nn: (4, 3), {}, ()),
    "sage max": ("SAGEConv", lambda nn: (4, 6), {"aggr": "max", "project": True}, ()),
    "sage normalized": ("SAGEConv", lambda nn: (4, 6), {"normalize": True, "bias": False}, ()),
    "gat": ("GATConv", lambda nn: (4, 3), {"heads": 2}, ()),
    "gat edges": (
        "GATConv",
        lambda nn: (4, 3),
        {"heads": 2, "edge_dim": 5, "concat": False, "residual": True},
        ("edge_attr",),
    ),
    "gatv2": ("GATv2Conv", lambda nn: (4, 3), {"heads": 2, "edge_dim": 5}, ("edge_attr",)),
    "gatv2 shared": ("GATv2Conv", lambda nn: (4, 3), {"share_weights": True}, ()),
    "gin": ("GINConv", lambda nn: (nn(4, 6),), {"train_eps": True, "eps": 0.5}, ()),
    "gine": ("GINEConv", lambda nn: (nn(4, 6),), {"edge_dim": 5}, ("edge_attr",)),
    "cheb": ("ChebConv", lambda nn: (4, 6, 3), {}, ()),
    "cheb rw": (
        "ChebConv", lambda nn: (4, 6, 2), {"normalization": "rw"}, ("edge_weight",),
    ),
    "cheb none": ("ChebConv", lambda nn: (4, 6, 2), {"normalization": None}, ()),
    "appnp": ("APPNP", lambda nn: (4, 0.2), {}, ("edge_weight",)),
    "edge": ("EdgeConv", lambda nn: (nn(8, 6),), {}, ()),
    "pna": (
        "PNAConv",
        lambda nn: (
            *(4, 6, ["mean", "min", "max", "std"]),
            *(["identity", "amplification", "attenuation", "linear"], DEGREES),
        ),
        {"edge_dim": 5, "towers": 2, "pre_layers": 2, "post_layers": 2},
        ("edge_attr",),
    ),
    "pna divided": (
        "PNAConv",
        lambda nn: (4, 6, ["sum", "var"], ["inverse_linear"], DEGREES),
        {"towers": 2, "divide_input": True},
        (),
    ),
    "rgcn": ("RGCNConv", lambda nn: (4, 6, 3), {}, ("edge_type",)),
    "rgcn bases": ("RGCNConv", lambda nn: (4, 6, 3), {"num_bases": 2}, ("edge_type",)),
    "rgcn blocks": ("RGCNConv", lambda nn: (4, 6, 3), {"num_blocks": 2}, ("edge_type",)),
    "transformer": (
        "TransformerConv",
        lambda nn: (4, 3),
        {"heads": 2, "edge_dim": 5, "beta": True},
        ("edge_attr",),
    ),
    "transformer mean": (
        "TransformerConv", lambda nn: (4, 3), {"heads": 2, "concat": False}, (),
    ),
}  # fmt: skip

POOLS = ("global_add_pool", "global_mean_pool", "global_max_pool")


def inputs(name):
    """Features of the width that a case takes."""
    x = graph()["x"]
    return np.concatenate([x, x[:, :2] ** 2], 1) if name == "gcn weighted" else x
