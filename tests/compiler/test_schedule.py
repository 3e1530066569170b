"""The order of kernels, and which of them share a wave."""

import numpy as np
import pytest

import numus as nm
from numus.compiler.schedule.memory_plan import assign_offsets
from numus.runtime.devices import device


@pytest.fixture
def counts():
    runtime = device("null").runtime
    runtime.reset()
    yield runtime.counts
    runtime.reset()


def on_null(*shape):
    x = nm.zeros(shape, device="null")
    nm.eval(x)
    return x


def adam(params, grads, ms, vs):
    for p, g, m, v in zip(params, grads, ms, vs, strict=True):
        m.assign(0.9 * m + 0.1 * g)
        v.assign(0.999 * v + 0.001 * g * g)
        p.assign(p - 1e-3 * (m / (nm.sqrt(v) + 1e-8) + 0.01 * p))
    nm.eval(*params, *ms, *vs)


def test_an_optimiser_step_over_hundreds_of_parameters_is_one_wave(counts):
    shapes = [(n % 37 + 1, n % 11 + 1) for n in range(300)]
    state = [[on_null(*s) for s in shapes] for _ in range(4)]
    device("null").runtime.reset()
    adam(*state)
    assert counts.kernels <= 300
    assert counts.waves == 1
    assert counts.compiled <= 3  # kernels are for structures, not for sizes


def test_an_optimiser_step_in_one_wave_is_right():
    rng = np.random.default_rng(0)
    shapes = [(n % 5 + 1, n % 7 + 1) for n in range(40)] + [(300, 200), (70000,)]
    arrays = [[np.abs(rng.standard_normal(s)).astype("f") for s in shapes] for _ in range(4)]
    tensors = [[nm.asarray(a) for a in part] for part in arrays]
    adam(*tensors)
    for i in range(len(shapes)):
        p, g, m, v = (part[i].astype("d") for part in arrays)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        p = p - 1e-3 * (m / (np.sqrt(v) + 1e-8) + 0.01 * p)
        for found, expected in zip((tensors[0], tensors[2], tensors[3]), (p, m, v), strict=True):
            np.testing.assert_allclose(found[i].numpy(), expected, rtol=1e-5, atol=1e-7)


def test_kernels_that_free_memory_run_first(counts):
    """Sums of large GEMMs: each runs as soon as its GEMM has."""
    n = 256
    xs = [on_null(n, n) for _ in range(6)]
    device("null").runtime.reset()
    total = None
    for x in xs:
        square = x @ x
        part = (square.T @ square).sum(axis=0)
        total = part if total is None else total + part
    before = counts.bytes_in_use
    nm.eval(total)
    assert counts.peak - before <= 4 * 4 * n * n


def test_waves_of_many_threads_are_right():
    """Unequal kernels run concurrently, many times."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((130, 70)).astype("f") for _ in range(2))
    x, y = nm.asarray(a), nm.asarray(b)
    for _ in range(20):
        outs = [x @ y.T, (x + y).sum(axis=0), nm.softmax(x, axis=1), nm.sort(y, axis=1), x * y]
        outs += [nm.cumsum(x, axis=0), (x @ y.T).sum()]
        nm.eval(*outs)
    expected = [a @ b.T, (a + b).sum(0), None, np.sort(b, 1), a * b, a.cumsum(0), (a @ b.T).sum()]
    for found, want in zip(outs, expected, strict=True):
        if want is not None:
            np.testing.assert_allclose(found.numpy(), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("activation", [nm.gelu, nm.relu, nm.softmax])
def test_values_may_be_overwritten_at_their_last_use(activation):
    """The cotangent of an activation is written over it, and gradients are right."""

    def step(x, w, v):
        def loss(w, v):
            y = activation(x @ w) @ v
            return nm.tanh(y).square().sum()

        return nm.grad(loss, (0, 1))(w, v)

    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s) / s[0] ** 0.5 for s in ((300, 40), (40, 701), (701, 40))]
    found = step(*(nm.asarray(a.astype("f")) for a in arrays))
    want = step(*(nm.asarray(a, device="reference") for a in arrays))
    for a, b in zip(found, want, strict=True):
        scale = np.abs(b.numpy()).max()
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-5 * scale)


def test_live_values_do_not_overlap():
    rng = np.random.default_rng(2)
    lives = []
    for _ in range(200):
        first = int(rng.integers(0, 50))
        lives.append((int(rng.integers(0, 5000)), first, first + int(rng.integers(0, 10))))
    offsets, total = assign_offsets(lives)
    for i, (size, first, last) in enumerate(lives):
        assert offsets[i] % 64 == 0
        assert offsets[i] + size <= total
        for j in range(i):
            other, begin, end = lives[j]
            if first <= end and begin <= last:
                assert offsets[i] + size <= offsets[j] or offsets[j] + other <= offsets[i]
    most = max(sum(n for n, a, b in lives if a <= t <= b) for t in range(60))
    assert total <= 1.3 * most
