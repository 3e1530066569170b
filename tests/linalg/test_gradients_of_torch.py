"""Gradients on 200 random cases against PyTorch's (tests/fixtures/linalg_gradients.npz)."""

import pathlib

import numpy as np
import pytest
from linalg_cases import CASES, drawn_case

import numus as nm

RECORDED = pathlib.Path(__file__).parent.parent / "fixtures" / "linalg_gradients.npz"
la = nm.linalg


def weighted(x):
    weights = nm.arange(1, x.size + 1, dtype=nm.float64).reshape(x.shape) / x.size
    return ((x.real + 0.5 * x.imag if x.dtype.is_complex else x) * weights).sum()


def adjoint(a):
    return a.mT.conj() if a.dtype.is_complex else a.mT


def unit(a):
    return nm.eye(a.shape[-1], dtype=a.dtype)


def positive(a):
    return a @ adjoint(a) + unit(a)


def hermitian(a):
    return a + adjoint(a)


def even(a):
    return a + 4 * unit(a)


def eig(a):
    values, vectors = la.eig(a)
    sizes = (abs(vectors) ** 2 * abs(values)[..., None, :] ** 2).sum(axis=-1)
    return nm.cumsum(sizes, axis=-1).sum()


FUNCTIONS = {
    "cholesky": lambda a: weighted(la.cholesky(positive(a))),
    "inv": lambda a: weighted(la.inv(even(a))),
    "solve": lambda a, b: weighted(la.solve(even(a), b)),
    "solve_triangular": lambda a, b: weighted(la.solve_triangular(even(a), b)),
    "det": lambda a: weighted(la.det(a)),
    "slogdet": lambda a: la.slogdet(a)[1].sum(),
    "qr": lambda a: weighted(la.qr(a)[0]) + weighted(la.qr(a)[1]),
    "lu_solve": lambda a, b: weighted(la.lu_solve(la.lu_factor(even(a)), b)),
    "eigvalsh": lambda a: weighted(la.eigvalsh(hermitian(a))),
    "eigh": lambda a: weighted(abs(la.eigh(hermitian(a))[1]) ** 2),
    "svdvals": lambda a: weighted(la.svdvals(a)),
    "svd": lambda a: weighted(abs(la.svd(a, full_matrices=False)[0]) ** 2),
    "pinv": lambda a: weighted(la.pinv(a)),
    "matrix_norm": lambda a: (la.matrix_norm(a, ord="nuc") + la.matrix_norm(a, ord=2)).sum(),
    "matrix_exp": lambda a: weighted(la.expm(a)),
    "matrix_power": lambda a: weighted(la.matrix_power(a, 3)),
    "eigvals": lambda a: (la.eigvals(a) ** 2).sum().real,
    "eig": eig,
    "lstsq": lambda a, b: weighted(la.lstsq(a, b)[0]),
    "multi_dot": lambda a, b: (
        weighted((a @ adjoint(a)) @ b) if a.ndim > 2 else weighted(la.multi_dot([a, adjoint(a), b]))
    ),
}


@pytest.fixture(scope="module")
def recorded():
    return np.load(RECORDED)


def compared(number, recorded):
    name, shapes, kind = CASES[number]
    xs = [nm.asarray(x, requires_grad=True) for x in drawn_case(number, shapes, kind)]
    FUNCTIONS[name](*xs).backward()
    for i, x in enumerate(xs):
        want = recorded[f"{number}_{i}"]
        scale = max(np.max(np.abs(want)), 1.0)
        got = x.grad.numpy()
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8 * scale, err_msg=str(name))


@pytest.mark.parametrize("name", ["cholesky", "eigh", "solve"])
def test_some(name, recorded):
    compared(next(i for i, case in enumerate(CASES) if case[0] == name), recorded)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_all(number, recorded):
    compared(number, recorded)
