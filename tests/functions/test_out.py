"""`out=` of elementwise functions, as NumPy's ufuncs have it."""

import inspect

import numpy as np
import pytest

import numus as nm
from numus.errors import DTypeError, GradientError, ShapeError

WITH_OUT = sorted(
    name
    for name in nm.__all__
    if inspect.isfunction(getattr(nm, name))
    and "out" in inspect.signature(getattr(nm, name)).parameters
)


def test_every_ufunc_has_out():
    ufuncs = {name for name, f in vars(np).items() if isinstance(f, np.ufunc)}
    shared = {name for name in ufuncs if hasattr(nm, name)}
    assert shared - set(WITH_OUT) == {"divmod", "matmul", "vecdot"}


@pytest.mark.parametrize("name", WITH_OUT)
def test_out_takes_the_result(name):
    function = getattr(nm, name)
    names = [p for p in inspect.signature(function).parameters if p in ("x", "x1", "x2")]
    whole = name.startswith(("bitwise", "invert", "left_shift", "right_shift"))
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
