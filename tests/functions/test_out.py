"""`out=` of elementwise functions, as NumPy's ufuncs have it."""

import inspect

import numpy as np
import pytest

import numus as nm
from numus.errors import DTypeError, GradientError, ShapeError

PRODUCTS = {
    "divmod",
    "frexp",
    "matmul",
    "matvec",
    "modf",
    "vecdot",
    "vecmat",
}  # other shapes, or two results
WITH_OUT = sorted(
    name
    for name in nm.__all__
    if inspect.isfunction(getattr(nm, name))
    and "out" in inspect.signature(getattr(nm, name)).parameters
)


def test_every_ufunc_has_out():
    ufuncs = {name for name, f in vars(np).items() if isinstance(f, np.ufunc)}
    shared = {name for name in ufuncs if hasattr(nm, name)}
    assert shared <= set(WITH_OUT)


@pytest.mark.parametrize("name", sorted(set(WITH_OUT) - PRODUCTS))
def test_out_takes_the_result(name):
    function = getattr(nm, name)
    names = [p for p in inspect.signature(function).parameters if p in ("x", "x1", "x2")]
    whole = name.startswith(
        ("bitwise", "gcd", "invert", "lcm", "ldexp", "left_shift", "right_shift")
    )
    x = nm.asarray([1, 0], dtype=nm.int32) if whole else nm.asarray([0.25, 0.75])
    operands = [x] * len(names)
    expected = function(*operands)
    out = nm.zeros(2, dtype=expected.dtype)
    view = out[:1]
    assert function(*operands, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected.numpy())
    np.testing.assert_array_equal(view.numpy(), expected.numpy()[:1])
    again = nm.zeros((3, 2), dtype=expected.dtype)
    assert function(*operands, out=(again,)) is again  # broadcast, in a tuple
    np.testing.assert_array_equal(again.numpy(), np.broadcast_to(expected.numpy(), (3, 2)))


@pytest.mark.parametrize("name", ["divmod", "frexp", "modf"])
def test_out_takes_two_results(name):
    operands = [nm.asarray([2.5, -0.75])] * (2 if name == "divmod" else 1)
    first, second = getattr(nm, name)(*operands)
    out = nm.zeros(2)
    found = getattr(nm, name)(*operands, out=(out, None))
    assert found[0] is out
    assert (out.tolist(), found[1].tolist()) == (first.tolist(), second.tolist())
    with pytest.raises(TypeError, match="pair of tensors"):
        getattr(nm, name)(*operands, out=out)


def test_out_is_an_operand_or_a_part_of_one():
    x = nm.arange(4.0)
    nm.add(x, 1, out=x)
    assert x.tolist() == [1, 2, 3, 4]
    nm.multiply(x[:2], 10, out=x[2:])
    assert x.tolist() == [1, 2, 10, 20]
    nm.clip(x, 2, 10, out=x)
    assert x.tolist() == [2, 2, 10, 10]


def test_out_casts_within_a_kind():
    half, wide = nm.zeros(2, dtype=nm.float16), nm.zeros(2, dtype=nm.float64)
    assert nm.add(nm.ones(2), 0.5, out=half).dtype is nm.float16
    assert nm.add(nm.ones(2), 0.5, out=wide).tolist() == [1.5, 1.5]
    with pytest.raises(DTypeError, match="add: a value of float32"):
        nm.add(nm.ones(2), 0.5, out=nm.zeros(2, dtype=nm.int32))
    with pytest.raises(ShapeError, match="add"):
        nm.add(nm.ones((3, 2)), 1, out=nm.zeros(2))
    with pytest.raises(TypeError, match="out must be a tensor, not ndarray"):
        nm.add(nm.ones(2), 1, out=np.zeros(2))


def test_out_and_gradients():
    leaf = nm.ones(2)
    leaf.requires_grad = True
    with pytest.raises(GradientError, match="leaf"):
        nm.multiply(leaf, 2, out=leaf)

    def f(x):
        buffer = nm.zeros(2)
        nm.multiply(x, x, out=buffer)
        return buffer.sum()

    assert nm.grad(f)(nm.asarray([1.0, 3.0])).tolist() == [2, 6]
    assert nm.jit(f)(nm.asarray([1.0, 3.0])).item() == 10


def test_out_of_products():
    a, b = nm.arange(6.0).reshape(2, 3), nm.arange(12.0).reshape(3, 4)
    base = nm.zeros((2, 8))
    for _ in range(3):  # as often as templates are made
        out = base[:, ::2]
        assert nm.matmul(a, b, out=out) is out
        np.testing.assert_array_equal(base.numpy()[:, ::2], (a @ b).numpy())
        base[...] = 0
    with nm.autocast(nm.bfloat16):
        nm.matmul(a, b, out=(base[:, 4:],))
    np.testing.assert_array_equal(base.numpy()[:, 4:], (a @ b).numpy())
    with pytest.raises(ShapeError, match="matmul: shapes"):
        nm.matmul(a, b, out=nm.zeros((2, 3)))
    out = nm.zeros(2)
    assert nm.vecdot(a, a, out=out) is out
    assert out.tolist() == [5, 50]


def test_out_of_divmod_is_a_pair():
    quotient, rest = nm.zeros(2), nm.zeros(2)
    found = nm.divmod(nm.asarray([7.0, -7.0]), 2, out=(quotient, None))
    assert found[0] is quotient
    assert quotient.tolist() == [3, -4]
    assert found[1].tolist() == [1, 1]
    assert nm.divmod(nm.asarray([7.0, -7.0]), 4, out=(None, rest))[1] is rest
    assert rest.tolist() == [3, 1]
    with pytest.raises(TypeError, match="pair of tensors"):
        nm.divmod(nm.ones(2), 2, out=rest)
