"""Graph layers with PyTorch Geometric's names, parameters and state dicts."""

from numus.graphs.layers.attention import GATConv, GATv2Conv, TransformerConv
from numus.graphs.layers.convolutions import (
    APPNP,
    ChebConv,
    GCNConv,
    GINConv,
    GINEConv,
    SAGEConv,
)
from numus.graphs.layers.networks import EdgeConv, PNAConv, RGCNConv
from numus.graphs.layers.pooling import (
    TopKPooling,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

__all__ = [
    "APPNP", "ChebConv", "EdgeConv", "GATConv", "GATv2Conv", "GCNConv", "GINConv", "GINEConv",
    "PNAConv", "RGCNConv", "SAGEConv", "TopKPooling", "TransformerConv", "global_add_pool",
    "global_max_pool", "global_mean_pool",
]  # fmt: skip
