"""Nested dissection: permutations, separators, fill, factorisations with it."""

import numpy as np
import pytest
from sparse_matrices import arrow, convection, poisson, power_law, random, systems

import numus as nm
from numus import sparse
from numus.errors import LinAlgError
from numus.sparse import linalg
from numus.sparse.algorithms import nested_dissection as nd
from numus.sparse.linalg.direct.factors import both_ways

GRAPHS = {
    "grid": poisson(18, 17),
    "cube": poisson(7, 6, 7),
    "convection": convection(15, 2.0),
    "power law": power_law(250),
    "arrow": arrow(250),
    "dense": np.ones((230, 230)),
    "apart": np.kron(np.eye(60), np.ones((4, 4))),
    "nothing": np.zeros((300, 300)),
    "random": random(300, 300, 0.01, 3),
}


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def graph(dense):
    pattern = made(dense + 1e3 * np.eye(len(dense))).structure.rows[0]
    return both_ways(pattern)


@pytest.mark.parametrize("name", GRAPHS)
def test_orders_are_permutations(name, monkeypatch):
    monkeypatch.setattr(nd, "_LEAF", 30)
    dense = GRAPHS[name]
    order = nd.nested_dissection(len(dense), *graph(dense))
    assert sorted(order.tolist()) == list(range(len(dense)))


@pytest.mark.parametrize("name", ["grid", "cube", "convection", "random"])
def test_separators(name):
    dense = GRAPHS[name]
    side = nd.bisected(*graph(dense))
    counts = np.bincount(side, minlength=3)
    assert counts[:2].max() <= 0.65 * len(dense)
    assert counts[2] < (65 if name == "cube" else 0.25 * len(dense))
    linked = (dense != 0) | (dense.T != 0)
    assert not linked[np.ix_(side == 0, side == 1)].any()
    if name == "grid":
        assert counts[2] <= 20


@pytest.mark.parametrize("n", [9, pytest.param(20, marks=pytest.mark.slow)])
def test_fill(n):
    line = sparse.diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n), dtype=nm.float64)
    one = sparse.eye(n, dtype=nm.float64)
    flat = sparse.kron(line, one) + sparse.kron(one, line)
    a = sparse.kron(flat, one) + sparse.kron(sparse.eye(n * n, dtype=nm.float64), line)
    dissected, degree, natural = (
        linalg.cholesky(a.to_csr(), ordering=o).nnz for o in ("dissection", "amd", "natural")
    )
    assert dissected < (1.25 if n < 20 else 1.0) * degree
    assert dissected < 0.6 * natural


def test_factorisations(monkeypatch):
    monkeypatch.setattr(nd, "_LEAF", 20)
    for dense in (poisson(9, 8), convection(9, 2.0), arrow(90)):
        a, b = made(dense), np.arange(1.0, len(dense) + 1)
        x = np.linalg.solve(dense, b)
        lu = linalg.splu(a, ordering="dissection")
        np.testing.assert_allclose(lu.solve(b).numpy(), x, rtol=1e-10)
        np.testing.assert_allclose(lu.refactorise(2 * a.values).solve(b).numpy() * 2, x, rtol=1e-10)
        np.testing.assert_allclose(
            linalg.spsolve(a, b, ordering="dissection").numpy(), x, rtol=1e-9
        )
    with pytest.raises(ValueError, match="one of amd, dissection, natural"):
        linalg.cholesky(a, ordering="best")
    with pytest.raises(LinAlgError, match="singular"):
        linalg.splu(made(np.ones((3, 3))), ordering="dissection")
    assert nd.nested_dissection(0, np.zeros(1, int), np.zeros(0, int)).size == 0


@pytest.mark.slow
def test_many_matrices(monkeypatch):
    monkeypatch.setattr(nd, "_LEAF", 20)
    for dense in systems().values():
        order = nd.nested_dissection(len(dense), *graph(dense))
        assert sorted(order.tolist()) == list(range(len(dense)))
