"""Loops and branches in the graph, against the same written out in Python."""

import derivatives
import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.errors import GradientError, ShapeError, TracingError
from numus.runtime.cpu.launch import CpuLaunchList
from numus.transforms.control import body as bodies


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [nm.asarray(rng.standard_normal(shape)) for shape in shapes]


def same(found, wanted):
    found, wanted = nm.tree.leaves(found), nm.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11)


def plain_scan(f, init, xs, reverse=False):
    n = nm.tree.leaves(xs)[0].shape[0]
    ys = []
    for i in reversed(range(n)) if reverse else range(n):
        init, y = f(init, nm.tree.map(lambda x, i=i: x[i], xs))
        ys.append(y)
    if reverse:
        ys.reverse()
    return init, nm.tree.map(lambda *rows: nm.stack(rows), *ys)


# -- scan -----------------------------------------------------------------------------------------


def cell(w):
    """A step whose state has several leaves, one of them an integer."""

    def step(carry, x):
        h, count = carry
        h = nm.tanh(h @ w + x["a"] * x["b"])
        return (h, count + 1), {"h": h * 2, "n": count}

    return step


def cell_inputs():
    w, h, a, b = arrays((3, 3), (3,), (6, 3), (6, 1))
    return w, (h, nm.asarray(0)), {"a": a, "b": b}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_scan(wrap, reverse, device):
    before = nm.default_device()
    nm.set_default_device(device)
    try:
        w, init, xs = cell_inputs()
        found = wrap(lambda w, init, xs: nm.scan(cell(w), init, xs, reverse=reverse))
        same(found(w, init, xs), plain_scan(cell(w), init, xs, reverse))
        same(found(2 * w, init, xs), plain_scan(cell(2 * w), init, xs, reverse))
    finally:
        nm.set_default_device(before)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
def test_scan_derivatives(wrap, reverse):
    w, (h, count), xs = cell_inputs()

    def loss(scan):
        def f(w, h, a, b):
            (last, _), ys = scan(cell(w), (h, count), {"a": a, "b": b}, reverse=reverse)
            return (ys["h"] ** 2).sum() + last.sum() + (last * h).sum()

        return f

    args = (w, h, xs["a"], xs["b"])
    every = (0, 1, 2, 3)
    ours, theirs = loss(nm.scan), loss(plain_scan)
    same(wrap(nm.grad(ours, every))(*args), nm.grad(theirs, every)(*args))
    along = lambda f: lambda *args: nm.jvp(f, args, args[::-1][:0] + args)[1]
    same(wrap(along(ours))(*args), along(theirs)(*args))

    def second(f):
        return nm.grad(lambda *a: sum((g * g).sum() for g in nm.grad(f, every)(*a)), every)

    same(wrap(second(ours))(*args), second(theirs)(*args))
    mixed = lambda f: lambda *a: nm.jvp(nm.grad(f, every), a, a)[1]
    same(wrap(mixed(ours))(*args), mixed(theirs)(*args))


def test_scan_against_differences():
    w, (h, _), xs = cell_inputs()

    def f(w, h, a):
        _, ys = nm.scan(lambda c, x: (nm.sin(c @ w) + x, c * x), h, a)
        return ys

    derivatives.check(f, w.numpy(), h.numpy(), xs["a"].numpy(), step=1e-5, rtol=1e-6, atol=1e-8)


def test_scan_vmap():
    w, (h, count), _ = cell_inputs()
    a, b = arrays((4, 6, 3), (4, 6, 1))

    def run(scan):
        return lambda a, b: scan(cell(w), (h, count), {"a": a, "b": b})

    same(nm.vmap(run(nm.scan))(a, b), nm.vmap(run(plain_scan))(a, b))
    partly = nm.vmap(run(nm.scan), in_axes=(0, None))
    same(partly(a, b[0]), nm.vmap(run(plain_scan))(a, b * 0 + b[0]))
    loss = lambda scan: nm.grad(lambda a, b: (run(scan)(a, b)[1]["h"] ** 2).sum(), (0, 1))
    same(nm.vmap(loss(nm.scan))(a, b), nm.vmap(loss(plain_scan))(a, b))
    same(nm.jit(nm.vmap(loss(nm.scan)))(a, b), nm.vmap(loss(plain_scan))(a, b))

    def batched(scan):
        def f(w):
            one = lambda a, b: scan(cell(w), (h, count), {"a": a, "b": b})[1]["h"]
            return (nm.vmap(one)(a, b) ** 2).sum()

        return nm.grad(f)(w)

    same(batched(nm.scan), batched(plain_scan))


def test_scan_on_the_tape():
    w = nm.asarray([[0.5, 0.1], [0.2, 0.3]], requires_grad=True)
    xs = arrays((5, 2))[0].astype(nm.float32)
    grads = []
    for scan in (nm.scan, plain_scan):
        w.grad = None
        scan(lambda c, x: (nm.tanh(c @ w + x), None), nm.zeros(2), xs)[0].sum().backward()
        grads.append(w.grad.numpy())
    np.testing.assert_allclose(*grads, rtol=1e-5)


def test_scan_edges():
    c, ys = nm.scan(lambda c, x: (c + x, c), nm.zeros(2), nm.zeros((0, 2)))
    assert c.tolist() == [0, 0]
    assert ys.shape == (0, 2)
    c, ys = nm.scan(lambda c, _: (c * 2, None), 1, length=10)
    assert c.item() == 1024
    assert ys is None
    c, ys = nm.scan(lambda c, x: (c + x, (c, c, x)), 0.0, nm.arange(4, dtype=nm.float64))
    assert c.dtype is nm.float64  # a Python number takes the loop's dtype
    assert [y.tolist() for y in ys] == [[0, 0, 1, 3], [0, 0, 1, 3], [0, 1, 2, 3]]
    swapped, _ = nm.scan(lambda c, x: ((c[1], c[0]), None), (nm.zeros(1), nm.ones(1)), length=3)
    assert [s.item() for s in swapped] == [1, 0]
    strided = nm.asarray(np.arange(12.0).reshape(3, 4)).T
    total, _ = nm.scan(lambda c, x: (c + x, None), nm.zeros(3, dtype=nm.float64), strided)
    assert total.tolist() == [6, 22, 38]
    nested = nm.scan(
        lambda c, x: (nm.scan(lambda a, b: (a + b, None), c, x)[0], c), 0.0, nm.ones((3, 4))
    )
    assert nested[0].item() == 12
    assert nested[1].tolist() == [0, 4, 8]
    assert nm.fori_loop(2, 5, lambda i, x: x * i, nm.asarray(1)).item() == 24
    assert nm.fori_loop(5, 2, lambda i, x: x * i, nm.asarray(1)).item() == 1


def test_scan_errors():
    x = nm.ones((3, 2))
    with pytest.raises(TypeError, match="must return"):
        nm.scan(lambda c, x: c, 0.0, x)
    with pytest.raises(ShapeError, match=r"the carry is float32\[2\], but has to be float32\[\]"):
        nm.scan(lambda c, x: (c + x, None), nm.asarray(0.0), x)
    with pytest.raises(ShapeError, match=r"xs\[1\] has 4 slices"):
        nm.scan(lambda c, x: (c, None), 0.0, (x, nm.ones(4)))
    with pytest.raises(ShapeError, match="give the length"):
        nm.scan(lambda c, x: (c, None), 0.0)
    with pytest.raises(ValueError, match="changes its structure"):
        nm.scan(lambda c, x: ((c, c), None), 0.0, x)
    with pytest.raises(TracingError, match="scan"):
        nm.scan(lambda c, x: (c if x.sum() > 0 else x, None), 0.0, x)


@pytest.mark.on_cpu("loops in native code")
def test_a_long_scan_stays_out_of_python(monkeypatch):
    counts = []
    repeat = CpuLaunchList.repeat

    def counted(self, values, addresses, count, *rest):
        counts.append(count)
        return repeat(self, values, addresses, count, *rest)

    monkeypatch.setattr(CpuLaunchList, "repeat", counted)
    w, h, xs = arrays((3, 3), (3,), (10_000, 3))
    run = nm.jit(lambda xs: nm.scan(lambda h, x: (nm.tanh(h @ w + x), h.sum()), h, xs))
    for _ in range(2):
        nm.eval(run(xs))
    assert counts == [10_000] * 2  # all steps in one native call


# -- while_loop -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_while_loop(wrap, device):
    before = nm.default_device()
    nm.set_default_device(device)
    try:
        limit = nm.asarray(100.0)

        def run(x):
            return nm.while_loop(
                lambda s: s["x"].sum() < limit, lambda s: {"x": s["x"] * 2, "n": s["n"] + 1}, x
            )

        for start, count in ((1.0, 6), (60.0, 0), (30.0, 1)):
            found = wrap(run)({"x": nm.full((2,), start), "n": nm.asarray(0)})
            assert found["n"].item() == count
            assert found["x"].tolist() == [start * 2**count] * 2
    finally:
        nm.set_default_device(before)


def test_states_written_by_index():
    """They stay in their memory; what reads the state before is computed first."""

    def body(c):
        i, x, total = c
        old = (x * x).sum()
        return i + 1, nm.index_copy(x, 0, i.reshape(1), (x[0] + old)[None]), total + old

    def plain(n):
        x, total = np.ones((5, 300)), 0.0
        for i in range(n):
            old = (x * x).sum()
            x[i], total = x[0] + old, total + old
        return x, total

    x = nm.ones((5, 300), dtype=nm.float64)
    for n in (0, 1, 2, 3):
        start = (nm.asarray(0), x, nm.asarray(0.0, dtype=nm.float64))
        _, found, total = nm.while_loop(lambda c, n=n: c[0] < n, body, start)
        wanted = plain(n)
        np.testing.assert_allclose(found.numpy(), wanted[0], rtol=1e-12)
        np.testing.assert_allclose(total.item(), wanted[1], rtol=1e-12)
    assert (x.numpy() == 1).all()

    def outer(c):  # a loop in a loop: the inner one takes the memory of what was made for it
        k, y = c
        inner = nm.while_loop(lambda c: c[0] < 3, body, (nm.zeros_like(k), y / y.max(), y.sum()))
        return k + 1, inner[1]

    found = nm.while_loop(lambda c: c[0] < 2, outer, (nm.asarray(0), x))[1].numpy()
    wanted = np.ones((5, 300))
    for _ in range(2):
        wanted = wanted / wanted.max()
        for i in range(3):
            wanted[i] = wanted[0] + (wanted * wanted).sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_while_loop_forward_mode_and_vmap():
    f = lambda x: nm.while_loop(lambda x: x < 100, lambda x: x * x + 1, x)
    x = nm.asarray(2.0, dtype=nm.float64)
    value, slope = nm.jvp(f, (x,), (nm.ones_like(x),))
    assert value.item() == 677
    assert slope.item() == 2 * 26 * 2 * 5 * 2 * 2
    starts = nm.asarray([2.0, 1000.0, 0.0, 9.0], dtype=nm.float64)
    wanted = [f(s).item() for s in starts]
    assert nm.vmap(f)(starts).tolist() == wanted
    assert nm.jit(nm.vmap(f))(starts).tolist() == wanted
    slopes = nm.vmap(lambda x: nm.jvp(f, (x,), (nm.ones_like(x),))[1])(starts)
    assert slopes.tolist() == [nm.jvp(f, (s,), (nm.ones_like(s),))[1].item() for s in starts]
    with pytest.raises(GradientError, match="scan"):
        nm.grad(f)(x)


def test_while_loop_errors():
    with pytest.raises(ShapeError, match="one bool"):
        nm.while_loop(lambda x: x, lambda x: x, nm.ones(2))
    with pytest.raises(ShapeError, match="has to be"):
        nm.while_loop(lambda x: x.sum() > 0, lambda x: x.sum(), nm.ones(2))


# -- cond -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_cond(wrap, device):
    before = nm.default_device()
    nm.set_default_device(device)
    try:
        w = nm.asarray([1.0, 2.0])
        f = wrap(lambda p, x: nm.cond(p, lambda x: (x * w, x), lambda x: (x - w, x.sum() + x), x))
        for p in (True, False):
            x = nm.asarray([3.0, 4.0])
            found = f(nm.asarray(p), x)
            wanted = (x * w, x) if p else (x - w, x.sum() + x)
            same(found, wanted)
    finally:
        nm.set_default_device(before)


@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
def test_cond_derivatives(wrap):
    w, x = arrays((3,), (3,))

    def f(w, x):
        squared = lambda x: (x * x * w * w).sum()
        return nm.cond(x[0] > 0, lambda x: (nm.sin(x) * w).sum(), squared, x)

    def plain(w, x):
        return (nm.sin(x) * w).sum() if x[0] > 0 else (x * x * w * w).sum()

    every = (0, 1)
    second = lambda f: nm.grad(lambda *a: sum((g * g).sum() for g in nm.grad(f, every)(*a)), every)
    for sign in (1, -1):
        v = x.abs() * sign
        same(wrap(nm.grad(f, every))(w, v), nm.grad(plain, every)(w, v))
        same(
            wrap(lambda w, v: nm.jvp(f, (w, v), (v, w))[1])(w, v),
            nm.jvp(plain, (w, v), (v, w))[1],
        )
        same(wrap(second(f))(w, v), second(plain)(w, v))


def test_cond_takes_views_itself():
    """A weight that a branch reads transposed is not copied to be handed over."""
    w, x = arrays((3, 3), (2, 3))

    def body(w, x):
        constants = []
        real = bodies.behind_views
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bodies, "behind_views", lambda c: constants.append(real(c)) or real(c))
            y = nm.cond(x[0, 0] > 9, lambda x: -x, lambda x: x @ w.T, x)
        assert constants[1] == [w._node]
        return y

    same(nm.jit(body)(w, x), x @ w.T)
    every = (0, 1)
    slopes = nm.jit(nm.grad(lambda w, x: body(w, x).sum(), every))(w, x)
    same(slopes, nm.grad(lambda w, x: (x @ w.T).sum(), every)(w, x))


def test_cond_vmap():
    x, w = arrays((4, 3), (3,))
    p = nm.asarray([True, False, True, False])

    def f(p, x):
        return nm.cond(p, lambda x: nm.sin(x) * w, lambda x: x * x, x)

    wanted = nm.where(p[:, None], nm.sin(x) * w, x * x)
    same(nm.vmap(f)(p, x), wanted)
    same(nm.jit(nm.vmap(f))(p, x), wanted)
    same(nm.vmap(f, in_axes=(None, 0))(p[1], x), x * x)
    slope = nm.vmap(nm.grad(lambda x, p: f(p, x).sum()))(x, p)
    same(slope, nm.where(p[:, None], nm.cos(x) * w, 2 * x))


def test_cond_runs_one_branch():
    x = nm.ones(2)
    count = lambda p: nm.cond(
        p, lambda x: x, lambda x: nm.while_loop(lambda x: x.sum() > 0, lambda x: x, x), x
    )
    assert count(nm.asarray(True)).tolist() == [1, 1]  # the other one would never end


def test_cond_errors():
    x = nm.ones(2)
    assert nm.cond(True, lambda x: x, None, x) is x
    with pytest.raises(ShapeError, match="must have no axes"):
        nm.cond(x > 0, lambda x: x, lambda x: x, x)
    with pytest.raises(ShapeError, match=r"float32\[2\] where true, float32\[\] where false"):
        nm.cond(nm.asarray(True), lambda x: x, lambda x: x.sum(), x)
    with pytest.raises(ValueError, match="structures"):
        nm.cond(nm.asarray(True), lambda x: x, lambda x: (x, x), x)


def test_training_through_a_scan_inside_jit():
    w = nm.asarray(np.eye(2, dtype=np.float32) * 0.5, requires_grad=True)
    plain_w = nm.asarray(w.numpy(), requires_grad=True)

    def step(w, scan, xs):
        last, _ = scan(lambda h, x: (nm.tanh(h @ w + x), None), nm.zeros(2), xs)
        loss = (last**2).sum()
        loss.backward()
        with nm.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
        return loss

    jitted = nm.jit(lambda xs: step(w, nm.scan, xs))
    for seed in range(3):
        xs = arrays((5, 2), seed=seed)[0].astype(nm.float32)
        found, wanted = jitted(xs), step(plain_w, plain_scan, xs)
        np.testing.assert_allclose(found.item(), wanted.item(), rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), plain_w.numpy(), rtol=1e-5)


def test_explain_shows_bodies():
    w, h, xs = arrays((3, 3), (3,), (20, 3))
    f = lambda: nm.scan(lambda h, x: (nm.tanh(h @ w + x), h.sum()), h, xs)
    for found in (nm.explain(f), nm.explain(nm.jit(f))):
        assert any("tanh" in kernel.fused for kernel in found.kernels)


# -- associative_scan -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 13])
def test_associative_scan(n):
    x = arrays((n, 2))[0]
    same(nm.associative_scan(nm.add, x), nm.cumulative_sum(x, axis=0))
    flipped = nm.flip(nm.cumulative_sum(nm.flip(x, axis=0), axis=0), axis=0)
    same(nm.associative_scan(nm.add, x, reverse=True), flipped)
    same(nm.associative_scan(nm.add, x.T, axis=1), nm.cumulative_sum(x, axis=0).T)
    a, b = arrays((n,), (n,))
    combine = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])
    _, states = nm.associative_scan(combine, (a, b))
    _, wanted = nm.scan(lambda h, x: (x[0] * h + x[1],) * 2, nm.zeros((), dtype=nm.float64), (a, b))
    same(states, wanted)


# -- surroundings of bodies -----------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
def test_draws_inside_a_loop_are_others_at_each_turn(wrap):
    def walk():
        return nm.scan(lambda c, _: (c, nm.random.normal((3,))), 0.0, None, length=50)[1]

    nm.random.seed(1)
    found = wrap(walk)().numpy()
    assert len(np.unique(found)) == 150
    assert abs(found.mean()) < 0.3
    nm.random.seed(1)
    np.testing.assert_array_equal(walk().numpy(), found)

    def until():
        body = lambda s: (s[0] + 1, s[1] + nm.random.uniform(()))
        return nm.while_loop(lambda s: s[0] < 100, body, (0, 0.0))[1]

    assert 30 < wrap(until)().item() < 70


def test_a_loop_with_draws_is_differentiable():
    def noisy(w):
        step = lambda c, _: (c * w + nm.random.normal((), dtype=nm.float64), c)
        return nm.scan(step, nm.asarray(1.0, dtype=nm.float64), None, length=5)[0]

    def value(w):
        nm.random.seed(3)
        return noisy(nm.asarray(w, dtype=nm.float64))

    nm.random.seed(3)
    slope = nm.grad(noisy)(nm.asarray(0.7, dtype=nm.float64)).item()
    numeric = (value(0.7 + 1e-6).item() - value(0.7 - 1e-6).item()) / 2e-6
    assert slope == pytest.approx(numeric, rel=1e-6)


IN_PLACE = {
    "scan": lambda w, x: nm.scan(lambda c, x: (c, w.__iadd__(x)), 0.0, x),
    "while_loop": lambda w, x: nm.while_loop(lambda c: c < 3, lambda c: c + w.__iadd__(1)[0], 0.0),
    "cond": lambda w, x: nm.cond(nm.asarray(True), lambda: w.__iadd__(1), lambda: w * 1),
    "vmap": lambda w, x: nm.vmap(lambda x: w.__iadd__(x))(x),
}  # fmt: skip


@pytest.mark.parametrize("wrap", [lambda f: f, nm.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_tensors_from_outside_are_not_changed_by_a_body(name, wrap):
    w = nm.ones(3)
    with pytest.raises(TracingError, match=f"{name}: the function changes a tensor in place"):
        wrap(lambda x: IN_PLACE[name](w, x))(nm.ones((2, 3)))
    assert w.tolist() == [1, 1, 1]


def test_gradients_of_tensors_outside_are_not_written_by_a_body():
    w = nm.ones(3, requires_grad=True)

    def step(c, x):
        (w * x).sum().backward()
        return c, x

    with pytest.raises(TracingError, match=r"the \.grad of a tensor"):
        nm.scan(step, 0.0, nm.ones((2, 3)))
    assert w.grad is None


@pytest.mark.parametrize("outer", [lambda f: f, nm.vmap], ids=["scan", "vmap of it"])
def test_tensors_made_inside_a_body_may_be_changed_there(outer):
    base = nm.ones(3)

    def step(c, x):
        same, fresh = base.copy(), nm.zeros(3)
        same += x
        fresh[0] = x
        c += 1
        return c, (same + fresh).sum()

    found = outer(lambda x: nm.scan(step, 0.0, x)[1])(
        nm.ones((2, 2)) if outer is nm.vmap else nm.ones(2)
    )
    assert np.unique(found.numpy()).tolist() == [7]
    assert base.tolist() == [1, 1, 1]


def test_bounds_of_a_loop_may_be_known_only_at_the_call():
    total = nm.jit(lambda n: nm.fori_loop(1, n, lambda i, c: c + i, 0))
    assert [total(5).item(), total(1).item(), total(nm.asarray(4)).item()] == [10, 0, 6]


def _layers(w, u, b, xs, h):
    """A recurrence whose constants take part as matrices, turned over or not, and as sums."""

    def step(h, x):
        h = nm.tanh(x @ u + h @ w.T + b)
        return h, (h, (h * b).sum())

    h, (hs, sums) = nm.scan(step, h, xs)
    return (hs * hs).sum() + h.sum() + sums.sum()


def _unrolled(w, u, b, xs, h):
    total = 0.0
    for x in nm.unstack(xs):
        h = nm.tanh(x @ u + h @ w.T + b)
        total = total + (h * h).sum() + (h * b).sum()
    return total + h.sum()


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_gradients_of_a_loops_weights_are_summed_after_it(rows):
    rng = np.random.default_rng(rows)
    shapes = [(20, 20), (5, 20), (20,), (7, rows, 5), (rows, 20)]
    args = [nm.asarray(rng.standard_normal(s) * 0.3) for s in shapes]
    places = tuple(range(5))
    expected = nm.grad(_unrolled, argnums=places)(*args)
    for found in (
        nm.grad(_layers, argnums=places)(*args),
        nm.jit(nm.grad(_layers, argnums=places))(*args),
    ):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11)
    v = [nm.asarray(rng.standard_normal(s)) for s in shapes]
    twice = [
        nm.grad(lambda w, f=f: (nm.grad(f)(w, *args[1:]) * v[0]).sum())(args[0])
        for f in (_layers, _unrolled)
    ]
    np.testing.assert_allclose(twice[0].numpy(), twice[1].numpy(), rtol=1e-8, atol=1e-10)
    tangents = [nm.jvp(f, tuple(args), tuple(v))[1].item() for f in (_layers, _unrolled)]
    assert tangents[0] == pytest.approx(tangents[1], rel=1e-9)
    many = nm.stack([args[0], args[0] * 0.5])
    each = nm.vmap(lambda w: nm.grad(_layers)(w, *args[1:]))(many)
    for i in range(2):
        one = nm.grad(_unrolled)(many[i], *args[1:])
        np.testing.assert_allclose(each[i].numpy(), one.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.on_cpu("about which kernels a loop on the CPU has")
def test_a_loops_way_back_has_one_product():
    w, xs = nm.ones((32, 32)) / 64, nm.ones((6, 16, 32))
    nm.eval(w, xs)

    def loss(w):
        return nm.scan(lambda h, x: (nm.tanh(x + h @ w),) * 2, xs[0], xs)[0].sum()

    shown = str(nm.explain(nm.grad(loss), w))
    loops = [part for part in shown.split(" kernel") if "tanh" in part]
    # the product of the way there is kept, that for the weights comes after the loop
    assert [part.count("gemm ") for part in loops] == [1, 1]


@pytest.mark.on_cpu("about memory on the CPU")
def test_memory_between_loops_goes_back():
    runtime = nm.device("cpu").runtime
    xs = nm.ones((64, 4096))
    nm.eval(xs)

    @nm.jit
    def chain(xs):
        for _ in range(6):  # each loop's rows are read by the next one alone
            xs = nm.scan(lambda c, x: (c + x, c * x), xs[0], xs)[1]
        return xs.sum()

    chain(xs).item()
    before = runtime.memory.in_use
    runtime.memory.peak = before
    chain(xs).item()
    rows = xs.nbytes
    assert runtime.memory.peak - before < 4 * rows


# -- devices --------------------------------------------------------------------------------------


def on_device(place):
    """Loops and branches whose operands are on a device, and zeros at home on every one."""
    x = nm.asarray(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), device=place)
    w = nm.asarray(np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4), device=place)

    def scanned(x):
        first = nm.zeros(4, device=place)
        return nm.scan(lambda c, r: (nm.tanh(c @ w + r), c.sum()), first, x)[0].sum()

    def branched(x):
        return nm.cond(x.sum() > 5, lambda x: x * 2, lambda x: (x * x).sum() + 0 * x, x).sum()

    def looped(x):
        found = nm.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ w), (0, x))
        return found[1]

    yield looped(x)
    for f in (scanned, branched):
        yield f(x)
        yield nm.grad(f)(x)
        yield nm.jvp(f, (x,), (x * 0.1,))[1]
        yield nm.vmap(f)(nm.stack([x, x + 1]))


def test_operands_on_a_device_that_is_not_the_default():
    """Zeros that derivatives begin with are evaluated where the loop runs."""
    simt_machine.install()
    for want, found in zip(on_device("cpu"), on_device("simt"), strict=True):
        assert found.device == "simt"
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


def test_derivatives_that_are_constant_are_where_their_tensors_are():
    simt_machine.install()
    x = nm.asarray(np.ones((2, 3), np.float32), device="simt").requires_grad_()
    x.sum().backward()
    found = [
        *(x.grad, nm.grad(lambda x: x.sum())(x), nm.grad(lambda x: nm.round(x).sum())(x)),
        *(nm.linearize(lambda x: nm.sin(x * 2.0), x)[1](x), nm.imag(x)),
        *(nm.jvp(lambda x: nm.round(x), (x,), (x,))[1], nm.jacrev(lambda x: x[0] * 2)(x)),
        nm.vjp(lambda x: x.T, x)[1](nm.ones((3, 2), device="simt"))[0],
    ]
    for g in found:
        nm.eval(g)
        assert g.device == "simt"
    assert (x - found[0]).numpy().tolist() == [[0, 0, 0]] * 2


def orbit(loop):
    """A loop over short vectors with slices, concatenation, sums and a product of matrices."""
    turn = nm.asarray([[0.9, -0.1, 0.0], [0.1, 0.9, 0.0], [0.0, 0.2, 0.5]])

    def step(y, scale):
        moved = nm.stack([y[1] - y[0], y[0] * y[2], nm.sin(y[2])])
        return turn @ (y + 0.1 * scale * moved) / (1 + nm.sum(y * y))

    if loop == "scan":
        return lambda y, s: nm.scan(lambda c, x: (step(c, s), c[1:] * x), y, nm.arange(3.0))
    return lambda y, s: nm.while_loop(lambda c: nm.sum(c * c) > s[0], lambda c: step(c, s), y)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_the_axis_of_a_batch_of_short_vectors_is_innermost(loop):
    y, scale = nm.random.normal((20, 3)), 0.1 + 0.01 * nm.arange(60.0).reshape(20, 3)
    f = orbit(loop)
    whole = nm.tree.leaves(nm.vmap(f)(y, scale))
    each = [nm.tree.leaves(f(y[i], scale[i])) for i in range(20)]
    for found, *rows in zip(whole, *each, strict=True):
        assert nm.allclose(found, nm.stack(rows), rtol=1e-5, atol=1e-6)
    shared = nm.vmap(f, in_axes=(0, None))(y, scale[0])
    assert nm.allclose(
        nm.tree.leaves(shared)[0][7], nm.tree.leaves(f(y[7], scale[0]))[0], atol=1e-6
    )
    pairs = nm.vmap(nm.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(y, scale[:17])
    assert nm.allclose(
        nm.tree.leaves(pairs)[0][5, 7], nm.tree.leaves(f(y[7], scale[5]))[0], atol=1e-6
    )
    tangents = nm.vmap(lambda y, s: nm.tree.leaves(nm.jvp(lambda y: f(y, s), (y,), (y,))[1])[0])
    one = nm.tree.leaves(nm.jvp(lambda y: f(y, scale[3]), (y[3],), (y[3],))[1])[0]
    assert nm.allclose(tangents(y, scale)[3], one, atol=1e-6)
    if loop == "scan":
        loss = lambda y, s: nm.sum(f(y, s)[1] ** 2)
        found = nm.vmap(nm.grad(loss, argnums=(0, 1)))(y, scale)
        single = nm.grad(loss, argnums=(0, 1))(y[4], scale[4])
        assert all(nm.allclose(a[4], b, atol=1e-6) for a, b in zip(found, single, strict=True))


def test_a_batched_loop_of_short_vectors_keeps_its_state_batch_last():
    def f(y):
        return nm.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 2, c[1] + 1), (y, 0))[0]

    found = nm.vmap(f)(nm.ones((32, 3)))
    call = found._node.inputs[0].inputs[0].params
    assert [shape for shape, _ in call.results[:2]] == [(3, 32), (32,)]
    assert found.tolist() == [[8.0, 8.0, 8.0]] * 32


def nested(state, xs):
    """A loop whose body has two loops and a branch, with values that several stages share."""

    def body(carry, x):
        a, n = carry
        scaled = nm.exp(-x) * a
        b = nm.while_loop(lambda s: nm.sum(s * s) > 1, lambda s: s / 2, scaled)
        c = nm.scan(lambda s, i: (s + i * scaled, s), b, nm.arange(3.0, dtype=a.dtype))[0]
        d = nm.cond(nm.sum(c) > 0, lambda: c - scaled, lambda: b)
        return (d + 0 * x, n + 1), (b[0], nm.sum(scaled))

    return nm.scan(body, (state, 0), xs)


def test_loops_in_loops_run_in_stages():
    (y,), xs = arrays((3,)), nm.asarray(np.linspace(-2.0, 1.0, 5))
    found = nested(y, xs)
    carry, rows = (y, 0), []
    for i in range(5):
        scaled = nm.exp(-xs[i]) * carry[0]
        b = scaled
        while nm.sum(b * b) > 1:
            b = b / 2
        c = b
        for k in range(3):
            c = c + k * scaled
        carry = (c - scaled if nm.sum(c) > 0 else b), carry[1] + 1
        rows.append((b[0], nm.sum(scaled)))
    same(found[0][0], carry[0])
    assert found[0][1].item() == 5
    same(found[1], nm.tree.map(lambda *r: nm.stack(r), *rows))
    same(nm.jit(nested)(y, xs), found)
    many = nm.vmap(nested, in_axes=(0, None))(nm.stack([y, 2 * y, -y]), xs)
    same(nm.tree.map(lambda x: x[0], many), found)
    same(nm.tree.map(lambda x: x[2], many), nested(-y, xs))


def test_a_loop_in_jit_holds_on_to_nothing_behind_its_constants():
    def f(r, q):
        both = nm.exp(r * q) + r  # a constant of the loops, made of r, which is one too
        inner = lambda y: nm.while_loop(lambda s: s > r, lambda s: s - both, y)
        return nm.scan(lambda y, x: (inner(y) + r * x, y * both), r * 9, nm.arange(3.0))[1]

    r, q = nm.asarray(1.5), nm.asarray(0.5)
    wanted = f(r, q)
    step = nm.jit(f)
    for _ in range(2):
        assert nm.allclose(step(r, q), wanted)


@pytest.mark.parametrize("rows", [1, 7, 32])
def test_what_depends_on_constants_alone_runs_once_for_all_turns(rows):
    """Packed weights: at every call anew, as they may have changed; for no turns not at all."""
    w, state = nm.random.normal((96, 64)) / 8, nm.random.normal((rows, 64))

    def run(w, length):
        step = lambda h, _: (nm.tanh((h @ w.T)[:, :64]), None)
        return nm.scan(step, state, None, length)[0].numpy()

    for weights in (w, 2 * w, w):
        h = state.numpy().astype(np.float64)
        for _ in range(5):
            h = np.tanh((h @ weights.numpy().astype(np.float64).T)[:, :64])
        assert np.allclose(run(weights, 5), h, atol=1e-5)
        assert np.array_equal(run(weights, 0), state.numpy())
    below = nm.while_loop(lambda h: nm.sum(h * h) > 1e-3, lambda h: (h @ w.T)[:, :64] / 4, state)
    assert nm.sum(below * below).item() <= 1e-3
