"""Direct solvers: factors, orderings, devices, derivatives, refactorisation, bad input."""

import numpy as np
import pytest
from sparse_matrices import arrow, convection, on_webgpu, poisson, power_law, random, systems

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg
from numus.sparse.algorithms import minimum_degree
from numus.sparse.algorithms.matching import maximum_transversal

RNG = np.random.default_rng(0)
MATRICES = {
    "poisson": poisson(9, 8),
    "convection": convection(8, 2.0),
    "arrow": arrow(50),
    "shuffled": (random(60, 60, 0.1, 2) + 3 * np.eye(60))[RNG.permutation(60)],
    "power law": power_law(80) + np.eye(80),
    "complex": random(40, 40, 0.1) + 1j * random(40, 40, 0.1, 4) + 2 * np.eye(40),
}


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def error(dense, x, b):
    """The residual against what rounding of the product alone gives."""
    scale = np.abs(dense).sum(1).max() * np.abs(x).max() + np.abs(b).max()
    return np.abs(dense @ x - b).max() / (scale * np.finfo(np.float64).eps)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("ordering", ["auto", "amd", "columns", "natural"])
def test_solutions(name, ordering):
    dense = MATRICES[name]
    a, b = made(dense), np.random.default_rng(1).standard_normal((dense.shape[0], 3))
    lu = linalg.splu(a, ordering=ordering)
    assert error(dense, lu.solve(b).numpy(), b) < 10
    assert error(dense, lu.solve(b[:, 0], refine=0).numpy(), b[:, 0]) < 200
    assert error(dense.conj().T, lu.solve(b, adjoint=True).numpy(), b) < 10
    values = nm.asarray(a.values.numpy() * np.linspace(0.9, 1.1, a.nnz))
    other = a.with_values(values)
    assert error(other.numpy(), lu.refactorise(other).solve(b).numpy(), b) < 10
    exact = np.linalg.cond(dense, 1)
    assert 0.3 * exact < lu.condition() < 1.001 * exact


@pytest.mark.parametrize("name", MATRICES)
def test_cholesky(name):
    dense = MATRICES[name] @ MATRICES[name].conj().T + np.eye(MATRICES[name].shape[0])
    a, b = made(dense), np.random.default_rng(1).standard_normal((dense.shape[0], 2))
    factor = linalg.cholesky(a)
    assert error(dense, factor.solve(b).numpy(), b) < 10
    assert (factor.pivots.numpy() > 0).all()
    assert error(3 * dense, factor.refactorise(a.values * 3).solve(b).numpy(), b) < 10


def test_minimum_degree_fills_little():
    a = made(poisson(30, 30))
    natural, ordered = (linalg.splu(a, ordering=o).nnz for o in ("natural", "amd"))
    assert ordered < 0.7 * natural
    assert linalg.splu(made(arrow(80))).nnz < 80 * 8


def test_orderings_permute():
    for seed in range(20):
        dense = random(30, 30, 0.02 * (seed + 1), seed)
        row, column = np.nonzero(dense + dense.T)
        off = row != column
        pointers = np.zeros(31, np.int64)
        np.cumsum(np.bincount(row[off], minlength=30), out=pointers[1:])
        order = minimum_degree.approximate_minimum_degree(30, pointers, column[off])
        assert sorted(order.tolist()) == list(range(30))


def test_compaction_of_the_quotient_graph(monkeypatch):
    monkeypatch.setattr(minimum_degree, "_ELBOW_ROOM", 1.0)
    a = made(poisson(12, 12, 12))
    row, column = a.structure.coordinates
    off = row != column
    pointers = np.zeros(a.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row[off], minlength=a.shape[0]), out=pointers[1:])
    order = minimum_degree.approximate_minimum_degree(a.shape[0], pointers, column[off])
    assert sorted(order.tolist()) == list(range(a.shape[0]))


def test_maximum_transversal():
    for seed in range(10):
        dense = random(12, 12, 0.15, seed)
        a = made(dense).to_csc()
        pattern = a.structure.pattern
        rank, row = maximum_transversal(12, pattern.pointers.array, pattern.indices.array)
        assert rank == (row >= 0).sum() == len(set(row[row >= 0].tolist()))
        assert all(dense[r, c] != 0 for c, r in enumerate(row) if r >= 0)
        assert rank >= np.linalg.matrix_rank(dense)


@pytest.mark.slow
@on_webgpu
def test_devices():
    a = made(poisson(5, 5).astype(np.float32))
    b = nm.ones((25, 2), dtype=nm.float32)
    found = linalg.splu(a.to("webgpu")).solve(b.to("webgpu"))
    assert found.device.name.startswith("webgpu")
    np.testing.assert_allclose(found.numpy(), linalg.spsolve(a, b).numpy(), rtol=1e-5)


def test_derivatives():
    a = made(convection(3, 1.0)[:6, :6].copy())
    b = nm.asarray(np.arange(1.0, 7.0))

    def sparsely(v, b):
        return nm.sum(linalg.spsolve(a.with_values(v), b) ** 3)

    def densely(v, b):
        return nm.sum(nm.linalg.solve(a.with_values(v).to_dense(), b) ** 3)

    for derive in (lambda f: nm.grad(f, (0, 1)), lambda f: nm.hessian(f, (0, 1))):
        got = nm.transforms.tree.leaves(derive(sparsely)(a.values, b))
        want = nm.transforms.tree.leaves(derive(densely)(a.values, b))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-9, atol=1e-12)
    slope = nm.grad(lambda a: nm.sum(linalg.spsolve(a, b)))(a)
    assert slope.structure is a.structure


def test_solutions_in_a_trace():
    a, b = made(poisson(4, 4)), nm.ones(16, dtype=nm.float64)
    lu = linalg.splu(a)
    x = lu.solve(b)
    np.testing.assert_allclose(nm.jit(lu.solve)(b).numpy(), x.numpy(), rtol=1e-14)
    both = nm.vmap(lu.solve)(nm.stack([b, 2 * b])).numpy()
    np.testing.assert_allclose(both, [x.numpy(), 2 * x.numpy()], rtol=1e-13)
    with pytest.raises(LinAlgError, match="must be known: factorise outside"):
        nm.jit(lambda a: linalg.splu(a).solve(b))(a)


def test_bad_input():
    with pytest.raises(LinAlgError, match="structurally singular: of 3 rows and columns, 2"):
        linalg.splu(sparse.diags([[1.0, 1.0]], [1], (3, 3), format="csr"))
    with pytest.raises(LinAlgError, match="singular: column"):
        linalg.splu(made(np.ones((3, 3))))
    with pytest.raises(LinAlgError, match="not a number"):
        linalg.splu(sparse.diags([1.0, np.nan], format="csr"))
    with pytest.raises(LinAlgError, match="not positive definite: pivot 1"):
        linalg.cholesky(sparse.diags([1.0, -1.0], format="csr"))
    with pytest.raises(ShapeError, match="not square"):
        linalg.spsolve(sparse.eye(2, 3), nm.ones(2))
    with pytest.raises(ShapeError, match="right-hand side"):
        linalg.splu(sparse.eye(3)).solve(nm.ones(2))
    with pytest.raises(ShapeError, match="structure is another"):
        linalg.splu(sparse.eye(3)).refactorise(made(np.ones((3, 3))))
    with pytest.raises(ValueError, match="must be one of"):
        linalg.splu(sparse.eye(3), ordering="best")
    with pytest.raises(TypeError, match="sparse matrix"):
        linalg.splu(nm.ones((2, 2)))
    assert linalg.splu(sparse.eye(0)).solve(nm.zeros((0,))).shape == (0,)


@pytest.mark.slow
def test_residuals_are_those_of_superlu():
    pytest.importorskip("scipy")
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    made_up = systems()
    assert len(made_up) == 60
    for name, dense in made_up.items():
        b = np.random.default_rng(3).standard_normal(dense.shape[0])
        try:
            theirs = np.linalg.norm(dense @ splu(csc_array(dense)).solve(b) - b)
        except RuntimeError:  # exactly singular
            with pytest.raises(LinAlgError):
                linalg.splu(made(dense))
            continue
        own = np.linalg.norm(dense @ linalg.splu(made(dense)).solve(b).numpy() - b)
        assert own <= 10 * theirs + 1e-14 * np.linalg.norm(b), name


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_solutions_by_supernodes(dtype):
    """One to three columns by dense supernodes, more of them by rows, with pivots that are
    exchanged in blocks."""
    rng = np.random.default_rng(2)
    block = rng.standard_normal((4, 4)) + 4 * np.eye(4)[[1, 2, 3, 0]]
    np.fill_diagonal(block, 0.01)
    dense = np.kron(convection(4, 3.0), block)
    dense = (dense * (1 + 2j if dtype == "complex128" else 1)).astype(dtype)
    b = rng.standard_normal((64, 5)).astype(dtype)
    lu = linalg.splu(made(dense))
    assert lu._factors.supernodes is not None
    assert (lu._factors.row_order != lu._factors.column_order).any()
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-10}
    for adjoint in (False, True):
        wanted = np.linalg.solve(dense.conj().T if adjoint else dense, b)
        for columns in (1, 2, 5):
            found = lu.solve(b[:, :columns], adjoint=adjoint)
            np.testing.assert_allclose(found.numpy(), wanted[:, :columns], **close)
        batch = nm.vmap(lambda x, way=adjoint: lu.solve(x, adjoint=way))(nm.asarray(b.T.copy()))
        np.testing.assert_allclose(batch.numpy().T, wanted, **close)
