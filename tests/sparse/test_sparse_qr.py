"""Sparse QR: R against AᵀA, least squares against LAPACK, ranks, derivatives, traces, bad input."""

import numpy as np
import pytest
from sparse_matrices import ANY, arrow, convection, on_webgpu, poisson, random, systems

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg

RNG = np.random.default_rng(0)
MATRICES = ANY | {
    "tall": random(80, 30, 0.2, 3),
    "wide": random(20, 60, 0.2, 4),
    "stacked": np.vstack([poisson(7, 6), np.eye(42)]),
    "twice": np.hstack([random(30, 10, 0.3, 1)] * 2),
}


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def check(dense, ordering="columns"):
    m, n = dense.shape
    f = linalg.qr(made(dense), ordering=ordering)
    assert f.rank == np.linalg.matrix_rank(dense)
    order, upper = f.column_order.numpy(), f.R.numpy()
    assert sorted(order.tolist()) == list(range(n))
    assert upper.shape == (f.rank, n)
    assert np.array_equal(upper, np.triu(upper))
    wanted = (dense.T @ dense)[np.ix_(order, order)]
    np.testing.assert_allclose(upper.T @ upper, wanted, atol=1e-13 * max(1, np.abs(wanted).max()))
    b = RNG.standard_normal((m, 2))
    x, best = f.solve(b).numpy(), np.linalg.lstsq(dense, b)[0]
    least = np.linalg.norm(dense @ best - b, axis=0)
    assert (np.linalg.norm(dense @ x - b, axis=0) <= least * (1 + 1e-12) + 1e-10).all()
    assert ((x != 0).sum(0) <= f.rank).all()
    if f.rank == n:
        np.testing.assert_allclose(x, best, rtol=1e-9, atol=1e-9 * np.abs(best).max())


@pytest.mark.parametrize("name", [k for k, v in MATRICES.items() if v.size])
def test_factors(name):
    check(MATRICES[name])


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["columns", "natural"])
def test_factors_of_many_matrices(ordering):
    for name, dense in systems().items():
        if not name.startswith("scaled"):  # whose rank is a matter of scale
            check(dense, ordering)


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_random_structures(count):
    rng = np.random.default_rng(1)
    for seed in range(count):
        m, n = rng.integers(1, 25, 2)
        check(np.round(random(m, n, rng.random() * 0.5, seed) * 4))


def test_bad_conditions():
    """As accurate as LAPACK's Householder reflections where normal equations fail."""
    u, _ = np.linalg.qr(RNG.standard_normal((60, 20)))
    v, _ = np.linalg.qr(RNG.standard_normal((20, 20)))
    dense = (u * np.logspace(0, -10, 20)) @ v
    x = RNG.standard_normal(20)
    b = dense @ x
    own = linalg.lstsq(made(dense), b).numpy()
    assert np.linalg.norm(dense @ own - b) < 1e-14
    theirs = np.abs(np.linalg.lstsq(dense, b, rcond=1e-15)[0] - x).max()
    assert np.abs(own - x).max() < 10 * theirs + 1e-7


def test_a_tolerance_tells_ranks():
    dense = np.diag([1.0, 1e-5, 1e-9])
    assert linalg.qr(made(dense)).rank == 3
    assert linalg.qr(made(dense), tolerance=1e-7).rank == 2
    x = linalg.lstsq(made(dense), np.ones(3), tolerance=1e-7).numpy()
    np.testing.assert_allclose(x, [1.0, 1e5, 0.0])


def test_refactorise_and_traces():
    dense = np.vstack([convection(5, 2.0), np.eye(25)])
    a, b = made(dense), nm.asarray(RNG.standard_normal(50))
    f = linalg.qr(a)
    inside = nm.jit(f.solve)(b)
    np.testing.assert_allclose(inside.numpy(), f.solve(b).numpy(), rtol=1e-12, atol=1e-14)
    both = nm.vmap(f.solve)(nm.stack([b, 2 * b])).numpy()
    np.testing.assert_allclose(both, [inside.numpy(), 2 * inside.numpy()], rtol=1e-10, atol=1e-12)
    other = a.with_values(nm.asarray(a.values.numpy() * np.linspace(0.5, 1.5, a.nnz)))
    again = f.refactorise(other).solve(b).numpy()
    np.testing.assert_allclose(again, np.linalg.lstsq(other.numpy(), b.numpy())[0], rtol=1e-10)


@pytest.mark.parametrize("second", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_derivatives(second):
    dense = np.vstack([convection(2, 1.0), np.eye(4)[:2]])
    a, b = made(dense), nm.asarray(RNG.standard_normal(6))

    def sparsely(v, b):
        return nm.sum(linalg.lstsq(a.with_values(v), b) ** 3)

    def densely(v, b):
        d = a.with_values(v).to_dense()
        return nm.sum(nm.linalg.solve(d.mT @ d, d.mT @ b) ** 3)

    derive = nm.hessian if second else nm.grad
    got = nm.transforms.tree.leaves(derive(sparsely, (0, 1))(a.values, b))
    want = nm.transforms.tree.leaves(derive(densely, (0, 1))(a.values, b))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-8, atol=1e-10)
    slope = nm.jvp(sparsely, (a.values, b), (a.values, b))[1].item()
    assert slope == pytest.approx(nm.jvp(densely, (a.values, b), (a.values, b))[1].item())


def test_dense_rows_do_not_fill():
    dense = arrow(60)[:, 1:]  # tall, with one full row
    assert linalg.qr(made(dense)).nnz < 60 * 60 / 2 + 61
    thin = np.vstack([poisson(12, 12), np.eye(144)])
    ordered, natural = (linalg.qr(made(thin), ordering=o).nnz for o in ("columns", "natural"))
    assert ordered < natural


@pytest.mark.slow
@on_webgpu
def test_devices():
    a = made(np.vstack([poisson(4, 4), np.eye(16)]).astype(np.float32))
    b = nm.asarray(RNG.standard_normal(32).astype(np.float32))
    there = linalg.lstsq(a.to("webgpu"), b.to("webgpu"))
    assert there.device.name.startswith("webgpu")
    np.testing.assert_allclose(there.numpy(), linalg.lstsq(a, b).numpy(), rtol=1e-3, atol=1e-5)


def test_bad_input():
    with pytest.raises(TypeError, match="sparse matrix"):
        linalg.qr(nm.ones((2, 2)))
    with pytest.raises(ShapeError, match="takes a matrix"):
        linalg.qr(sparse.coo_tensor(np.zeros((3, 1), int), [1.0], (2, 2, 2)))
    with pytest.raises(ValueError, match="ordering 'best'"):
        linalg.qr(sparse.eye(2), ordering="best")
    with pytest.raises(ValueError, match="tolerance=-1"):
        linalg.qr(sparse.eye(2), tolerance=-1)
    with pytest.raises(LinAlgError, match="not a number"):
        linalg.qr(made(np.diag([np.nan, 1.0])))
    with pytest.raises(ShapeError, match="right-hand side"):
        linalg.lstsq(sparse.eye(3, 2), nm.ones(2))
    with pytest.raises(ShapeError, match="structure is another"):
        linalg.qr(sparse.eye(3)).refactorise(made(np.ones((3, 3))))
    with pytest.raises(LinAlgError, match="must be known"):
        nm.jit(lambda a: linalg.lstsq(a, nm.ones(2)))(sparse.eye(2))
    for shape in ((0, 5), (4, 0), (4, 7)):
        for dtype in (float, complex):
            nothing = linalg.qr(made(np.zeros(shape, dtype)))
            assert nothing.rank == 0
            assert nothing.R.shape == (0, shape[1])
            assert nothing.solve(np.zeros(shape[0])).tolist() == [0.0] * shape[1]


COMPLEX = {
    "tall": random(40, 15, 0.2, 3) + 1j * random(40, 15, 0.2, 4),
    "wide": random(9, 25, 0.2, 4) + 1j * random(9, 25, 0.2, 5),
    "imaginary": 1j * poisson(4, 4),
    "twice": np.hstack([random(20, 6, 0.3, 1) * (1 + 2j)] * 2),
    "hermitian": poisson(5, 4) + 1j * (np.eye(20, k=1) - np.eye(20, k=-1)),
}


@pytest.mark.parametrize("name", list(COMPLEX))
def test_complex_factors(name):
    dense = COMPLEX[name]
    m, n = dense.shape
    f = linalg.qr(made(dense))
    assert f.rank == np.linalg.matrix_rank(dense)
    order, upper = f.column_order.numpy(), f.R.numpy()
    assert sorted(order.tolist()) == list(range(n))
    assert upper.shape == (f.rank, n)
    assert np.array_equal(upper, np.triu(upper))
    wanted = (dense.conj().T @ dense)[np.ix_(order, order)]
    np.testing.assert_allclose(upper.conj().T @ upper, wanted, atol=1e-12)
    b = RNG.standard_normal((m, 2)) + 1j * RNG.standard_normal((m, 2))
    x, best = f.solve(b).numpy(), np.linalg.lstsq(dense, b)[0]
    least = np.linalg.norm(dense @ best - b, axis=0)
    assert (np.linalg.norm(dense @ x - b, axis=0) <= least * (1 + 1e-12) + 1e-10).all()
    if f.rank == n:
        np.testing.assert_allclose(x, best, rtol=1e-9, atol=1e-9)
        again = f.refactorise(2 * f._a.values).solve(b).numpy()
        np.testing.assert_allclose(again, best / 2, rtol=1e-9, atol=1e-9)


def test_complex_right_hand_sides_and_gradients():
    real = random(30, 8, 0.4, 3)
    b = RNG.standard_normal(30) + 1j * RNG.standard_normal(30)
    found = linalg.lstsq(made(real), b).numpy()
    np.testing.assert_allclose(found, np.linalg.lstsq(real, b)[0], rtol=1e-10, atol=1e-10)
    dense = COMPLEX["tall"]
    a, right = made(dense), nm.asarray(RNG.standard_normal(40) + 0j)

    def size(b):
        return nm.sum(nm.abs(linalg.lstsq(a, b)) ** 2)

    way = nm.asarray(RNG.standard_normal(40) + 1j * RNG.standard_normal(40))
    step = 1e-6
    both = [size(right + s * step * way).item() for s in (1, -1)]
    slope = np.real(np.sum(nm.grad(size)(right).numpy() * way.numpy()))
    other = np.real(np.vdot(nm.grad(size)(right).numpy(), way.numpy()))
    wanted = (both[0] - both[1]) / (2 * step)
    assert min(abs(slope - wanted), abs(other - wanted)) < 1e-6 * max(1, abs(wanted))
