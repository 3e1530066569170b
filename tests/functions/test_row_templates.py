"""Functions that treat rows alike build their graphs by one template for every number of rows."""

from __future__ import annotations

import random

import numpy as np
import pytest

import numus as nm
from numus.compiler.plan import clear_plans
from numus.evaluation.evaluate import _pending_order
from numus.functions import row_templates
from numus.graph import calling_node_hook
from numus.nn import functional as f
from numus.runtime.pycall import vm

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind not in ("cpu", "cuda"), reason="no fast calls there"),
]


def tensor(*shape, seed=0):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    nm.eval(x)
    return x


WIDTH = 22
WEIGHT, BIAS, SCALE = tensor(6, WIDTH), tensor(6, seed=1), tensor(WIDTH, seed=2)


def heads(x):
    """Views of a pending tensor, as attention gets them."""
    return nm.reshape(x, (*x.shape[:-1], 2, WIDTH // 2)).swapaxes(-2, -3)


def attended(x, **options):
    y = nm.exp(x)
    return f.scaled_dot_product_attention(heads(x * 2), heads(y), heads(x + y), **options)


FUNCTIONS = {
    "linear": lambda x: f.linear(x, WEIGHT, BIAS),
    "linear without bias": lambda x: f.linear(x, WEIGHT),
    "linear of a reshape": lambda x: f.linear(
        nm.reshape(nm.exp(heads(x).swapaxes(-2, -3)).swapaxes(-1, -2), x.shape), WEIGHT
    ),
    "layer_norm": lambda x: nm.layer_norm(x, SCALE, SCALE),
    "layer_norm of rows": lambda x: nm.layer_norm(x, axis=0),
    "rms_norm": lambda x: nm.rms_norm(x, SCALE, 1e-3),
    "gelu": nm.gelu,
    "gelu of tanh": lambda x: nm.gelu(x, "tanh"),
    "relu": nm.relu,
    "silu": nm.silu,
    "sigmoid": nm.sigmoid,
    "attention": attended,
    "causal attention": lambda x: attended(x, is_causal=True),
}
ROWS = ((5,), (1, 3), (3, 1), (3, 5), (2, 3, 2), (4, WIDTH), (1, 2, 1, 5), (2, 2), (WIDTH, WIDTH))


def outline(x):
    """All that evaluation and gradients see of a graph."""
    order = _pending_order([x._node])
    number = {node: i for i, node in enumerate(order)}

    def name(node):
        if node in number:
            return number[node]
        view = node.view
        if view is None:  # a constant
            return repr(node.params)
        return (id(view.storage.memory), view.offset, view.strides, node.shape)

    return [
        (n.prim, n.params, n.shape, n.dtype, n.device, n.tracked, tuple(map(name, n.inputs)))
        for n in order
    ]


@pytest.fixture
def made(monkeypatch):
    """The templates that were made."""
    clear_plans()  # many sizes of other tests make templates rarer
    found = []
    compile_ = row_templates.Family._compile

    def counted(self, *args):
        found.append(compile_(self, *args))
        return found[-1]

    monkeypatch.setattr(row_templates.Family, "_compile", counted)
    return found


def check(function, rows, width=WIDTH):
    """The same graph with templates and without."""
    x = tensor(*rows, width)
    with nm.no_grad():
        given = nm.sqrt(x)
        first = outline(function(given))
        with calling_node_hook(lambda node: None):  # observed operations take no fast paths
            second = outline(function(given))
    assert first == second


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_graph_for_other_rows(name, made):
    function = FUNCTIONS[name]
    draw = random.Random(name)
    for lead in ((), (1,), (3,)):
        for n in [*range(2, 9), *draw.sample(range(9, 400), 4), 0, 1]:
            check(function, (*lead, n))
    for rows in ROWS:
        check(function, rows)
    for _ in range(10):
        check(function, tuple(draw.choice((0, 1, 2, 3, 4, 6, 7, WIDTH, 300)) for _ in range(2)))
    if name != "layer_norm of rows":
        assert any(call is not None for call in made)


def test_values_and_gradients():
    def gradient(x):
        leaf = x.detach().requires_grad_()
        (f.linear(nm.layer_norm(nm.sin(leaf), SCALE), WEIGHT) ** 2).sum().backward()
        return leaf.grad.numpy()

    for n in range(2, 9):
        x = tensor(1, n, WIDTH, seed=n)
        found = gradient(x)
        with calling_node_hook(lambda node: None):
            assert np.array_equal(found, gradient(x))


def test_wrong_shapes_are_errors_still():
    for n in range(2, 8):
        f.linear(nm.sin(tensor(1, n, WIDTH)), WEIGHT, BIAS)
    with pytest.raises(ValueError, match="linear"):
        f.linear(nm.sin(tensor(1, 9, 7)), WEIGHT, BIAS)
    with pytest.raises(ValueError, match="layer_norm"):
        nm.layer_norm(nm.sin(tensor(1, 9, 7)), SCALE)
