"""Neighbour sampling from memory and from files, and graphs of several types."""

import numpy as np
import pytest

import numus as nm
from numus import graphs
from numus.data import RecordWriter
from numus.errors import RecordError, ShapeError

RNG = np.random.default_rng(5)
PAIRS = RNG.integers(0, 50, (2, 400))
X = RNG.standard_normal((50, 3)).astype(np.float32)
W = RNG.random(400).astype(np.float32)
GRAPH = graphs.Graph(PAIRS, x=X, edge_weight=W)


def check(sample, seeds, limits):
    """Its edges, nodes and features are those of the whole graph."""
    assert sample.nodes[: sample.num_seeds].tolist() == list(seeds)
    assert np.unique(sample.nodes).size == sample.nodes.size
    np.testing.assert_array_equal(sample.nodes[sample.graph.edges.numpy()], PAIRS[:, sample.edges])
    np.testing.assert_array_equal(sample.graph.x.numpy(), X[sample.nodes])
    np.testing.assert_array_equal(sample.graph.edge_weight.numpy(), W[sample.edges])
    arrived = sample.graph.edges.in_degrees[: sample.num_seeds]
    whole = np.bincount(PAIRS[1], minlength=50)[list(seeds)]
    wanted = whole if limits[0] < 0 else np.minimum(whole, limits[0])
    assert arrived.tolist() == wanted.tolist()
    assert np.unique(sample.edges).size == sample.edges.size


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("limits", [[3, 2], [-1]])
def test_samples(from_file, limits, tmp_path):
    graph = GRAPH
    if from_file:
        graphs.save_graph(tmp_path / "graph.rrec", GRAPH, rows=7)
        graph = graphs.GraphFile(tmp_path / "graph.rrec")
        assert (graph.num_nodes, graph.num_edges) == (50, 400)
    loader = graphs.NeighborLoader(graph, limits, batch_size=8, input_nodes=np.arange(20))
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    for i, sample in enumerate(batches):
        check(sample, range(8 * i, min(8 * i + 8, 20)), limits)


def test_all_neighbours_give_the_exact_result():
    layer = graphs.GCNConv(3, 2, normalize=False, add_self_loops=False)
    whole = layer(GRAPH.x, GRAPH).numpy()
    (sample,) = graphs.NeighborLoader(GRAPH, [-1], batch_size=5, input_nodes=[4, 9, 2, 30, 11])
    found = layer(sample.graph.x, sample.graph)[: sample.num_seeds].numpy()
    np.testing.assert_allclose(found, whole[[4, 9, 2, 30, 11]], rtol=1e-5, atol=1e-6)


def test_epochs_and_seeds():
    def drawn(seed):
        loader = graphs.NeighborLoader(GRAPH, [2], batch_size=10, shuffle=True, seed=seed)
        return [[s.nodes.tolist() for s in loader] for _ in range(2)]

    assert drawn(1) == drawn(1)
    first, second = drawn(1)
    assert first != second
    assert sorted(n for batch in first for n in batch[:10]) == list(range(50))
    with pytest.raises(ShapeError, match="input_nodes"):
        graphs.NeighborLoader(GRAPH, [2], input_nodes=[50])


def test_files_that_are_no_graphs(tmp_path):
    with RecordWriter.create(tmp_path / "other.rrec") as writer:
        writer.write_record({"x": 1})
    with pytest.raises(RecordError, match="no graph file"):
        graphs.GraphFile(tmp_path / "other.rrec")


def test_heterogeneous_graphs():
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    x = {"author": nm.asarray(X[:4]), "paper": nm.asarray(X[4:9])}
    g = graphs.HeteroGraph({writes: [[0, 1, 3], [0, 0, 4]], cites: [[0, 4], [1, 0]]}, x=x)
    first, second = graphs.SAGEConv(3, 2), graphs.GCNConv(3, 2)
    conv = graphs.HeteroConv({writes: first, cites: second}, aggr="sum")
    assert "convs.<author___writes___paper>.lin_l.weight" in conv.state_dict()
    found = conv(g.x, g.edges)["paper"]
    wanted = first((x["author"], x["paper"]), g.edges[writes]) + second(x["paper"], g.edges[cites])
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
    one, node_type, edge_type = g.to_homogeneous()
    assert node_type.tolist() == [0] * 4 + [1] * 5
    assert edge_type.tolist() == [0, 0, 0, 1, 1]
    assert one.edges.numpy().tolist() == [[0, 1, 3, 4, 8], [4, 4, 8, 5, 4]]
    assert graphs.RGCNConv(3, 2, 2)(one.x, one, edge_type).shape == (9, 2)
    total = nm.jit(lambda g: conv(g.x, g.edges)["paper"].sum())(g)
    np.testing.assert_allclose(total.item(), wanted.sum().item(), rtol=1e-5)
    with pytest.raises(ShapeError, match="no nodes of type"):
        graphs.HeteroGraph({writes: [[0], [0]]}, x={"author": X[:4]})
