"""Triangular solutions: both triangles, devices, derivatives of both modes, traces, bad input."""

from types import SimpleNamespace

import numpy as np
import pytest

import numus as nm
from numus import sparse
from numus.errors import DeviceError, LinAlgError, ShapeError
from numus.sparse import linalg
from numus.sparse.linalg import spsolve_triangular
from numus.sparse.pattern import Pattern
from numus.sparse.triangles import Triangle, triangle_of


def triangular(n, lower, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.1)
    if np.dtype(dtype).kind == "c":
        dense = dense + 1j * rng.standard_normal((n, n)) * (dense != 0)
    return ((np.tril if lower else np.triu)(dense) + 4 * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_solutions(lower, dtype):
    dense = triangular(40, lower, dtype)
    a = sparse.from_dense(nm.asarray(dense))
    for shape in ((40,), (40, 3), (40, 33)):
        b = np.random.default_rng(1).standard_normal(shape).astype(dtype)
        x = spsolve_triangular(a, b, lower).numpy()
        tolerance = 200 * np.finfo(dtype).eps
        np.testing.assert_allclose(x, np.linalg.solve(dense, b), rtol=tolerance, atol=tolerance)
    np.fill_diagonal(dense, 1)
    unit = spsolve_triangular(a, b, lower, unit_diagonal=True).numpy()
    np.testing.assert_allclose(dense @ unit, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["webgpu", "reference"])
def test_devices(device):
    dense = triangular(30, False, np.float32)
    a, b = sparse.from_dense(nm.asarray(dense)), nm.ones((30, 2))
    try:
        b = b.to(device)
    except DeviceError as reason:
        pytest.skip(str(reason))
    there = spsolve_triangular(a.to(device), b, lower=False)
    assert there.device.name.startswith(device)
    np.testing.assert_allclose(
        there.numpy(), spsolve_triangular(a, b.to("cpu"), False).numpy(), rtol=1e-5
    )


def test_levels():
    a = sparse.diags([[2.0] * 6, 1.0], [0, -2], (6, 6), format="csr")
    triangle, _, on = triangle_of(a.structure.rows[0], False)
    starts, order = (x.array.tolist() for x in triangle.levels)
    assert starts == [0, 2, 4, 6]
    assert order == [0, 1, 2, 3, 4, 5]
    assert (on >= 0).all()


@pytest.mark.parametrize("lower", [True, False])
def test_sweeps(lower):
    dense = triangular(40, lower)
    a = sparse.from_dense(nm.asarray(dense))
    b = np.random.default_rng(1).standard_normal((40, 2))
    x = spsolve_triangular(a, b, lower, method="levels").numpy()
    swept = spsolve_triangular(a, b, lower, method="jacobi").numpy()
    np.testing.assert_allclose(swept, x, rtol=1e-12)
    inside = nm.jit(lambda a, b: spsolve_triangular(a, b, lower, method="jacobi"))(a, b)
    np.testing.assert_allclose(inside.numpy(), x, rtol=1e-12)
    near = []
    for sweeps in (0, 1, 3, 9):
        y = spsolve_triangular(a, b, lower, sweeps=sweeps).numpy()
        near.append(np.abs(y - x).max())
    np.testing.assert_allclose(near[0], np.abs(b / np.diag(dense)[:, None] - x).max())
    assert near[0] > near[1] > near[2] > near[3]


def test_sweeps_of_preconditioners():
    line = sparse.diags([4.0, -1.0, -1.0], [0, 1, -1], (50, 50), dtype=nm.float64, format="csr")
    b = nm.asarray(np.random.default_rng(2).standard_normal(50))
    for make in (
        linalg.ssor_preconditioner,
        linalg.ilu_preconditioner,
        linalg.ilut_preconditioner,
        linalg.ic_preconditioner,
    ):
        exact, few, many = (make(line, sweeps=s) for s in (None, 2, 49))
        np.testing.assert_allclose((many @ b).numpy(), (exact @ b).numpy(), rtol=1e-12)
        assert 1e-6 < np.abs((few @ b).numpy() - (exact @ b).numpy()).max() < 0.05
        np.testing.assert_allclose((many.H @ b).numpy(), (exact.H @ b).numpy(), rtol=1e-12)


def test_the_cheaper_method_is_taken():
    wide = sparse.diags([[1.0] * 8, 1.0], [0, -4], (8, 8), format="csr")
    triangle, _, _ = triangle_of(wide.structure.rows[0], False)
    assert triangle.levels[0].array.tolist() == [0, 4, 8]
    cpu, gpu = (
        SimpleNamespace(runtime=SimpleNamespace(target=SimpleNamespace(block_size=b, num_cores=c)))
        for b, c in ((0, 2), (256, 132))
    )
    assert triangle.chosen(1, cpu) == "levels"
    assert triangle.chosen(1, gpu) == "levels"  # a launch more is more than all of it
    n = 200_000
    large = Pattern((n, n), np.maximum(np.arange(n + 1) - n // 2, 0), np.arange(n - n // 2))
    two = Triangle(large, False)
    assert two.levels[0].array.size == 3
    assert two.chosen(1, gpu) == "jacobi"
    assert two.chosen(1, cpu) == "levels"
    line = Pattern((n, n), np.maximum(np.arange(n + 1) - 1, 0), np.arange(n - 1))
    assert Triangle(line, False).chosen(1, gpu) == "levels"


def test_derivatives():
    dense = triangular(6, True, seed=3) + np.tril(np.full((6, 6), 0.3))
    a, b = sparse.from_dense(nm.asarray(dense)), nm.asarray(np.arange(6.0))

    def by_substitution(v, b):
        return nm.sum(spsolve_triangular(a.with_values(v), b) ** 3)

    def by_sweeps(v, b):
        return nm.sum(spsolve_triangular(a.with_values(v), b, method="jacobi") ** 3)

    def by_dense(v, b):
        return nm.sum(nm.linalg.solve(a.with_values(v).to_dense(), b) ** 3)

    for derive in (lambda f: nm.grad(f, (0, 1)), lambda f: nm.hessian(f, (0, 1))):
        got = nm.transforms.tree.leaves(derive(by_substitution)(a.values, b))
        want = nm.transforms.tree.leaves(derive(by_dense)(a.values, b))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-9, atol=1e-12)
    for x, y in zip(
        nm.grad(by_sweeps, (0, 1))(a.values, b),
        nm.grad(by_dense, (0, 1))(a.values, b),
        strict=True,
    ):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-9, atol=1e-12)
    tangents = (a.values, b)
    got = nm.jvp(by_substitution, (a.values, b), tangents)[1].item()
    assert got == pytest.approx(nm.jvp(by_dense, (a.values, b), tangents)[1].item())


def test_traces_and_batches():
    a, b = sparse.from_dense(nm.asarray(triangular(12, True))), nm.ones(12)
    x = spsolve_triangular(a, b)
    assert nm.jit(spsolve_triangular)(a, b).tolist() == x.tolist()
    values = nm.stack([a.values, 2 * a.values])
    both = nm.vmap(lambda v: spsolve_triangular(a.with_values(v), b))(values)
    np.testing.assert_allclose(both.numpy(), [x.numpy(), x.numpy() / 2])
    many = nm.vmap(lambda b: spsolve_triangular(a, b))(nm.ones((3, 12)))
    np.testing.assert_allclose(many.numpy(), [x.numpy()] * 3)


def test_bad_input():
    a = sparse.diags([1.0, 0.0, 1.0], format="csr")
    with pytest.raises(LinAlgError, match=r"element \(1, 1\) is zero"):
        spsolve_triangular(a, nm.ones(3))
    with pytest.raises(LinAlgError, match=r"element \(0, 0\) is zero"):
        spsolve_triangular(sparse.eye(2, 2, -1), nm.ones(2))
    with pytest.raises(ShapeError, match="not square"):
        spsolve_triangular(sparse.eye(2, 3), nm.ones(2))
    with pytest.raises(ShapeError, match="right-hand side"):
        spsolve_triangular(sparse.eye(3), nm.ones(2))
    with pytest.raises(TypeError, match="sparse matrix"):
        spsolve_triangular(nm.ones((2, 2)), nm.ones(2))
    with pytest.raises(ValueError, match="method='rows' must be one of"):
        spsolve_triangular(sparse.eye(2), nm.ones(2), method="rows")
    with pytest.raises(ValueError, match="sweeps=-1 is negative"):
        spsolve_triangular(sparse.eye(2), nm.ones(2), sweeps=-1)
    with pytest.raises(ValueError, match="not of 'levels'"):
        spsolve_triangular(sparse.eye(2), nm.ones(2), method="levels", sweeps=2)
    with pytest.raises(ValueError, match="sweeps=-1 is negative"):
        linalg.ilu_preconditioner(sparse.eye(2), sweeps=-1)
    assert spsolve_triangular(sparse.eye(0), nm.zeros((0,))).shape == (0,)
