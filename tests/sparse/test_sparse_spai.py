"""Approximate inverses: least squares on their patterns, limits, iterations, bad input."""

import numpy as np
import pytest
from sparse_matrices import (
    anisotropic,
    arrow,
    convection,
    on_webgpu,
    poisson,
    power_law,
    random,
    systems,
)

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def check(dense, tolerance, steps, add):
    m = linalg.spai_preconditioner(made(dense), tolerance, steps=steps, add=add).parameters
    got, n = m.numpy(), len(dense)
    assert m.nnz <= n * (1 + steps * add)
    there = np.zeros((n, n), bool)
    there[tuple(m.structure.coordinates)] = True
    for k in range(n):
        e, own = np.eye(n)[k].astype(dense.dtype), there[:, k]
        best = np.linalg.norm(dense[:, own] @ np.linalg.lstsq(dense[:, own], e)[0] - e)
        norm = np.linalg.norm(dense @ got[:, k] - e)
        assert norm <= best + 1e-7
        grown = own.sum() >= min(n, 1 + steps * add)
        assert norm <= tolerance or grown or steps * add < 10
    return got


MATRICES = {
    "convection": convection(6, 2.0),
    "anisotropic": anisotropic(5, 0.01),
    "arrow": arrow(30),
    "random": random(40, 40, 0.1, 2) + 3 * np.eye(40),
    "power law": power_law(40) + np.eye(40),
    "complex": random(40, 40, 0.1, 2) + 1j * random(40, 40, 0.1, 4) + (2 - 2j) * np.eye(40),
}


@pytest.mark.parametrize("name", MATRICES)
def test_columns_are_least_squares(name):
    for tolerance, steps, add in ((0.3, 2, 3), (0.0, 1, 8), (0.5, 0, 5)):
        check(MATRICES[name], tolerance, steps, add)


@pytest.mark.slow
def test_columns_of_many_matrices():
    for dense in systems().values():
        if len(dense) <= 250:
            check(dense, 0.3, 3, 3)


def test_the_first_column_reduces_the_residual_most():
    dense = random(30, 30, 0.2, 5) + 2 * np.eye(30)
    m = linalg.spai_preconditioner(made(dense), 0.0, steps=1, add=1).parameters.numpy()
    for k in range(30):
        e = np.eye(30)[k]
        r = e - dense[:, k] * (dense[k, k] / (dense[:, k] ** 2).sum())
        gain = (r @ dense) ** 2 / (dense**2).sum(0)
        gain[k] = 0.0
        assert set(np.flatnonzero(m[:, k])) <= {k, int(gain.argmax())}


def test_a_full_pattern_is_the_inverse():
    dense = MATRICES["random"]
    near = linalg.spai_preconditioner(made(dense), 0.0, steps=40, add=5)
    np.testing.assert_allclose(near.parameters.numpy(), np.linalg.inv(dense), atol=1e-10)
    b = np.arange(40.0)
    np.testing.assert_allclose((near @ b).numpy(), np.linalg.solve(dense, b), atol=1e-8)
    np.testing.assert_allclose((near.H @ b).numpy(), np.linalg.solve(dense.T, b), atol=1e-8)


def test_complex_matrices():
    """A full pattern is the inverse; multiplied by phases, a real matrix has its own pattern."""
    dense = MATRICES["complex"]
    near = linalg.spai_preconditioner(made(dense), 0.0, steps=40, add=5)
    np.testing.assert_allclose(near.parameters.numpy(), np.linalg.inv(dense), atol=1e-10)
    b = np.exp(1j * np.arange(40.0))
    np.testing.assert_allclose((near.H @ b).numpy(), np.linalg.solve(dense.conj().T, b), atol=1e-8)
    real = convection(5, 2.0)
    phase = np.exp(1j * np.arange(25.0))
    own = linalg.spai_preconditioner(made(real), 0.2, steps=3, add=2).parameters.numpy()
    turned = made(phase[:, None] * real * phase.conj())
    found = linalg.spai_preconditioner(turned, 0.2, steps=3, add=2).parameters.numpy()
    np.testing.assert_allclose(phase.conj()[:, None] * found * phase, own, atol=1e-12)


def test_iterations_and_traces():
    dense = convection(12, 2.0)
    a, b = made(dense), nm.ones(144, dtype=nm.float64)
    near = linalg.spai_preconditioner(a, 0.2)
    plain = linalg.bicgstab(a, b, rtol=1e-8).iterations.item()
    found = linalg.bicgstab(a, b, rtol=1e-8, M=near)
    assert found.converged
    assert found.iterations.item() <= 0.6 * plain
    inside = nm.jit(lambda b: near @ b)(b)
    np.testing.assert_allclose(inside.numpy(), near.parameters.numpy() @ b.numpy(), rtol=1e-12)


@pytest.mark.slow
@on_webgpu
def test_devices():
    a = made(poisson(6, 6).astype(np.float32))
    there = linalg.spai_preconditioner(a.to("webgpu")) @ nm.ones(36).to("webgpu")
    near = linalg.spai_preconditioner(a) @ nm.ones(36)
    np.testing.assert_allclose(there.numpy(), near.numpy(), rtol=1e-5)


def test_bad_input():
    with pytest.raises(ShapeError, match="not square"):
        linalg.spai_preconditioner(sparse.eye(2, 3))
    with pytest.raises(ValueError, match="tolerance=nan"):
        linalg.spai_preconditioner(sparse.eye(2), float("nan"))
    with pytest.raises(ValueError, match="steps=-1"):
        linalg.spai_preconditioner(sparse.eye(2), steps=-1)
    with pytest.raises(LinAlgError, match="not a number"):
        linalg.spai_preconditioner(made(np.diag([np.inf, 1.0])))
    singular = linalg.spai_preconditioner(made(np.zeros((3, 3))))  # the least squares: zero
    assert (singular @ nm.ones(3)).tolist() == [0.0] * 3
    assert (linalg.spai_preconditioner(sparse.eye(0)) @ nm.zeros((0,))).shape == (0,)
