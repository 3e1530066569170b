"""Caches have bounds: kernels, plans and traces that were not used for long make room."""

from __future__ import annotations

import numpy as np
import pytest

import numus as nm
from numus.compiler import plan as plans
from numus.lru import LruTable
from numus.runtime.programs import CompileLog
from numus.transforms.jit import function


def test_least_recently_used():
    table = LruTable(3)
    for i in range(3):
        table[i] = str(i)
    assert table.get(0) == "0"  # used
    table[3] = "3"
    assert [i in table for i in range(4)] == [True, False, True, True]
    assert len(table) == 3
    assert table.recent(2) == [3, 0]
    assert table.setdefault(5, lambda: "5") == "5"
    assert table.setdefault(5, lambda: "6") == "5"
    assert table.get(2) is None


@pytest.mark.filterwarnings("ignore:.*has been traced")
def test_traces_have_a_bound(monkeypatch):
    monkeypatch.setattr(function, "_MAX_TRACES", 8)
    jitted = nm.jit(lambda x, k: x * k + 1, static_argnums=1)
    for i in range(30):
        assert jitted(nm.ones(2), i).tolist() == [i + 1.0] * 2
    traced = jitted.__closure__[0].cell_contents._traced
    assert len(traced) == 8
    assert jitted(nm.ones(2), 0).tolist() == [1.0, 1.0]  # traced again


@pytest.mark.filterwarnings("ignore:.*has been traced")
def test_sizes_of_a_jitted_function(monkeypatch):
    monkeypatch.setattr(function, "_MAX_TRACES", 4)
    f = nm.jit(lambda x: nm.sum(x * 2))
    for n in [*range(1, 12), *range(1, 12)]:
        assert f(nm.ones(n)).item() == 2 * n


def test_plans_have_a_bound(monkeypatch):
    monkeypatch.setattr(plans, "_plans", LruTable(3))
    x = nm.asarray(np.linspace(0, 1, 5, dtype=np.float32))
    functions = [nm.sin, nm.cos, nm.tanh, nm.exp, nm.sqrt, nm.square]
    references = [np.sin, np.cos, np.tanh, np.exp, np.sqrt, np.square]
    for _ in range(2):
        for f, g in zip(functions, references, strict=True):
            y = (f(x) + 1).numpy()
            assert np.allclose(y, g(x.numpy()) + 1)
            assert len(plans._plans) <= 3


def test_the_compile_log_has_a_bound(monkeypatch):
    monkeypatch.setattr(CompileLog, "max_records", 10)
    log = CompileLog()
    for i in range(25):
        log.append(i)
        assert len(log) <= 10
    assert log[-1] == 24
    assert log == list(range(log[0], 25))
