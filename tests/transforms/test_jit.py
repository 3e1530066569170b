"""nm.jit: the same values as without, whatever goes in and comes out."""

import numpy as np
import pytest
from jit_calls import arrays, counted, leaf

import numus as nm
from numus.errors import TracingError

# -- arguments and results ------------------------------------------------------------------------


def test_traces_once_for_each_structure():
    f = counted(lambda x, y: nm.sin(x) * y)
    jitted = nm.jit(f)
    for shape in ((3,), (3,), (2, 2), (3,), (2, 2)):
        x, y = arrays(shape, shape)
        np.testing.assert_array_equal(jitted(x, y).numpy(), (nm.sin(x) * y).numpy())
    assert f.count == 2
    jitted(*(x.astype(nm.float64) for x in arrays((3,), (3,))))
    assert f.count == 3


def test_decorator_with_and_without_arguments():
    @nm.jit
    def double(x):
        """Twice x."""
        return 2 * x

    @nm.jit(static_argnums=1)
    def power(x, n):
        return x**n if n > 1 else x

    assert double.__name__ == "double"
    assert double.__doc__ == "Twice x."
    assert double(nm.arange(3)).tolist() == [0, 2, 4]
    assert power(nm.arange(3), 2).tolist() == [0, 1, 4]
    assert power(nm.arange(3), n=1).tolist() == [0, 1, 2]


def test_methods():
    class Scaled:
        def __init__(self, by):
            self.by = nm.asarray(by)

        @nm.jit
        def __call__(self, x):
            return x * self.by

    two, three = Scaled(2.0), Scaled(3.0)
    assert two(nm.ones(2)).tolist() == [2, 2]
    assert three(nm.ones(2)).tolist() == [3, 3]
    two.by.assign(nm.asarray(5.0))
    assert two(nm.ones(2)).tolist() == [5, 5]


def test_containers_go_in_and_come_out():
    f = counted(lambda p, *, scale: {"sum": p["a"] + p["b"][0], "rest": (p["b"][1], None, "text")})
    jitted = nm.jit(f)
    for seed in range(2):
        a, b, c = arrays((2,), (2,), (3,), seed=seed)
        got = jitted({"a": a, "b": [b, c]}, scale=None)
        assert got["rest"][1:] == (None, "text")
        assert got["rest"][0] is c
        np.testing.assert_array_equal(got["sum"].numpy(), (a + b).numpy())
    assert f.count == 1
    jitted({"a": a, "b": (b, c)}, scale=None)
    assert f.count == 2


def test_python_numbers_are_weak_and_not_part_of_the_structure():
    f = counted(lambda x, lr, t: (x * (lr / (1 - 0.9**t)), t + 1, lr))
    jitted = nm.jit(f)
    x = nm.asarray(np.linspace(0, 1, 5), dtype=nm.float16)
    for t in (1, 2, 7):
        y, after, lr = jitted(x, 0.5, t)
        want = x * (0.5 / (1 - 0.9**t))
        assert y.dtype is nm.float16
        np.testing.assert_array_equal(y.numpy(), want.numpy())
        assert (after, lr) == (t + 1, 0.5)
    assert f.count == 1
    jitted(x, 1, 1)  # an int where a float was
    assert f.count == 2


def test_numbers_of_another_kind_at_a_later_call():
    jitted = nm.jit(lambda x, n: x * 2**n)
    assert jitted(nm.ones(1), 3).tolist() == [8]
    assert jitted(nm.ones(1), -1).tolist() == [0.5]


def test_static_arguments():
    f = counted(lambda x, n, mode="a": x * n if mode == "a" else x - n)
    jitted = nm.jit(f, static_argnums=(1,), static_argnames="mode")
    x = nm.ones(2)
    assert jitted(x, 2).tolist() == [2, 2]
    assert jitted(x, 3).tolist() == [3, 3]
    assert jitted(x, n=3).tolist() == [3, 3]
    assert jitted(x, 3, "b").tolist() == [-2, -2]
    assert jitted(x, 3, mode="b").tolist() == [-2, -2]
    assert f.count == 5  # by keyword and by position are two structures
    with pytest.raises(ValueError, match="missing"):
        nm.jit(lambda x: x, static_argnames="missing")
    with pytest.raises(TypeError, match=r"argument 1 is a bytearray.*hashable"):
        nm.jit(lambda x, y: x)(x, bytearray())


def test_numpy_arrays_are_arguments():
    f = counted(lambda x, y: x + y)
    jitted = nm.jit(f)
    for k in range(2):
        got = jitted(np.arange(3) + k, np.float32(2))
        assert got.dtype is nm.promote_types(nm.int64, nm.float32)
        assert got.tolist() == [2 + k, 3 + k, 4 + k]
    assert f.count == 1


def test_results_that_are_arguments_captured_or_constant():
    w = nm.ones(2)
    jitted = nm.jit(lambda x: (x, w, nm.asarray([1.0, 2.0]), nm.zeros(2), x + 0, 7))
    for k in range(2):
        x = nm.full((2,), float(k))
        same, weight, listed, zeros, copied, number = jitted(x)
        assert same is x
        assert weight is w
        assert listed.tolist() == [1, 2]
        assert zeros.tolist() == [0, 0]
        assert copied.tolist() == [k, k]
        assert number == 7


def test_pending_and_strided_arguments():
    jitted = nm.jit(lambda x: x @ x)
    x = nm.asarray(np.arange(16.0).reshape(4, 4))
    for y in (x, x.T, x[::-1], x + 1, nm.ones((4, 4), dtype=nm.float64)):
        np.testing.assert_array_equal(jitted(y).numpy(), y.numpy() @ y.numpy())


def test_empty_tensors_and_no_tensors():
    assert nm.jit(lambda x: x * 2)(nm.zeros((0, 3))).shape == (0, 3)
    assert nm.jit(lambda: nm.arange(3))().tolist() == [0, 1, 2]
    assert nm.jit(lambda: None)() is None


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        float,
        bool,
        int,
        lambda x: x.item(),
        lambda x: x.numpy(),
        lambda x: nm.eval(x),
        lambda x: np.asarray(x),
        lambda x: x.tolist(),
        lambda x: 1 if x > 0 else 2,
        lambda x: nm.nonzero(x.reshape(1)),
        lambda x: x.data().__enter__(),
    ],
)
def test_reading_a_value_is_an_error_that_names_the_line(read):
    w = nm.asarray(2.0)
    for f in (lambda x: read(x * 2), lambda x: read(x), lambda x: read(w), lambda x: read(w * x)):
        with pytest.raises(TracingError, match=r"nm\.jit of .*test_jit\.py, line \d+\); "):
            nm.jit(f)(nm.asarray(1.0))
    assert w.item() == 2


def test_numbers_of_the_arguments_cannot_be_read_either():
    for f in (lambda x, n: nm.zeros(n), lambda x, n: 1 if n else x, lambda x, n: x.sum(n)):
        with pytest.raises(TracingError, match="static_argnums"):
            nm.jit(f)(nm.ones((2, 2)), 1)


def test_tensors_that_leave_the_function():
    kept = []
    jitted = nm.jit(lambda x: kept.append(x * 2) or x)
    jitted(nm.ones(2))
    for use in (lambda x: x + 1, lambda x: x.numpy(), nm.eval, nm.jit(lambda x: x + kept[0])):
        with pytest.raises(TracingError, match="left it"):
            use(kept[0])
    with pytest.raises(TracingError, match="left it"):
        nm.jit(lambda x: x + kept[0])(nm.ones(2))


def test_an_error_leaves_everything_as_it_was():
    w, count = leaf([1.0, 2.0]), nm.asarray(0)
    (w * 3).sum().backward()
    nm.random.seed(3)
    state = nm.random.get_state()

    def step(x, fail):
        nonlocal w, count
        count += 1
        (w * x * nm.random.uniform((2,))).sum().backward()
        with nm.no_grad():
            w -= w.grad
            if fail:
                raise RuntimeError("stop")
        w.grad = None

    jitted = nm.jit(step)
    with pytest.raises(RuntimeError, match="stop"):
        jitted(nm.ones(2), True)
    assert nm.is_grad_enabled()
    assert w.tolist() == [1, 2]
    assert w.grad.tolist() == [3, 3]
    assert count.item() == 0
    assert nm.random.get_state() == state
    jitted(nm.ones(2), False)
    assert count.item() == 1


def test_python_runs_only_while_tracing():
    said = []
    jitted = nm.jit(lambda x: said.append(x.shape) or x)
    for _ in range(3):
        jitted(nm.ones(3))
    assert said == [(3,)]


def test_many_structures_are_told_once():
    jitted = nm.jit(lambda x: x + 1)
    for n in range(1, 9):
        jitted(nm.ones(n))
    with pytest.warns(RuntimeWarning, match="9 structures"):
        jitted(nm.ones(9))
    jitted(nm.ones(10))


# -- with other transformations -------------------------------------------------------------------


def test_nested_in_other_transformations():
    x, v = arrays((4, 3), (4, 3))
    f = lambda x: nm.sin(x).sum() * 2 + (x**3).sum()
    inner = nm.jit(f)

    def same(a, b):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)

    for _ in range(2):
        same(nm.grad(inner)(x), nm.grad(f)(x))
        same(nm.jit(nm.grad(f))(x), nm.grad(f)(x))
        same(nm.jit(nm.grad(inner))(x), nm.grad(f)(x))
        same(nm.jit(lambda x: inner(x) + 1)(x), f(x) + 1)
        same(nm.vmap(inner)(x), nm.vmap(f)(x))
        same(nm.jit(nm.vmap(inner))(x), nm.vmap(f)(x))
        same(nm.jvp(inner, (x,), (v,))[1], nm.jvp(f, (x,), (v,))[1])
        same(nm.jit(lambda x, v: nm.jvp(f, (x,), (v,))[1])(x, v), nm.jvp(f, (x,), (v,))[1])
        same(nm.jit(nm.hessian(f))(x[0]), nm.hessian(f)(x[0]))
        same(
            nm.grad(lambda x: nm.grad(inner)(x).sum())(x), nm.grad(lambda x: nm.grad(f)(x).sum())(x)
        )
        same(nm.jit(lambda x, v: nm.linearize(f, x)[1](v))(x, v), nm.jvp(f, (x,), (v,))[1])
        same(nm.jit(nm.grad(nm.checkpoint(f)))(x), nm.grad(f)(x))


def test_results_are_differentiable_by_captured_leaves():
    w = leaf([1.0, 2.0])
    jitted = nm.jit(lambda x: (x * w * w).sum())
    for _ in range(2):
        w.grad = None
        jitted(nm.ones(2)).backward()
        assert w.grad.tolist() == [2, 4]
    with nm.no_grad():
        assert not jitted(nm.ones(2)).requires_grad


def test_computed_tensors_with_a_history():
    w = leaf([1.0, 2.0])
    h = w * 3
    for f in (nm.jit(lambda x: (x * h).sum()), nm.jit(lambda x: (x * x).sum())):
        w.grad = None
        f(h).backward()
        assert w.grad.tolist() == [18, 36]


def test_custom_derivatives_inside():
    @nm.custom_vjp
    def clipped(x):
        return x * 2

    clipped.defvjp(lambda x: (x * 2, x), lambda x, g: (nm.clip(g, -1, 1) * x,))
    f = nm.grad(lambda x: (clipped(x) * 5).sum())
    x = nm.asarray([1.0, 3.0])
    assert nm.jit(f)(x).tolist() == f(x).tolist() == [1, 3]
