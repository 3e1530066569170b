"""nm.debug_nans names the first operation that made a NaN, and the line that called it."""

import inspect

import pytest

import numus as nm
from numus import nn
from numus.errors import NonFiniteError, TracingError


def caught(f, **options):
    with pytest.raises(NonFiniteError) as error, nm.debug_nans(**options):
        f()
    return str(error.value)


def line_of(function, text):
    """`file, line n` of the line of a function that has a text in it."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{__file__}, line {number}"


def test_the_operation_and_the_line():
    def f():
        x = nm.asarray([2.0, -1.0, 3.0])
        y = x * 2
        z = nm.log(y)  # here
        return z + 1

    said = caught(f)
    assert said.startswith("log gave 1 NaN among float32[3], the first at [1], in log")
    assert line_of(f, "# here") in said
    assert "from -2 to 6" in said


def test_inside_a_composed_function():
    x = nm.full((2, 3), -nm.inf)
    said = caught(lambda: nm.softmax(x, axis=-1))
    assert said.startswith("sub gave 6 NaN")
    assert "in softmax" in said


def test_derivatives_name_what_they_are_of():
    x = nm.asarray([4.0, 0.0], requires_grad=True)

    def f():
        y = nm.sqrt(x)  # forward
        (y * 0.0).sum().backward()  # backward

    said = caught(f)
    assert "in the derivative of sqrt" in said
    assert line_of(f, "# forward") in said
    assert line_of(f, "# backward") in said


def test_inside_jit_even_where_it_was_traced_before():
    @nm.jit
    def f(x):
        return nm.log(x) * 2  # here

    bad = nm.asarray([-1.0])
    assert nm.isnan(f(bad)).item()
    said = caught(lambda: f(bad))
    assert said.startswith("log gave")
    assert f"{__file__}, line" in said
    assert nm.isnan(f(bad)).item()  # and afterwards it is traced again


def test_a_step_of_training_under_jit():
    model = nn.Linear(2, 1)
    x = nm.ones((3, 2))

    @nm.jit
    def step(x):
        loss = nm.sqrt(model(x) * 0).sum()
        loss.backward()
        return loss

    step(x)
    assert "in the derivative of sqrt" in caught(lambda: step(x), infs=True)


def test_data_that_has_them_already():
    x = nm.asarray([[nm.nan, 1.0]])
    assert "with 1 NaN already" in caught(lambda: nn.LayerNorm(2)(x))


def test_infinities_only_where_they_are_asked_for():
    zero = nm.asarray([0.0, 1.0])
    with nm.debug_nans():
        nm.log(zero)
        nm.where(zero > 0, zero, -nm.inf)
    assert caught(lambda: nm.log(zero), infs=True).startswith("log gave 1 infinity")
    with nm.debug_nans(infs=True):  # of infinite operands come infinite results
        nm.exp(nm.where(zero > 0, zero, -nm.inf)).sum()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_all_inexact_dtypes(dtype):
    x = nm.asarray([0.0, 1.0]).astype(dtype)
    said = caught(lambda: x / x)
    assert said.startswith(f"div gave 1 NaN among {dtype}[2]")


def test_numbers_without_axes_and_empty_ones():
    assert caught(lambda: nm.log(nm.asarray(-1.0))).startswith("log gave 1 NaN among float32[]")
    with nm.debug_nans():
        assert nm.log(nm.zeros((0, 3))).shape == (0, 3)


def test_loops_and_batches():
    xs = nm.asarray([1.0, 0.0, 2.0])
    said = caught(lambda: nm.scan(lambda c, x: (c * x, nm.log(c - 2)), nm.asarray(1.0), xs))
    assert said.startswith("a loop or branch gave")
    assert caught(lambda: nm.vmap(lambda x: nm.log(x - 1))(xs)).startswith("log gave 1 NaN")


def test_values_are_those_outside():
    x = nm.random.normal((5, 4))
    layer = nn.Linear(4, 3)
    with nm.debug_nans():
        inside = nn.gelu(layer(x)).sum()
    assert nm.allclose(inside, nn.gelu(layer(x)).sum())


def test_nothing_is_watched_afterwards():
    caught(lambda: nm.log(nm.asarray(-1.0)))
    assert nm.isnan(nm.log(nm.asarray(-1.0))).item()


def test_not_inside_a_trace():
    @nm.jit
    def f(x):
        with nm.debug_nans():
            return x + 1

    with pytest.raises(TracingError, match="around the call"):
        f(nm.ones(2))
