"""Graph layers against PyTorch Geometric's stored weights, outputs and gradients."""

from pathlib import Path

import numpy as np
import pytest
from pyg_cases import CASES, POOLS, graph, inputs, network

import numus as nm
from numus import graphs, nn
from numus.errors import ShapeError

STORED = np.load(Path(__file__).parent.parent / "fixtures" / "graph_layers.npz")
DATA = graph()
EDGES = graphs.EdgeIndex(DATA["edge_index"], len(DATA["x"]))


def close(found, wanted, scale=1.0):
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5 * scale)


def made(name):
    """A layer with PyTorch Geometric's weights, and what its forward is given."""
    layer, arguments, options, given = CASES[name]
    found = getattr(graphs, layer)(*arguments(lambda i, o: network(nn, i, o)), **options)
    start = f"{name}/state/"
    state = {k.removeprefix(start): STORED[k] for k in STORED.files if k.startswith(start)}
    assert set(found.state_dict()) == set(state)
    found.load_state_dict(state)
    return found, {key: DATA[key] for key in given}


@pytest.fixture
def reference():
    """Compositions need no compiler to be right."""
    before = nm.default_device()
    nm.set_default_device("reference")
    yield
    nm.set_default_device(before)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("name", CASES)
def test_against_pyg(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiled_against_pyg(name):
    check(name)


def check(name):
    layer, given = made(name)
    x = nm.asarray(inputs(name), requires_grad=True)
    out = layer(x, EDGES, **given)
    close(out, STORED[f"{name}/out"])
    (out**2).sum().backward()
    largest = max(1.0, np.abs(STORED[f"{name}/x_grad"]).max())
    close(x.grad, STORED[f"{name}/x_grad"], largest)
    for key, parameter in layer.named_parameters():
        wanted = STORED[f"{name}/grad/{key}"]
        close(parameter.grad, wanted, max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("name", ["gcn", "gat", "sage max", "transformer"])
def test_traced(name):
    layer, given = made(name)

    @nm.jit
    def loss(x):
        return (layer(x, EDGES, **given) ** 2).sum()

    x = nm.asarray(inputs(name))
    np.testing.assert_allclose(loss(x).item(), (STORED[f"{name}/out"] ** 2).sum(), rtol=1e-5)
    gradient = nm.grad(loss)(x)
    close(gradient, STORED[f"{name}/x_grad"], np.abs(STORED[f"{name}/x_grad"]).max())


@pytest.mark.parametrize("pool", POOLS)
def test_pools(pool):
    found = getattr(graphs, pool)(DATA["x"], DATA["batch"])
    close(found, STORED[f"{pool}/out"])
    assert getattr(graphs, pool)(DATA["x"]).shape == (1, 4)


@pytest.mark.parametrize(("name", "options"), [("topk", {"ratio": 0.6}),
                                               ("topk score", {"min_score": 0.3})])  # fmt: skip
def test_top_k_pooling(name, options):
    layer = graphs.TopKPooling(4, multiplier=2.0, **options)
    layer.load_state_dict({"select.weight": STORED[f"{name}/weight"]})
    x, edges, *rest = layer(DATA["x"], EDGES, DATA["edge_attr"], DATA["batch"])
    close(x, STORED[f"{name}/0"])
    np.testing.assert_array_equal(edges.numpy(), STORED[f"{name}/1"])
    for i, part in enumerate(rest):
        close(part, STORED[f"{name}/{i + 2}"])


def test_attention_weights_add_up():
    layer, _ = made("gat")
    _, (edges, alpha) = layer(DATA["x"], EDGES, return_attention_weights=True)
    assert alpha.shape == (edges.num_edges, 2)
    close(graphs.degree(edges, alpha[:, 0]), np.ones(9))


def test_bipartite_operands():
    edges = graphs.EdgeIndex([[0, 1, 2], [0, 1, 1]], (3, 2))
    x = (nm.ones((3, 4)), nm.ones((2, 5)))
    assert graphs.SAGEConv((4, 5), 6)(x, edges).shape == (2, 6)
    assert graphs.GATConv((4, 5), 6, add_self_loops=False)(x, edges).shape == (2, 6)
    with pytest.raises(ShapeError, match="sources and targets"):
        graphs.SAGEConv((4, 5), 6)((x[0], nm.ones((4, 5))), edges)


def test_bad_arguments():
    x = DATA["x"]
    with pytest.raises(ShapeError, match="edge features"):
        made("gine")[0](x, EDGES, np.ones((3, 5), np.float32))
    with pytest.raises(ShapeError, match="type for each"):
        made("rgcn")[0](x, EDGES, [0, 1])
    with pytest.raises(ValueError, match="relations are 3"):
        made("rgcn")[0](x, EDGES, np.full(EDGES.num_edges, 7))
    with pytest.raises(ValueError, match="aggregator"):
        graphs.PNAConv(4, 6, ["median"], ["identity"], [1])
