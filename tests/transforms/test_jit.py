"""nm.jit: the same values as without, whatever the function reaches, changes and draws."""

import gc

import numpy as np
import pytest
from in_threads import in_threads

import numus as nm
from numus import nn, optim
from numus.errors import TracingError


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [nm.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def counted(f):
    """A function that tells how often Python has run it."""

    def wrapper(*args, **kwargs):
        wrapper.count += 1
        return f(*args, **kwargs)

    wrapper.count = 0
    return wrapper


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
    assert f.count == 5  # by name and by place are two structures
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


# -- what is captured -----------------------------------------------------------------------------


def test_captured_tensors_are_read_at_each_call():
    w = nm.asarray([1.0, 2.0])
    f = counted(lambda x: x * w)
    jitted = nm.jit(f)
    assert jitted(nm.ones(2)).tolist() == [1, 2]
    w += 1
    assert jitted(nm.ones(2)).tolist() == [2, 3]
    with w.data_write() as a:
        a[:] = 7
    assert jitted(nm.ones(2)).tolist() == [7, 7]
    assert f.count == 1


def test_an_argument_is_not_mistaken_for_what_is_captured():
    w = nm.asarray([1.0, 2.0])
    jitted = nm.jit(lambda x: x * w)
    assert jitted(w).tolist() == [1, 4]
    assert jitted(nm.asarray([10.0, 10.0])).tolist() == [10, 20]


def test_a_captured_tensor_that_is_replaced():
    box = {"w": nm.ones(2)}
    f = counted(lambda x: x * box["w"])
    jitted = nm.jit(f)
    assert jitted(nm.ones(2)).tolist() == [1, 1]
    box["w"] = nm.full((2,), 3.0)
    assert jitted(nm.ones(2)).tolist() == [3, 3]
    assert f.count == 1  # the dict is read at each call


def test_two_tensors_on_one_node():
    a = nm.asarray([1.0, 2.0])
    b = a.reshape(2)
    jitted = nm.jit(lambda x: x + 10 * a + 100 * b)
    assert jitted(nm.zeros(2)).tolist() == [110, 220]
    a += 1
    assert jitted(nm.zeros(2)).tolist() == [120, 230]


def test_in_place_changes_are_written_back():
    count, total = nm.asarray(0), nm.zeros(2)

    @nm.jit
    def step(x):
        nonlocal count, total
        count += 1
        total *= 0.5
        total += x
        return total * 2

    for k in range(1, 5):
        before = total.numpy()
        got = step(nm.full((2,), float(k)))
        assert count.item() == k
        np.testing.assert_array_equal(total.numpy(), before * 0.5 + k)
        np.testing.assert_array_equal(got.numpy(), 2 * total.numpy())


def test_changes_of_arguments_are_the_callers():
    f = counted(lambda x, y: x.assign(x * y) + 1)
    jitted = nm.jit(f)
    for k in (2.0, 3.0):
        x = nm.ones(2)
        assert jitted(x, nm.full((2,), k)).tolist() == [k + 1] * 2
        assert x.tolist() == [k] * 2
    assert f.count == 1
    x = nm.full((2,), 3.0)
    assert jitted(x, x).tolist() == [10, 10]  # one tensor, twice
    assert x.tolist() == [9, 9]
    assert f.count == 2


def test_a_changed_tensor_that_is_reached_in_two_ways():
    w = nm.ones(2)

    def step(x):
        nonlocal w
        w += 1
        return x * w

    jitted = nm.jit(step)
    assert jitted(nm.ones(2)).tolist() == [2, 2]
    assert jitted(w).tolist() == [9, 9]
    assert w.tolist() == [3, 3]


def test_a_tensor_that_is_written_and_never_read():
    w = nm.zeros(3)
    jitted = nm.jit(lambda: w.assign(nm.random.uniform((3,))))
    jitted()
    first = w.tolist()
    jitted()
    assert w.tolist() != first


def test_old_values_are_kept_by_those_who_hold_them():
    w = nm.asarray([1.0, 2.0])

    @nm.jit
    def step():
        nonlocal w
        w += 1

    pending, view, seen = w * 10, w[:1], w.detach()
    with w.data() as lent:
        step()
        step()
        assert lent.tolist() == [1, 2]
    assert w.tolist() == [3, 4]
    assert pending.tolist() == [10, 20]
    assert view.tolist() == [1]
    assert seen.tolist() == [1, 2]


def leaf(values):
    return nm.asarray(values, requires_grad=True)


@pytest.mark.parametrize("clear", ["none", "before", "after"])
def test_a_training_step(clear):
    def train(wrap):
        w, b = leaf([[0.1, -0.2], [0.3, 0.4], [0.5, -0.6]]), leaf([0.0, 0.0])
        m = [nm.zeros_like(w), nm.zeros_like(b)]

        def step(x, y, lr):
            if clear == "before":
                w.grad = b.grad = None
            loss = ((nm.tanh(x @ w + b) - y) ** 2).mean()
            loss.backward()
            with nm.no_grad():
                for p, s in zip((w, b), m, strict=True):
                    s *= 0.9
                    s += p.grad
                    p -= lr * s
            if clear == "after":
                w.grad = b.grad = None
            return loss

        step = counted(step)
        run = wrap(step)
        losses = []
        for i in range(6):
            x, y = arrays((5, 3), (5, 2), seed=i)
            losses.append(run(x, y, 0.1 / (i + 1)).item())
        grads = [None if p.grad is None else p.grad.numpy() for p in (w, b)]
        return losses, w.numpy(), b.numpy(), grads, step.count, w

    plain, jitted = train(lambda f: f), train(nm.jit)
    np.testing.assert_allclose(plain[0], jitted[0], rtol=1e-6)
    np.testing.assert_allclose(plain[1], jitted[1], rtol=1e-5)
    np.testing.assert_allclose(plain[2], jitted[2], rtol=1e-5)
    assert jitted[4] == (2 if clear == "none" else 1)
    assert jitted[5].requires_grad
    assert jitted[5].is_leaf
    for a, b in zip(plain[3], jitted[3], strict=True):
        if clear == "after":
            assert a is None
            assert b is None
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4)


def test_gradients_changed_in_place():
    def train(wrap):
        w = leaf([1.0, 2.0])
        others = []

        def step(x):
            (w * x).sum().backward()
            w.grad *= 0.5
            return w.grad.sum()

        run = wrap(step)
        for i in range(3):
            others.append(run(nm.full((2,), float(i))).item())
        return others, w.grad.tolist()

    assert train(lambda f: f) == train(nm.jit)


def test_leaves_among_the_arguments():
    @nm.jit
    def step(w, x):
        (w * x).sum().backward()
        return (w * x).sum().detach()

    for _ in range(2):
        w = leaf([1.0, 2.0])
        assert step(w, nm.asarray([3.0, 4.0])).item() == 11
        assert w.grad.tolist() == [3, 4]


def test_autograd_grad_of_a_captured_leaf():
    w = leaf([1.0, 2.0])
    jitted = nm.jit(lambda x: nm.autograd.grad((w * w * x).sum(), [w])[0])
    for k in (1.0, 2.0):
        assert jitted(nm.full((2,), k)).tolist() == [2 * k, 4 * k]
    assert w.grad is None


def test_random_draws_are_those_of_plain_calls():
    def f(x):
        return x + nm.random.normal((3,)), nm.random.uniform((2,))

    runs = []
    for g in (f, nm.jit(f)):
        nm.random.seed(5)
        runs.append([[y.tolist() for y in g(nm.zeros(3))] for _ in range(3)])
        runs.append(nm.random.get_state())
    assert runs[0] == runs[2]
    assert runs[1] == runs[3]
    assert runs[0][0] != runs[0][1]
    with pytest.raises(TracingError, match="outside"):
        nm.jit(lambda: nm.random.seed(0))()


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


# -- memory and the log ---------------------------------------------------------------------------


IN_PLACE = nm.device().on_host  # kernels of GPUs write beside what they read


def address(x):
    return x._node.view.storage.memory.address


def test_tensors_that_only_the_function_knows_are_changed_in_place():
    w, m = nm.asarray(np.ones(1000, np.float32)), nm.asarray(np.zeros(1000, np.float32))

    @nm.jit
    def step(g):
        nonlocal w, m
        m *= 0.5
        m += g
        w -= 0.1 * m

    g = arrays((1000,))[0]
    want_w, want_m = w.numpy(), m.numpy()
    for k in range(4):
        step(g)
        if k == 0:  # the trace has made new ones
            places = address(w), address(m)
        want_m = want_m * np.float32(0.5) + g.numpy()
        want_w = want_w - np.float32(0.1) * want_m
        np.testing.assert_allclose(w.numpy(), want_w, rtol=1e-6)
        np.testing.assert_allclose(m.numpy(), want_m, rtol=1e-6)
        assert not IN_PLACE or (address(w), address(m)) == places
    held = w.detach()
    before = held.numpy()
    step(g)
    np.testing.assert_array_equal(held.numpy(), before)
    assert not IN_PLACE or address(m) == places[1]


def test_values_of_the_first_call_are_let_go():
    w = nm.asarray(np.ones(1 << 20, np.float32))

    @nm.jit
    def step(x):
        nonlocal w
        w += x

    x = nm.ones(())
    nm.eval(x)
    gc.collect()
    before = nm.memory_stats()["in_use"]
    for _ in range(3):
        step(x)
    gc.collect()
    assert nm.memory_stats()["in_use"] < before + (1 << 20)


def test_what_is_read_elsewhere_is_not_overwritten():
    w = nm.asarray(np.arange(6.0).reshape(2, 3), dtype=nm.float32)

    @nm.jit
    def shift(x):
        nonlocal w
        w += nm.roll(w, 1, axis=1) * x  # each element is read for two

    want = w.numpy()
    for _ in range(3):
        shift(nm.ones(()))
        want = want + np.roll(want, 1, axis=1)
        np.testing.assert_array_equal(w.numpy(), want)

    v = nm.asarray(np.arange(9.0).reshape(3, 3), dtype=nm.float32)

    @nm.jit
    def turn():
        nonlocal v
        old = v + 0
        v += v.T
        return old @ old + v.sum(0)

    want = v.numpy()
    got = turn()
    np.testing.assert_array_equal(got.numpy(), want @ want + (want + want.T).sum(0))
    np.testing.assert_array_equal(v.numpy(), want + want.T)


def test_donated_arguments():
    jitted = nm.jit(lambda p, g: (p - 0.1 * g, g.sum()), donate=0)
    g = nm.ones(1000)
    p = nm.asarray(np.ones(1000, np.float32))
    place = address(p)
    for k in range(3):
        q, _ = jitted(p, g)
        assert not IN_PLACE or address(q) == place
        np.testing.assert_allclose(q.numpy(), 1 - 0.1 * (k + 1), rtol=1e-6)
        for use in (lambda x: x + 1, lambda x: x.numpy()):
            with pytest.raises(TracingError, match="donated"):
                use(p)
        p = q
    kept = p.detach()
    q, _ = jitted(p, g)
    np.testing.assert_allclose(kept.numpy(), 0.7, rtol=1e-6)
    assert q.shape == (1000,)


def test_the_log_says_why_a_function_was_traced_again():
    box = {"w": nm.ones(2)}
    jitted = nm.jit(lambda x, flag=False: x * box["w"].sum())
    jitted(nm.ones(3))
    jitted(nm.ones(4))
    jitted(nm.ones(4), True)
    box["w"] = nm.zeros(3)
    jitted(nm.ones(4))
    notes = [r.notes[0] for r in nm.compile_log() if r.cause == "traced"][-4:]
    assert notes[0] == "the first call"
    device = nm.device()
    assert notes[1] == f"argument 0: float32[4] on {device} where float32[3] on {device} was"
    assert "the arguments differ" in notes[2]
    assert "captured" in notes[3]


def test_explain_shows_the_program_and_its_memory():
    jitted = nm.jit(lambda x: nm.softmax(x @ x, axis=-1))
    found = nm.explain(jitted, nm.ones((32, 32)))
    assert len(found.programs) == 1
    assert found.peak_bytes >= 32 * 32 * 4


# -- many calls -----------------------------------------------------------------------------------


def test_many_calls_hold_no_memory_and_give_the_same_bits():
    x = arrays((64,))[0]
    total = nm.zeros(64)

    @nm.jit
    def f(x):
        nonlocal total
        total += x
        return nm.sin(x) * 2 + x.sum()

    first = f(x).numpy()
    in_use = nm.memory_stats()["in_use"]
    objects = len(gc.get_objects())
    for _ in range(20_000):
        y = f(x)
    np.testing.assert_array_equal(y.numpy(), first)
    assert nm.memory_stats()["in_use"] <= in_use + 4096
    assert len(gc.get_objects()) < objects + 1000


# -- threads --------------------------------------------------------------------------------------


def test_calls_from_several_threads():
    w, total = nm.asarray([1.0, 2.0]), nm.zeros(2)

    @nm.jit
    def f(x, y):
        nonlocal total
        total += x
        return (x * w + y).sum()

    def work(k):
        for i in range(40):
            x = nm.full((2,), float(k + i))
            got = f(x, nm.ones(2 + 0 * k)).item()
            assert got == (k + i) * 3 + 2

    in_threads(work, 4)
    assert total.tolist() == [sum(k + i for k in range(4) for i in range(40))] * 2


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_drops_gradients_serves_with_and_without_them(first):
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = nm.ones((4, 3))
    traces = []

    @nm.jit
    def step(x):
        traces.append(1)
        if first:
            optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if not first:
            model.zero_grad()
        return loss

    for _ in range(3):
        step(x)
    assert len(traces) == 1
    assert (model.weight.grad is None) is not first


def test_a_gradient_that_is_dropped_goes_though_there_was_none_at_first():
    w = nm.ones(3).requires_grad_()

    @nm.jit
    def forget(x):
        w.grad = None
        return x + w.detach()

    forget(nm.ones(3))
    w.grad = nm.ones(3)
    forget(nm.ones(3))
    assert w.grad is None
