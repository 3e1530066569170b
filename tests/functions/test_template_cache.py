"""Functions that remember which graph they make: they go on making that one."""

from __future__ import annotations

import gc
import itertools
import sys

import numpy as np
import pytest
from described import described

import numus as nm
from numus import config
from numus.compiler.plan import clear_plans
from numus.dispatch import call_cache
from numus.dispatch.call_cache import CallCache
from numus.functions import template_cache
from numus.nn.functional import classification
from numus.runtime.pycall import vm

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind not in ("cpu", "cuda"), reason="no fast calls there"),
]


def tensor(*shape, seed=0, dtype="float32"):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype("float32"))
    x = x.astype(dtype)
    nm.eval(x)
    return x


def classified(x, **options):
    targets = nm.asarray(np.arange(x.shape[0]) % x.shape[1])
    nm.eval(targets)
    return nm.nn.functional.cross_entropy(x, targets, **options)


FUNCTIONS = {
    **{
        name: getattr(nm, name)
        for name in ("relu", "gelu", "silu", "sigmoid", "softplus", "elu", "leaky_relu")
    },
    **{name: getattr(nm, name) for name in ("softmax", "softmin", "log_softmax", "logsumexp")},
    "gelu of tanh": lambda x: nm.gelu(x, "tanh"),
    "softmax of columns": lambda x: nm.softmax(x, axis=0),
    "softmax by name": lambda x: nm.softmax(x, axis=-1),
    "layer_norm": lambda x: nm.layer_norm(x, eps=1e-3),
    "layer_norm of axes": lambda x: nm.layer_norm(x, axis=(0, 1)),
    "rms_norm": nm.rms_norm,
    **{name: getattr(nm, name) for name in ("sum", "prod", "max", "min", "mean", "var", "std")},
    "sum of columns": lambda x: nm.sum(x, axis=0, keepdims=True),
    "mean in float64": lambda x: nm.mean(x, axis=(0, 1), dtype=nm.float64),
    "a product with itself": lambda x: nm.einsum("ij,kj->ik", x, x),
    "group_norm": lambda x: nm.group_norm(x, 1),
    "batch_norm": lambda x: nm.batch_norm(x, training=True),
    "a linear layer": lambda x: nm.nn.functional.linear(x, x),
    "cross entropy": classified,
    "smoothed cross entropy": lambda x: classified(x, label_smoothing=0.1, reduction="sum"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_fifth_graph_is_the_first(name, dtype):
    f = FUNCTIONS[name]
    leaf = tensor(4, 6, dtype=dtype)
    tracked = tensor(4, 6, seed=1, dtype=dtype)
    tracked.requires_grad = True
    for make in (
        *(lambda: leaf, lambda: leaf + 1, lambda: leaf.T, lambda: leaf[1:, ::2]),
        *(lambda: tracked, lambda: tracked * 2, lambda: (leaf + 1).reshape(6, 4)),
    ):
        graphs = []
        for _ in range(5):
            x = make()
            graphs.append(described(f(x)._node, [x._node]))
        assert graphs.count(graphs[0]) == 5
        with nm.no_grad():
            x = make()
            plain = [described(f(make())._node, []) for _ in range(4)]
            assert all(not line[5] for line in plain[-1] if line[0] != "value")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_traced_once(kind):
    """Results, and gradients of all of them, of a layer whose weights change between calls."""
    layer = getattr(nm.nn, kind)(3, 5)
    fresh = getattr(nm.nn, kind)(3, 5)
    nm.eval(*layer.parameters())
    x = nm.asarray(np.linspace(-1.0, 1.0, 42, dtype=np.float32).reshape(7, 2, 3))
    found = []
    for _ in range(5):
        out, last = layer(x)
        loss = nm.sum(out * out) + sum(nm.sum(y) for y in (last if kind == "LSTM" else [last]))
        layer.zero_grad()
        loss.backward()
        found.append([out.numpy(), *(p.grad.numpy() for p in layer.parameters())])
        with nm.no_grad():
            layer.weight_hh_l0 *= -1
            nm.eval(layer.weight_hh_l0)
    for i in (2, 4):  # the same weights again
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(found[0], found[i], strict=True))
    fresh.load_state_dict(layer.state_dict())
    assert np.allclose(fresh(x)[0].numpy(), found[1][0], atol=1e-5)


def test_running_statistics_of_norms_move_at_every_call():
    x = tensor(4, 6)
    for norm in (nm.batch_norm, lambda x, *of, **how: nm.instance_norm(x[None], *of)):
        mean, var = nm.zeros(6), nm.ones(6)
        if norm is not nm.batch_norm:
            mean, var = nm.zeros(4), nm.ones(4)
        seen = []
        for _ in range(5):
            norm(x, mean, var, training=True)
            seen.append(mean.numpy().copy())
        steps = [np.abs(b - a).max() for a, b in itertools.pairwise(seen)]
        assert all(step > 0 for step in steps)


def test_targets_of_cross_entropy_are_looked_at_every_time():
    x = tensor(3, 4)
    wanted = [classified(x).item() for _ in range(4)]
    assert wanted.count(wanted[0]) == 4
    templates = cache_of(classification._against_classes).structures.values()
    assert any(type(x) is template_cache._Template for x in templates)
    other = nm.nn.functional.cross_entropy(x, nm.asarray([3, 3, -100])).item()
    log_p = np.log(np.exp(x.numpy()) / np.exp(x.numpy()).sum(1, keepdims=True))
    np.testing.assert_allclose(other, -log_p[:2, 3].mean(), rtol=1e-5)
    with pytest.raises(IndexError, match="class 4"):
        nm.nn.functional.cross_entropy(x, nm.asarray([0, 1, 4]))


def cache_of(function):
    cells = [cell.cell_contents for cell in function.__closure__]
    (cache,) = [x for x in cells if isinstance(x, CallCache)]
    return cache


def test_graphs_are_templates_from_the_third_call_on():
    function = template_cache.templated(lambda x: nm.exp(x) * 2)
    known = cache_of(function).structures
    x = tensor(11, 3)
    for i in range(4):
        function(x)
        (made,) = known.values()
        assert isinstance(made, template_cache._Template) == (i > 0)


def test_sizes_that_come_a_few_times_have_no_templates():
    """Sequences that grow: templates of the first sizes, then of those that come often."""
    function = template_cache.templated(lambda x: nm.exp(x) * 2)
    known = cache_of(function).structures

    def made():
        return sum(isinstance(x, template_cache._Template) for x in known.values())

    for n in range(3, 40):
        for _ in range(9):
            function(tensor(n, 3))
    assert made() == 3
    for _ in range(call_cache.MAX_RUNS_BEFORE + template_cache._MISS_INTERVAL):
        function(tensor(40, 3))
    assert made() == 4
    clear_plans()
    for _ in range(2):
        function(tensor(41, 3))
    assert made() == 1


@pytest.mark.parametrize("left", [(3, 4), (2, 3, 4), (5, 2, 3, 4), (4,)])
@pytest.mark.parametrize("right", [(4, 6), (2, 4, 6), (5, 1, 4, 6), (4,)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_products_are_those_of_the_first_time(left, right, dtype):
    a, b = (nm.round(tensor(*s, seed=i) * 4).astype(dtype) for i, s in enumerate((left, right)))
    nm.eval(a, b)
    want = np.matmul(a.numpy(), b.numpy())
    graphs = []
    for pending in (False, False, True, False, True, True, False, True) * 2:
        x, y = (a + 0 * a, b * 1) if pending else (a, b)
        out = nm.matmul(x, y)
        if not pending:
            graphs.append(described(out._node, [x._node, y._node]))
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)
    assert graphs.count(graphs[0]) == len(graphs)


def test_operands_that_are_views_or_pending_views():
    a, b = tensor(3, 4, 5), tensor(3, 5, 2, seed=1)
    p, q = a.numpy(), b.numpy()
    for _ in range(4):
        for x, y, want in (
            (a, b, p @ q),
            (a.mT, a, p.mT @ p if hasattr(p, "mT") else np.swapaxes(p, 1, 2) @ p),
            (b.mT.reshape(3, 2, 5), b, np.swapaxes(q, 1, 2) @ q),
            ((a + 1).reshape(3, 4, 5), b, (p + 1) @ q),
            ((a + 1).reshape(12, 5).reshape(3, 4, 5), b, (p + 1) @ q),
            (a[::-1], b, p[::-1] @ q),
        ):
            np.testing.assert_allclose((x @ y).numpy(), want, rtol=1e-4, atol=1e-5)


def test_one_operand_twice_and_operands_in_one_memory():
    a = tensor(2, 4, 4)
    for _ in range(4):
        for x, y in ((a, a), (a, a.mT), (a.mT, a), (a[:1], a[1:])):
            want = np.matmul(x.numpy(), y.numpy())
            np.testing.assert_allclose((x @ y).numpy(), want, rtol=1e-5, atol=1e-5)


def test_constants_are_compared_by_bits():
    x = tensor(7)
    a = x.numpy()
    for _ in range(4):
        for slope in (0.1, 0.0, -0.0, 1, True, 2.0):
            want = np.where(a > 0, a, a * np.float32(slope))
            got = nm.leaky_relu(x, slope).numpy()
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_modes_around_a_call():
    x, w = tensor(4, 8), tensor(8, 4, seed=1)
    x.requires_grad = True
    for _ in range(4):
        assert nm.gelu(x).requires_grad
        with nm.no_grad():
            assert not nm.gelu(x).requires_grad
        assert nm.matmul(x, w).dtype is nm.float32
        with nm.autocast("bf16"):
            assert nm.matmul(x, w).dtype is nm.bfloat16
            assert nm.softmax(x.astype("bfloat16")).dtype is nm.float32
        with nm.matmul_precision("tf32"):
            assert nm.matmul(x, w)._node.params == "tf32"
        assert nm.matmul(x, w)._node.params is None
        assert nm.softmax(x.astype("bfloat16")).dtype is nm.bfloat16


def test_transformations_see_the_same_graphs():
    x = tensor(3, 5)

    def f(x):
        return (nm.softmax(nm.gelu(x @ x.T)) * x[:, :3]).sum()

    want = nm.grad(f)(x).numpy()
    for _ in range(4):
        np.testing.assert_allclose(nm.grad(f)(x).numpy(), want, rtol=1e-5)
        y = nm.asarray(x.numpy())
        y.requires_grad = True
        f(y).backward()
        np.testing.assert_allclose(y.grad.numpy(), want, rtol=1e-5)
        np.testing.assert_allclose(nm.jit(f)(x).numpy(), f(x).numpy(), rtol=1e-6)
        rows = nm.vmap(lambda r: nm.softmax(nm.gelu(r)))(x)
        np.testing.assert_allclose(rows.numpy(), nm.softmax(nm.gelu(x)).numpy(), rtol=1e-6)


def test_errors_are_those_of_the_function():
    x, y = tensor(2, 3), tensor(2, 3, seed=1)
    for _ in range(4):
        nm.matmul(x, y.T)
        with pytest.raises(nm.errors.ShapeError, match="do not fit"):
            nm.matmul(x, y)
        with pytest.raises(ValueError, match="approximate"):
            nm.gelu(x, "roughly")


def test_long_chains_are_bounded():
    x = tensor(3)
    y = x
    for _ in range(3 * config.MAX_PENDING_DEPTH):
        y = nm.relu(y)
    assert y._node.depth <= config.MAX_PENDING_DEPTH
    np.testing.assert_array_equal(y.numpy(), np.maximum(x.numpy(), 0))


def test_parameters_and_others_are_not_kept():
    cache = cache_of(nm.layer_norm)
    layer = nm.nn.LayerNorm(6)
    x = tensor(4, 6)
    for _ in range(4):
        layer(x)
        nm.layer_norm(x, np.ones(6, np.float32))
    assert cache.structures
    for key in cache.structures:
        assert not any(isinstance(part, (nm.Tensor, np.ndarray)) for part in key)


def test_nothing_is_left_behind(monkeypatch):
    cache = cache_of(nm.relu)
    monkeypatch.setattr(cache, "max_structures", 8)
    x, w = tensor(4, 6), tensor(2, 6, 4, seed=1)
    for _ in range(20):
        nm.eval(nm.softmax(nm.gelu(x @ w)))
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(500):
        nm.eval(nm.softmax(nm.gelu(x @ w)))
    gc.collect()
    assert sys.getallocatedblocks() - before < 200
    for n in range(40):
        nm.relu(tensor(n + 1))
    assert len(cache.structures) <= 8
