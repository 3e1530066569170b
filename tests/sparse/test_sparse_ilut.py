"""ILUT: against its definition in NumPy, exact limits, iterations, bad input."""

import numpy as np
import pytest
from sparse_matrices import anisotropic, arrow, convection, power_law, random, systems

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg
from numus.sparse.algorithms import threshold


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def textbook(a, tolerance, fill):
    """L and U of dense rows, as Saad writes them down."""
    n = len(a)
    lower, upper = np.eye(n, dtype=a.dtype), np.zeros_like(a)
    for i in range(n):
        w = a[i].copy()
        least = tolerance * np.linalg.norm(w)
        for k in range(i):
            if w[k] != 0:
                w[k] /= upper[k, k]
                if abs(w[k]) < least:
                    w[k] = 0
                else:
                    w[k + 1 :] -= w[k] * upper[k, k + 1 :]
        below, above = w[:i].copy(), w[i + 1 :].copy()
        above[abs(above) < least] = 0
        for part in (below, above):
            part[np.argsort(-abs(part), kind="stable")[fill:]] = 0
        lower[i, :i], upper[i, i], upper[i, i + 1 :] = below, w[i], above
    return lower, upper


def check(dense, tolerance, fill):
    n = len(dense)
    pattern, values = made(dense).structure.rows[0], dense[dense != 0]
    where = (pattern.pointers.array, pattern.indices.array)
    end, starts, columns, found, _ = threshold.threshold_factors(
        *(n, *where, values, tolerance, fill)
    )
    assert end == n
    got = np.zeros_like(dense)
    got[np.repeat(np.arange(n), np.diff(starts)), columns] = found
    lower, upper = textbook(dense, tolerance, fill)
    wanted = lower - np.eye(n) + upper
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
    assert ((got != 0) == (wanted != 0)).all()


MATRICES = {
    "convection": convection(7, 2.0),
    "anisotropic": anisotropic(6, 0.01),
    "arrow": arrow(40),
    "random": random(60, 60, 0.1, 2) + 3 * np.eye(60),
    "power law": power_law(50) + np.eye(50),
    "complex": random(50, 50, 0.1, 3) + 1j * random(50, 50, 0.1, 3) + (2 - 2j) * np.eye(50),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(("tolerance", "fill"), [(1e-2, 3), (0.1, 100), (1e-3, 0)])
def test_factors_are_the_textbook_s(name, tolerance, fill):
    check(MATRICES[name], tolerance, fill)


@pytest.mark.slow
def test_factors_of_many_matrices():
    count = 0
    for name, dense in systems().items():
        if (np.diag(dense) != 0).all() and not name.startswith("power law"):
            for tolerance, fill in ((1e-2, 3), (0.1, 100), (0.0, 5)):
                check(dense, tolerance, fill)
            count += 1
    assert count > 40


def test_room_grows():
    dense = np.random.default_rng(0).standard_normal((30, 30)) + 9 * np.eye(30)
    dense[5:, 5:] *= np.eye(25)  # an arrow: little is given, much is made
    check(dense, 0.0, 30)


def test_without_dropping_it_is_the_inverse():
    dense = MATRICES["random"]
    b = np.random.default_rng(1).standard_normal(60)
    near = linalg.ilut_preconditioner(made(dense), 0.0, 60)
    np.testing.assert_allclose((near @ b).numpy(), np.linalg.solve(dense, b), rtol=1e-9)
    np.testing.assert_allclose((near.H @ b).numpy(), np.linalg.solve(dense.T, b), rtol=1e-9)


def test_complex_matrices():
    dense = MATRICES["complex"]
    rng = np.random.default_rng(1)
    b = rng.standard_normal(50) + 1j * rng.standard_normal(50)
    near = linalg.ilut_preconditioner(made(dense), 0.0, 50)
    np.testing.assert_allclose((near @ b).numpy(), np.linalg.solve(dense, b), rtol=1e-9)
    np.testing.assert_allclose((near.H @ b).numpy(), np.linalg.solve(dense.conj().T, b), rtol=1e-9)
    shifted = convection(12, 1.0) - (0.3 - 0.1j) * np.eye(144)
    right = np.ones(144, complex)
    plain = linalg.gmres(made(shifted), right, rtol=1e-8)
    near = linalg.ilut_preconditioner(made(shifted), 1e-3, 15)
    found = linalg.gmres(made(shifted), right, rtol=1e-8, M=near)
    assert found.converged
    assert 4 * found.iterations.item() < plain.iterations.item()


def test_iterations():
    dense = convection(15, 1.0)
    a, b = made(dense), np.random.default_rng(2).standard_normal(225)
    counts = []
    for m in (
        linalg.ilut_preconditioner(a, 1e-4, 20),
        linalg.ilut_preconditioner(a, 1e-2, 5),
        linalg.ilu_preconditioner(a),
    ):
        found = linalg.bicgstab(a, b, rtol=1e-8, M=m)
        assert found.converged
        counts.append(found.iterations.item())
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.slow
def test_iterations_are_those_of_superlu():
    pytest.importorskip("scipy")
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import spilu

    for speed in (0.1, 1.0, 10.0):
        dense = convection(25, speed)
        a, b = made(dense), np.ones(625)
        theirs = spilu(csc_array(dense), drop_tol=1e-3, fill_factor=10, permc_spec="NATURAL")
        m = nm.asarray(np.stack([theirs.solve(e) for e in np.eye(625)], 1))
        peer = linalg.gmres(a, b, rtol=1e-8, M=m)
        near = linalg.ilut_preconditioner(a, 3e-4, 30)
        assert sum(x.size for x in near.parameters[:2]) + 625 <= theirs.nnz
        own = linalg.gmres(a, b, rtol=1e-8, M=near)
        assert own.converged
        assert own.iterations.item() <= 1.2 * peer.iterations.item() + 1


def test_bad_input():
    with pytest.raises(LinAlgError, match="pivot 1 is zero; shift the diagonal"):
        linalg.ilut_preconditioner(made(np.ones((2, 2))))
    with pytest.raises(LinAlgError, match="pivot 0 is zero"):
        linalg.ilut_preconditioner(made(np.array([[0.0, 1.0], [1.0, 1.0]])))
    with pytest.raises(LinAlgError, match="not a number"):
        linalg.ilut_preconditioner(made(np.diag([np.nan, 1.0])))
    with pytest.raises(LinAlgError, match="pivot 1 is zero"):
        linalg.ilut_preconditioner(made(np.array([[1j, 1.0], [1.0, -1j]])))
    with pytest.raises(ValueError, match="drop_tolerance=-1"):
        linalg.ilut_preconditioner(sparse.eye(2), -1)
    with pytest.raises(ValueError, match="drop_tolerance=nan"):
        linalg.ilut_preconditioner(sparse.eye(2), float("nan"))
    with pytest.raises(ValueError, match="negative"):
        linalg.ilut_preconditioner(sparse.eye(2), fill=-1)
    with pytest.raises(ShapeError, match="not square"):
        linalg.ilut_preconditioner(sparse.eye(2, 3))
    with pytest.raises(LinAlgError, match="must be known"):
        nm.jit(lambda a: linalg.ilut_preconditioner(a) @ nm.ones(2))(sparse.eye(2))
    empty = linalg.ilut_preconditioner(sparse.eye(0))
    assert (empty @ nm.zeros((0,))).shape == (0,)
