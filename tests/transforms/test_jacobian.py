"""Jacobians and Hessians in both modes."""

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError

both = pytest.mark.parametrize("jac", [nm.jacrev, nm.jacfwd], ids=["reverse", "forward"])


def array(values):
    return nm.asarray(values, dtype=nm.float64)


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12)


@both
def test_shapes(jac):
    a = np.arange(6.0).reshape(2, 3)
    close(jac(lambda x: a @ x)(array([1.0, 2.0, 3.0])), a)
    out = jac(lambda x: x[:, None] * x)(array([1.0, 2.0]))
    assert out.shape == (2, 2, 2)
    close(out, [[[2, 0], [2, 1]], [[2, 1], [0, 4]]])
    assert jac(lambda x: x.sum())(array(np.ones((2, 3)))).shape == (2, 3)
    assert jac(lambda x: x * array([1.0, 2.0]))(array(1.0)).shape == (2,)
    assert jac(lambda x: x)(nm.zeros((0, 2))).shape == (0, 2, 0, 2)


@both
def test_containers(jac):
    f = lambda t: {"p": t[0] * t[1].sum(), "q": t[1] ** 2}
    out = jac(f)((array(2.0), array([1.0, 3.0])))
    close(out["p"][0], 4)
    close(out["p"][1], [2, 2])
    close(out["q"][0], [0, 0])
    close(out["q"][1], [[2, 0], [0, 6]])


@both
def test_argnums_and_aux(jac):
    f = lambda a, b: (a * b, "aux")
    (ja, jb), aux = jac(f, argnums=(0, 1), has_aux=True)(array([1.0, 2.0]), array([3.0, 4.0]))
    close(ja, np.diag([3, 4]))
    close(jb, np.diag([1, 2]))
    assert aux == "aux"


@both
def test_values_are_concrete(jac):
    f = lambda x: x * x if x.sum() > 0 else x
    close(jac(f)(array([1.0, 2.0])), np.diag([2, 4]))


@both
def test_nested_and_tracked(jac):
    f = lambda x: (x**4).sum()
    x = array([1.0, 2.0])
    third = jac(jac(jac(f)))(x)
    expected = np.zeros((2, 2, 2))
    expected[0, 0, 0], expected[1, 1, 1] = 24, 48
    close(third, expected)
    w = array(3.0)
    w.requires_grad = True
    out = jac(lambda x: w * w * x)(x)
    assert out.requires_grad
    out.sum().backward()
    close(w.grad, 12)
    assert not jac(lambda x: x * x)(x).requires_grad


def test_hessian_of_containers():
    f = lambda t: (t["a"] ** 2).sum() * t["b"]
    h = nm.hessian(f)({"a": array([1.0, 2.0]), "b": array(3.0)})
    close(h["a"]["a"], 6 * np.eye(2))
    close(h["a"]["b"], [2, 4])
    close(h["b"]["a"], [2, 4])
    close(h["b"]["b"], 0)


def test_complex():
    z = nm.asarray([1 + 2j, 3 - 1j], dtype=nm.complex128)
    for jac in (nm.jacrev, nm.jacfwd):
        out = jac(lambda z: z**3, holomorphic=True)(z)
        close(out, np.diag(3 * z.numpy() ** 2))
        with pytest.raises(GradientError, match="holomorphic"):
            jac(lambda z: z**3)(z)
    close(nm.jacfwd(lambda x: x * (1 + 2j))(array(1.0)), 1 + 2j)
    close(nm.jacrev(lambda z: nm.abs(z) ** 2)(z), np.diag(2 * z.numpy()))
