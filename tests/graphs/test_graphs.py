"""Structures of graphs, message passing and algorithms, against dense matrices and plain loops."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import graphs
from numus.errors import DeviceError, DTypeError, IndexRangeError, ShapeError

N, E = 12, 40
RNG = np.random.default_rng(3)
PAIRS = RNG.integers(0, N - 1, (2, E))  # the last node has no edges
X = RNG.standard_normal((N, 5)).astype(np.float32)
W = RNG.uniform(0.1, 2.0, E).astype(np.float32)
EDGES = graphs.EdgeIndex(PAIRS, N)


def dense(weight=None):
    found = np.zeros((N, N))
    np.add.at(found, (PAIRS[1], PAIRS[0]), 1.0 if weight is None else weight)
    return found


def neighbours(reduce, weight):
    out = np.zeros_like(X)
    for i in range(N):
        at = np.flatnonzero(PAIRS[1] == i)
        if at.size:
            out[i] = getattr(np, reduce)(weight[at, None] * X[PAIRS[0, at]], axis=0)
    return out


def devices():
    simt_machine.install()
    return ["cpu", "reference", "simt", "webgpu"]


@pytest.mark.parametrize("device", devices())
def test_message_passing(device):
    try:
        x, w = nm.asarray(X, device=device), nm.asarray(W, device=device)
    except DeviceError as reason:
        pytest.skip(str(reason))
    for reduce in ("sum", "mean", "max", "min"):
        found = graphs.propagate(x, EDGES, w, reduce)
        np.testing.assert_allclose(found.numpy(), neighbours(reduce, W), rtol=1e-5, atol=1e-6)
    alpha = graphs.edge_softmax(w, EDGES).numpy()
    powers = np.exp(W)
    np.testing.assert_allclose(alpha, powers / np.bincount(PAIRS[1], powers)[PAIRS[1]], rtol=1e-5)


def test_nan_and_ties():
    edges = graphs.EdgeIndex([[0, 1, 2], [3, 3, 3]], 4)
    x = nm.asarray([[1.0, np.nan], [1.0, 2.0], [0.0, 3.0], [0.0, 0.0]])
    found = graphs.propagate(x, edges, reduce="max").numpy()
    assert found[3, 0] == 1
    assert np.isnan(found[3, 1])
    slope = nm.grad(lambda x: graphs.propagate(x[:, :1], edges, reduce="max").sum())(x)
    assert slope[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]  # the first of equal ones


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_derivatives(reduce):
    before = nm.default_device()
    nm.set_default_device("reference")
    try:
        x, w = nm.asarray(X.astype(np.float64)), nm.asarray(W.astype(np.float64))

        def loss(x, w):
            near = graphs.propagate(x, EDGES, w, reduce)
            alpha = graphs.edge_softmax(w * near[:, 0].sum(), EDGES)
            return nm.sum(nm.sin(near)) + nm.sum(alpha**2)

        tx, tw = nm.cos(x), nm.sin(w)
        h = 1e-6
        slope = (loss(x + h * tx, w + h * tw) - loss(x - h * tx, w - h * tw)) / (2 * h)
        gx, gw = nm.grad(loss, argnums=(0, 1))(x, w)
        total = (gx * tx).sum() + (gw * tw).sum()
        np.testing.assert_allclose(total.item(), slope.item(), rtol=1e-6)
        _, forward = nm.jvp(loss, (x, w), (tx, tw))
        np.testing.assert_allclose(forward.item(), slope.item(), rtol=1e-6)
        both = nm.vmap(lambda w: nm.grad(loss)(x, w))(nm.stack([w, 2 * w]))
        np.testing.assert_allclose(both[0].numpy(), gx.numpy(), rtol=1e-10, atol=1e-12)
        second = nm.grad(lambda x: nm.sum(nm.grad(loss)(x, w) * tx))(x)
        ahead = (nm.grad(loss)(x + h * tx, w) - nm.grad(loss)(x - h * tx, w)) / (2 * h)
        np.testing.assert_allclose(second.numpy(), ahead.numpy(), rtol=1e-4, atol=1e-6)
    finally:
        nm.set_default_device(before)


def test_no_edge_sized_intermediate():
    """Message passing on 40,000 edges × 64 channels allocates less than one array of them."""
    rng = np.random.default_rng(0)
    edges = graphs.EdgeIndex(rng.integers(0, 1000, (2, 40_000)), 1000)
    x = nm.asarray(rng.standard_normal((1000, 64)).astype(np.float32))
    w = nm.asarray(rng.random(40_000).astype(np.float32))
    for reduce in ("sum", "max"):
        kernels = nm.explain(lambda r=reduce: graphs.propagate(x, edges, w, r), timed=False)
        assert kernels.peak_bytes < 40_000 * 64 * 4


def test_edge_index():
    assert graphs.EdgeIndex(PAIRS.copy(), N) == EDGES
    assert graphs.EdgeIndex(PAIRS, N + 1) != EDGES
    np.testing.assert_array_equal(EDGES.adjacency().to_dense().numpy(), dense())
    np.testing.assert_array_equal(EDGES.reversed.adjacency().to_dense().numpy(), dense().T)
    w = nm.asarray(W)
    np.testing.assert_array_equal(EDGES.by_edges(EDGES.by_rows(w)).numpy(), W)
    assert EDGES.in_degrees.tolist() == dense().sum(1).tolist()
    assert EDGES.out_degrees.tolist() == dense().sum(0).tolist()
    with pytest.raises(IndexRangeError, match="no node"):
        graphs.EdgeIndex([[0], [5]], 3)
    with pytest.raises(IndexRangeError, match="no node"):
        graphs.EdgeIndex([[-1], [0]], 3)
    with pytest.raises(ShapeError, match=r"\(2, edges\)"):
        graphs.EdgeIndex([0, 1])
    with pytest.raises(DTypeError, match="integers"):
        graphs.EdgeIndex([[0.5], [1.0]])
    with pytest.raises(ShapeError, match="outside of the traced"):
        nm.jit(lambda e: graphs.propagate(nm.ones((3, 1)), e))(nm.asarray([[0], [1]]))


def test_loops_and_laplacians():
    edges, weight = graphs.add_self_loops(PAIRS, W, 3.0, num_nodes=N)
    loop = edges.is_loop
    assert loop.sum() == N
    own = dict(zip(PAIRS[0][PAIRS[0] == PAIRS[1]], W[PAIRS[0] == PAIRS[1]], strict=True))
    np.testing.assert_allclose(weight.numpy()[loop], [own.get(i, 3.0) for i in range(N)])
    assert not graphs.remove_self_loops(EDGES)[0].is_loop.any()
    undirected = graphs.to_undirected(EDGES).adjacency().to_dense().numpy()
    np.testing.assert_array_equal(undirected, (dense() + dense().T) > 0)
    a = dense(W).T * (1 - np.eye(N))  # sources × targets
    total = a.sum(1)
    with np.errstate(divide="ignore"):
        scale = {
            "sym": np.where(total > 0, total**-0.5, 0),
            "rw": np.where(total > 0, 1 / total, 0),
        }
    wanted = {
        None: np.diag(total) - a,
        "sym": np.eye(N) - scale["sym"][:, None] * a * scale["sym"],
        "rw": np.eye(N) - scale["rw"][:, None] * a,
    }
    for kind, matrix in wanted.items():
        found = graphs.laplacian(EDGES, W, kind).to_dense().numpy()
        np.testing.assert_allclose(found, matrix, rtol=1e-5, atol=1e-6)
    kept, at = graphs.subgraph([3, 1, 4], EDGES)
    np.testing.assert_array_equal(np.array([3, 1, 4])[kept.numpy()], PAIRS[:, at])


def test_graphs_and_batches():
    one = graphs.Graph(PAIRS, x=X, edge_weight=W, y=2)
    two = graphs.Graph([[0, 1], [1, 0]], x=X[:2], edge_weight=W[:2], y=1)
    both = graphs.batch([one, two])
    assert both.num_graphs == 2
    assert both.y.tolist() == [2, 1]
    found = graphs.propagate(both.x, both, both.edge_weight)
    np.testing.assert_allclose(found[:N].numpy(), neighbours("sum", W), rtol=1e-5, atol=1e-6)
    first, second = graphs.unbatch(both)
    assert first.edges == one.edges
    np.testing.assert_array_equal(second.edge_weight.numpy(), W[:2])
    traced = nm.jit(lambda g: graphs.propagate(g.x, g, g.edge_weight).sum())
    np.testing.assert_allclose(traced(one).item(), neighbours("sum", W).sum(), rtol=1e-5)
    slope = nm.grad(lambda g: graphs.propagate(g.x, g).sum())(one.with_features(y=None))
    np.testing.assert_allclose(slope.x.numpy(), np.repeat(dense().sum(0)[:, None], 5, 1))
    with pytest.raises(ShapeError, match="edges"):
        graphs.Graph(PAIRS, x=X, edge_attr=np.ones(3))
    with pytest.raises(AttributeError, match="no 'pos'"):
        _ = one.pos


def shortest(weight, source):
    """Floyd and Warshall's, for one source."""
    d = np.full((N, N), np.inf)
    np.minimum.at(d, (PAIRS[0], PAIRS[1]), weight)
    np.fill_diagonal(d, 0)
    for k in range(N):
        d = np.minimum(d, d[:, k, None] + d[None, k])
    return d[source]


def test_paths():
    lengths = shortest(np.ones(E), 2)
    wanted = np.where(np.isfinite(lengths), lengths, -1)
    np.testing.assert_array_equal(graphs.bfs(EDGES, 2).numpy(), wanted)
    found = graphs.shortest_paths(EDGES, 2, W)
    np.testing.assert_allclose(found.distances.numpy(), shortest(W, 2), rtol=1e-5)
    for node, edge in enumerate(found.edges.tolist()):
        if edge >= 0:
            assert PAIRS[1, edge] == node
            before = found.distances[int(PAIRS[0, edge])].item()
            assert found.distances[node].item() == np.float32(before + W[edge])
    with pytest.raises(ValueError, match="negative"):
        graphs.shortest_paths([[0, 1], [1, 0]], 0, [1.0, -2.0])
    with pytest.raises(ValueError, match="no node"):
        graphs.bfs(EDGES, N)


def test_components_and_ranks():
    pairs = np.array([[0, 1, 4, 6, 7, 8], [1, 2, 3, 7, 8, 9]])
    count, labels = graphs.connected_components(pairs, num_nodes=11)
    assert count == 5
    assert labels.tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4]
    rank = graphs.pagerank(EDGES, edge_weight=W, tol=1e-7).numpy()
    a = dense(W)
    out = a.sum(0)
    walk = np.where(out > 0, a / np.where(out > 0, out, 1), 1 / N)
    wanted = np.full(N, 1 / N)
    for _ in range(200):
        wanted = 0.85 * walk @ wanted + 0.15 / N
    np.testing.assert_allclose(rank, wanted, atol=1e-5)
    assert graphs.connected_components(np.zeros((2, 0), int), num_nodes=0)[0] == 0


def test_softmax_of_no_edges():
    none = np.zeros((2, 0), np.int64)
    for shape in ((0,), (0, 2)):
        assert graphs.edge_softmax(nm.zeros(shape), none, 4).shape == shape


def test_orders_of_many_edges_are_found_when_they_are_needed(monkeypatch):
    monkeypatch.setattr("numus.graphs.edges._MANY_EDGES", 1)
    rng = np.random.default_rng(0)
    pairs, weight = rng.integers(0, 9, (2, 40)), nm.asarray(rng.standard_normal(40))
    x = nm.asarray(rng.standard_normal((9, 3)))
    edges, other = (graphs.EdgeIndex(pairs, 9) for _ in range(2))
    dense = np.zeros((9, 9))
    np.add.at(dense, (pairs[1], pairs[0]), 1)

    def total(x):
        return nm.sum(graphs.propagate(x, edges) ** 2)

    np.testing.assert_allclose(graphs.propagate(x, edges).numpy(), dense @ x.numpy(), rtol=1e-12)
    wanted = 2 * dense.T @ (dense @ x.numpy())
    np.testing.assert_allclose(nm.grad(total)(x).numpy(), wanted, rtol=1e-12)
    assert "by_target" not in edges.__dict__
    assert "transposed" not in edges.pattern.__dict__
    found = graphs.propagate(x, edges, weight).numpy()
    np.testing.assert_array_equal(found, graphs.propagate(x, other, weight).numpy())
    assert edges.by_target[0] is edges.pattern
    by_weights = nm.grad(lambda x: nm.sum(graphs.propagate(x, edges, weight) ** 2))(x)
    swapped = edges.pattern.swapped
    assert edges.pattern.transposed[0] is swapped
    dense = np.zeros((9, 9))
    np.add.at(dense, (pairs[1], pairs[0]), weight.numpy())
    np.testing.assert_allclose(by_weights.numpy(), 2 * dense.T @ (dense @ x.numpy()), rtol=1e-11)


WEIGHTED = {
    "gcn": lambda p, w: graphs.GCNConv(4, 2)(nm.ones((10, 4)), p, w),
    "appnp": lambda p, w: graphs.APPNP(2, 0.1)(nm.ones((10, 4)), p, w),
    "cheb": lambda p, w: graphs.ChebConv(4, 2, 2)(nm.ones((10, 4)), p, w),
    "laplacian": lambda p, w: graphs.laplacian(p, w, num_nodes=10),
    "pagerank": lambda p, w: graphs.pagerank(p, 0.85, w, num_nodes=10),
    "loops": lambda p, w: graphs.add_self_loops(p, w, num_nodes=10),
    "adjacency": lambda p, w: graphs.EdgeIndex(p, 10).adjacency(w),
}


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("count", [5, 35])
def test_weights_are_one_for_each_edge(name, count):
    pairs = np.random.default_rng(0).integers(0, 10, (2, 30))
    with pytest.raises(ShapeError, match=rf"weights of shape \({count},\) for 30 edges"):
        WEIGHTED[name](pairs, nm.ones(count))
