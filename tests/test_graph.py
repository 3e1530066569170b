"""Nodes: their order, and what stands on a placeholder."""

import time

import pytest

import numus as nm
from numus import dtypes as dt
from numus.dispatch.node_ops import FastCall
from numus.errors import TracingError
from numus.evaluation.evaluate import host_array
from numus.evaluation.narrow_point import narrow_point
from numus.graph import grad_mode
from numus.primitives import elementwise as ew
from numus.primitives.source import constant, placeholder
from numus.primitives.views import reshape


def test_inputs_are_numbered_before_results():
    x = constant(1.0, dt.float32)
    y = ew.exp(x)
    z = ew.add(x, y)
    assert x.serial < y.serial < z.serial


def test_a_long_abstract_graph_is_not_searched_at_every_step():
    start = time.perf_counter()
    x = placeholder((), dt.float32, None, "a test")
    for _ in range(20_000):
        x = ew.neg(x)
    assert x.abstract
    assert time.perf_counter() - start < 5  # quadratic work takes minutes


def test_reading_an_abstract_value_names_its_owner():
    x = ew.neg(placeholder((3,), dt.float32, None, "nm.vmap"))
    with pytest.raises(TracingError, match=r"nm\.vmap"):
        host_array(x)


def test_reshaping_twice_keeps_a_tracked_reshape_between():
    x = placeholder((6,), dt.float32, None, "a test")
    x.tracked = True
    middle = reshape(x, (2, 3))
    assert reshape(middle, (3, 2)).inputs == (middle,)
    with grad_mode(False):
        cut = reshape(x, (2, 3))
    assert reshape(cut, (3, 2)).inputs == (cut,)


def test_only_floats_are_tracked():
    x = placeholder((6,), dt.float32, None, "a test")
    x.tracked = True
    assert ew.exp(x).tracked
    assert not ew.lt(x, x).tracked


def test_what_was_made_of_constants_alone_lives_somewhere_once_evaluated():
    x = nm.ones(3) + 1
    nm.eval(x)
    assert x[1:2].device is nm.device()
    assert x[1:2].tolist() == [2.0]


def test_retained_bytes_count_each_memory_once(monkeypatch, request):
    """A layer norm of 512 MiB was computed in two parts, because it reads them twice."""
    monkeypatch.setattr(nm.config, "MAX_PENDING_BYTES", 4000)
    monkeypatch.setattr(type(nm.device()), "pending_bytes", 4000)  # more, where there is more
    FastCall.reset_all()  # they know the bounds by heart
    request.addfinalizer(FastCall.reset_all)
    x, w = nm.asarray([[1.0, 2.0] * 400]), nm.asarray([3.0] * 100)
    assert 3200 == x.nbytes <= nm.config.MAX_PENDING_BYTES < 2 * x.nbytes
    y = (x - nm.mean(x)) * nm.mean(w) + x
    assert y._node.view is None
    assert y._node.inputs[0].view is None
    assert y._node.retained_bytes == x.nbytes + w.nbytes
    other = nm.asarray([[0.0] * 800])
    z = y * other
    assert y._node.view is not None  # two memories of that size are too much
    assert z.numpy().tolist() == [[0.0] * 800]


def test_depth_forgets_what_was_evaluated():
    """A value that waits on others which are read meanwhile is not as deep as it was."""
    x = y = nm.ones(3)
    for _ in range(6):
        for _ in range(200):
            x = x + 1
        y = nm.stack([x, x])[0] + y
        nm.eval(x)
    assert y._node.view is None
    assert y.tolist() == [1 + sum(1 + 200 * k for k in range(1, 7))] * 3


def test_deep_graphs_are_cut_where_one_value_crosses(monkeypatch):
    """Turns of a loop are evaluated whole: each evaluation has the structure of the last."""
    from numus.evaluation import evaluate as evaluation

    cuts = []

    def watched(*args):
        found = narrow_point(*args)
        cuts.append(found.prim.name)
        return found

    monkeypatch.setattr(evaluation, "narrow_point", watched)
    x = nm.ones((2, 3))
    for _ in range(300):
        wide = nm.sin(x) * nm.cos(x)
        x = x * 0.5 + (wide @ nm.ones((3, 3))) * 0.1
    x.tolist()
    assert len(cuts) > 1
    assert set(cuts) == {"add"}
