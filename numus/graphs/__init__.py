"""Graphs: structures, algorithms, message passing and graph networks (docs/graphs.md)."""

from numus.graphs.algorithms import (
    ShortestPaths,
    bfs,
    connected_components,
    pagerank,
    shortest_paths,
)
from numus.graphs.edges import EdgeIndex
from numus.graphs.graph import Graph, batch, unbatch
from numus.graphs.hetero import HeteroConv, HeteroGraph
from numus.graphs.layers import (
    APPNP,
    ChebConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    PNAConv,
    RGCNConv,
    SAGEConv,
    TopKPooling,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from numus.graphs.messages import edge_softmax, propagate
from numus.graphs.operators import (
    add_self_loops,
    degree,
    laplacian,
    remove_self_loops,
    subgraph,
    to_undirected,
)
from numus.graphs.sampling import GraphFile, NeighborLoader, Sample, save_graph

__all__ = [
    "APPNP", "ChebConv", "EdgeConv", "EdgeIndex", "GATConv", "GATv2Conv", "GCNConv", "GINConv",
    "GINEConv", "Graph", "GraphFile", "HeteroConv", "HeteroGraph", "NeighborLoader", "PNAConv",
    "RGCNConv", "SAGEConv", "Sample", "ShortestPaths", "TopKPooling", "TransformerConv",
    "add_self_loops", "batch", "bfs", "connected_components", "degree", "edge_softmax",
    "global_add_pool", "global_max_pool", "global_mean_pool", "laplacian", "pagerank",
    "propagate", "remove_self_loops", "save_graph", "shortest_paths", "subgraph",
    "to_undirected", "unbatch",
]  # fmt: skip
