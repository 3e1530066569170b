"""Ruge–Stüben multigrid: splittings, interpolation, cycles, pyamg's iterations, bad input."""

import numpy as np
import pytest
from sparse_matrices import anisotropic, convection, on_webgpu, poisson, random

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg
from numus.sparse.algorithms.coarsening import COARSE, FINE, splitting, strong_couplings
from numus.sparse.algorithms.interpolation import INTERPOLATIONS, interpolation_weights

RIGHT = np.random.default_rng(0).standard_normal(1000)


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def split(dense, theta=0.25, second_pass=False):
    pattern = made(dense).structure.rows[0]
    where = pattern.pointers.array.astype(np.int64), pattern.indices.array.astype(np.int32)
    strong = strong_couplings(*where, dense[dense != 0], theta)
    swapped, order = pattern.transposed
    return pattern, strong, splitting(*where, strong, swapped, order.array, second_pass)


def weights(dense, way, **options):
    pattern, strong, kind = split(dense, **options)
    where = pattern.pointers.array.astype(np.int64), pattern.indices.array.astype(np.int32)
    starts, columns, values = interpolation_weights(
        *(*where, dense[dense != 0], np.diag(dense).copy(), strong, kind, way)
    )
    out = np.zeros((len(dense), int(columns.max()) + 1))
    out[np.repeat(np.arange(len(dense)), np.diff(starts)), columns] = values
    return out, kind


def test_strong_couplings():
    dense = np.array([[4.0, -1.0, -0.2], [-1.0, 4.0, 0.9], [0.0, -1.0, 4.0]])
    _, strong, _ = split(dense)
    got = np.zeros((3, 3))
    got[dense != 0] = strong
    assert got.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("dense", [poisson(9, 8), convection(8, 2.0), random(60, 60, 0.1, 1)])
def test_splittings(dense):
    dense = dense + 5 * np.eye(len(dense))
    pattern, strong, kind = split(dense, second_pass=True)
    assert set(kind.tolist()) == {COARSE, FINE}
    row, column = pattern.rows.array[strong == 1], pattern.indices.array[strong == 1]
    depends = np.zeros_like(dense, dtype=bool)
    depends[row, column] = True
    coarse = kind == COARSE
    # whoever depends on others and has others depend on it has a coarse point
    both = depends.any(1) & depends.any(0) & ~coarse
    assert (depends & coarse)[both].any(1).all()
    for i in np.flatnonzero(~coarse):  # the second pass: a coarse point in common
        for j in np.flatnonzero(depends[i] & ~coarse):
            assert (depends[i] & depends[j] & coarse).any()


def test_weights_on_a_line():
    line = poisson(9)
    for way in INTERPOLATIONS:
        p, kind = weights(line, way)
        inner = np.flatnonzero(kind[1:-1] == FINE) + 1
        np.testing.assert_allclose(p[inner].sum(1), 1.0)
        assert (p[kind == COARSE].max(1) == 1.0).all()
    np.testing.assert_allclose(p[inner].max(1), 0.5)


@pytest.mark.parametrize("way", INTERPOLATIONS)
def test_constants_are_interpolated(way):
    dense = poisson(6, 6)
    np.fill_diagonal(dense, 0.0)
    dense -= np.diag(dense.sum(1))  # of row sums zero
    p, _ = weights(dense, way)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-12)
    dense = random(40, 40, 0.1, 3)
    dense = -np.abs(dense + dense.T)
    np.fill_diagonal(dense, 0.0)
    dense -= np.diag(dense.sum(1)) - 1e-30 * np.eye(40)
    p, _ = weights(dense, way, second_pass=True)
    fed = p.any(1)
    assert fed.mean() > 0.9
    np.testing.assert_allclose(p[fed].sum(1), 1.0, rtol=1e-9)


def test_classical_weights_are_the_formula_s():
    dense = poisson(5, 5) + 0.2 * np.eye(25, k=6) + 0.2 * np.eye(25, k=-6)
    p, kind = weights(dense, "classical", second_pass=True)
    pattern, strong, _ = split(dense, second_pass=True)
    depends = np.zeros((25, 25), bool)
    depends[pattern.rows.array[strong == 1], pattern.indices.array[strong == 1]] = True
    number = np.cumsum(kind == COARSE) - 1
    for i in np.flatnonzero(kind == FINE):
        near = np.flatnonzero(depends[i] & (kind == COARSE))
        want, diagonal = dict.fromkeys(near, 0.0), dense[i, i]
        for j in np.flatnonzero(dense[i]):
            shared = [k for k in near if dense[j, k] * dense[j, j] < 0]
            if j == i or j in want:
                want |= {j: want[j] + dense[i, j]} if j in want else {}
            elif depends[i, j] and shared:
                for k in shared:
                    want[k] += dense[i, j] * dense[j, k] / dense[j, shared].sum()
            else:
                diagonal += dense[i, j]
        for k in near:
            assert p[i, number[k]] == pytest.approx(-want[k] / diagonal)


# iterations of CG to 1e-8 with pyamg 5.4's ruge_stuben_solver, a V-cycle, as preconditioner
PYAMG = {
    "poisson": (poisson(20, 20), 5),
    "poisson 3": (poisson(7, 7, 7), 5),
    "anisotropic": (anisotropic(20, 1e-2), 5),
}


@pytest.mark.parametrize("name", PYAMG)
def test_iterations_are_pyamg_s(name):
    dense, wanted = PYAMG[name]
    a = made(dense)
    amg = linalg.ruge_stuben(a)
    assert amg.operator_complexity < 2.8
    found = linalg.cg(a, RIGHT[: len(dense)], rtol=1e-8, M=amg.preconditioner())
    assert found.converged
    assert 0.8 * wanted <= found.iterations.item() <= 1.2 * wanted


@pytest.mark.slow
@pytest.mark.parametrize("way", INTERPOLATIONS)
@pytest.mark.parametrize("second_pass", [False, True])
@pytest.mark.parametrize("cycle", ["V", "W", "F"])
def test_iterations_against_pyamg(way, second_pass, cycle):
    pyamg = pytest.importorskip("pyamg")
    from scipy.sparse import csr_array

    for dense in (poisson(25, 24), poisson(9, 10, 9), anisotropic(25, 1e-3)):
        theirs = pyamg.ruge_stuben_solver(
            csr_array(dense),
            interpolation="direct" if way == "direct" else "classical",
            CF=("RS", {"second_pass": second_pass}),
        )
        b, residuals = RIGHT[: len(dense)], []
        theirs.solve(b, tol=1e-8, accel="cg", cycle=cycle, residuals=residuals)
        a = made(dense)
        amg = linalg.ruge_stuben(a, interpolation=way, second_pass=second_pass, cycle=cycle)
        found = linalg.cg(a, b, rtol=1e-8, M=amg.preconditioner())
        assert found.converged
        assert found.iterations.item() <= 1.2 * (len(residuals) - 1)


def test_a_matrix_that_is_not_symmetric():
    dense = convection(7, 3.0)
    a, b = made(dense), RIGHT[:49]
    amg = linalg.ruge_stuben(a, cycle="F")
    assert len(amg.levels) == 3
    near = amg.preconditioner()
    found = linalg.gmres(a, b, rtol=1e-8, M=near)
    assert found.converged
    assert found.iterations.item() <= 9
    m = nm.vmap(lambda e: near @ e)(nm.eye(49, dtype=nm.float64)).numpy()
    back = nm.vmap(lambda e: near.H @ e)(nm.eye(49, dtype=nm.float64)).numpy()
    np.testing.assert_allclose(m.T, back, rtol=1e-9, atol=1e-12)


def test_gradients_through_the_solution():
    a, b = made(poisson(6, 5)), nm.asarray(RIGHT[:30])
    near = linalg.ruge_stuben(a, coarsest=5).preconditioner()
    slope = nm.grad(lambda b: nm.sum(linalg.cg(a, b, rtol=1e-12, M=near).x ** 2))(b)
    x = np.linalg.solve(a.numpy(), b.numpy())
    np.testing.assert_allclose(slope.numpy(), 2 * np.linalg.solve(a.numpy(), x), rtol=1e-8)


@pytest.mark.slow
@on_webgpu
def test_devices():
    a = made(poisson(8, 8).astype(np.float32))
    b = nm.ones(64)
    there = linalg.ruge_stuben(a.to("webgpu")).preconditioner() @ b.to("webgpu")
    near = linalg.ruge_stuben(a).preconditioner() @ b
    np.testing.assert_allclose(there.numpy(), near.numpy(), rtol=1e-3)


def test_bad_input():
    with pytest.raises(ShapeError, match="not square"):
        linalg.ruge_stuben(sparse.eye(2, 3))
    with pytest.raises(ValueError, match="cycle='X'"):
        linalg.ruge_stuben(sparse.eye(2), cycle="X")
    with pytest.raises(ValueError, match="interpolation='none'"):
        linalg.ruge_stuben(sparse.eye(2), interpolation="none")
    with pytest.raises(ValueError, match="theta=2"):
        linalg.ruge_stuben(sparse.eye(2), theta=2)
    with pytest.raises(LinAlgError, match="not a number"):
        linalg.ruge_stuben(made(np.diag([np.nan, 1.0])))
    with pytest.raises(LinAlgError, match="diagonal of level 0 has a zero at row 1"):
        linalg.ruge_stuben(made(np.array([[1.0, 1.0], [1.0, 0.0]])), coarsest=1)
    alone = linalg.ruge_stuben(sparse.eye(20) * 2.0, coarsest=1)  # nothing to interpolate
    assert (alone.preconditioner() @ nm.ones(20)).tolist() == [0.5] * 20
    assert linalg.ruge_stuben(sparse.eye(0)).levels[0].shape == (0, 0)


@pytest.mark.parametrize("way", INTERPOLATIONS)
def test_complex_matrices(way):
    """Those without imaginary parts as real ones; of waves that are damped, as fast; adjoints."""
    dense = poisson(20, 20)
    same = linalg.ruge_stuben(made(dense + 0j), interpolation=way)
    real = linalg.ruge_stuben(made(dense), interpolation=way)
    for a, b in zip(same.levels, real.levels, strict=True):
        np.testing.assert_allclose(a.to_dense().numpy(), b.to_dense().numpy(), atol=1e-12)
    damped = made(dense + (0.4j - 0.1) * np.eye(400))
    amg = linalg.ruge_stuben(damped, interpolation=way)
    right = nm.asarray(RIGHT[:400] + 1j * RIGHT[400:800])
    found = linalg.gmres(damped, right, rtol=1e-8, M=amg.preconditioner())
    assert found.converged
    assert int(found.iterations) <= 9
    cycle = amg.preconditioner()
    v = nm.asarray(RIGHT[300:700] - 1j * RIGHT[100:500])
    ahead, back = nm.sum(nm.conj(v) * (cycle @ right)), nm.sum(nm.conj(cycle.H @ v) * right)
    np.testing.assert_allclose(ahead.item(), back.item(), rtol=1e-9)


def test_complex_weights_of_hermitian_matrices():
    """Couplings whose phases a change of variables takes away, small ones: still a good cycle."""
    phases = np.exp(0.3j * np.random.default_rng(5).standard_normal(400))
    dense = phases.conj()[:, None] * poisson(20, 20) * phases
    amg = linalg.ruge_stuben(made(dense))
    right = nm.asarray(RIGHT[:400] + 0j)
    assert int(linalg.cg(made(dense), right, rtol=1e-8, M=amg.preconditioner()).iterations) <= 14
