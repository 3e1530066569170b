"""Kernels of captured operands run once; whoever changes an operand makes them run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numus as nm
from numus import nn, optim
from numus.functions.interop.host_access import lend

SIZE = 64
DRAW = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return DRAW.standard_normal(shape).astype(np.float32)


@pytest.fixture
def weights() -> nm.Tensor:
    return nm.asarray(draw(SIZE, SIZE)) + 0  # memory of its own


def product(w: nm.Tensor) -> tuple[Callable[[nm.Tensor], nm.Tensor], nm.Tensor]:
    """A jitted product whose weights are held, and its argument."""
    f, x = nm.jit(lambda x: nm.relu(x @ w.T)), nm.asarray(draw(48, SIZE))
    for _ in range(3):
        check(f, x, w)
    return f, x


def check(f: Callable[[nm.Tensor], nm.Tensor], x: nm.Tensor, w: nm.Tensor) -> None:
    expected = np.maximum(np.asarray(x) @ np.asarray(w).T, 0)
    np.testing.assert_allclose(np.asarray(f(x)), expected, rtol=1e-4, atol=1e-4)


def hoisted(f: Callable[..., Any], *args: Any) -> list[str]:
    return [k.name for k in nm.explain(f, *args, timed=False).kernels if k.hoisted]


@pytest.mark.on_cpu("packed panels")
def test_weights_are_packed_once(weights: nm.Tensor) -> None:
    f, x = product(weights)
    assert hoisted(f, x) == ["pack"]
    report = nm.explain(f, x, timed=False)
    assert report.programs[0].hoisted_bytes >= weights.nbytes
    assert "once for all calls" in str(report)
    y = nm.asarray(draw(48, SIZE))
    assert hoisted(nm.jit(lambda x, w: x @ w.T), y, weights) == []  # arguments may change


def test_changed_convolution_weights() -> None:
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()).eval()
    f, x = nm.jit(lambda x: model(x)), nm.asarray(draw(1, 32, 28, 28))
    with nm.no_grad():
        expected = np.asarray(model(x))
        for _ in range(3):
            np.testing.assert_allclose(np.asarray(f(x)), expected, rtol=1e-4, atol=1e-4)
        model[0].weight *= 2
        model[1].running_var += 1
        expected = np.asarray(model(x))
        np.testing.assert_allclose(np.asarray(f(x)), expected, rtol=1e-4, atol=1e-4)


def write_operator(w: nm.Tensor) -> None:
    w *= 2


def write_row(w: nm.Tensor) -> None:
    w[3] = 1.0


def write_view(w: nm.Tensor) -> None:
    w[:, 5] -= 4.0


def write_host(w: nm.Tensor) -> None:
    with w.data_write() as a:
        a[1, 2] = 100


def write_assign(w: nm.Tensor) -> None:
    w.assign(nm.asarray(draw(SIZE, SIZE)))


def write_jitted(w: nm.Tensor) -> None:
    @nm.jit
    def update(g: nm.Tensor) -> None:
        nonlocal w
        w -= g

    for _ in range(4):
        update(nm.ones((SIZE, SIZE)))


WRITES = [write_operator, write_row, write_view, write_host, write_assign, write_jitted]


@pytest.mark.parametrize("write", WRITES)
def test_writes_are_seen(weights: nm.Tensor, write: Callable[[nm.Tensor], None]) -> None:
    f, x = product(weights)
    for _ in range(3):
        write(weights)
        check(f, x, weights)
        check(f, x, weights)


def test_calls_while_the_host_writes(weights: nm.Tensor) -> None:
    f, x = product(weights)
    with weights.data_write() as a:
        a[0] = 1
        f(x)
        f(x)
        a[0] = 2
    check(f, x, weights)
    check(f, x, weights)


def test_lent_memory_is_not_held(weights: nm.Tensor) -> None:
    f, x = product(weights)
    lent = lend(weights)
    for value in (3.0, 4.0):
        lent[2] = value
        check(f, x, weights)
        check(f, x, weights)


@pytest.mark.on_cpu("memory of NumPy")
def test_borrowed_memory_is_not_held() -> None:
    array = draw(SIZE, SIZE)
    w = nm.from_dlpack(array)
    f, x = product(w)
    array[7] = 5.0
    check(f, x, w)


def test_training_and_inference_alternate() -> None:
    model = nn.Linear(SIZE, SIZE)
    opt = optim.SGD(model.parameters(), lr=0.1)
    x, y = nm.asarray(draw(32, SIZE)), nm.asarray(draw(32, SIZE))

    @nm.jit
    def step(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        opt.zero_grad()
        loss = nn.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        return loss

    infer = nm.jit(lambda x: model(x))
    for _ in range(6):
        step(x, y)
        with nm.no_grad():
            expected = np.asarray(x) @ np.asarray(model.weight).T + np.asarray(model.bias)
            for _ in range(2):
                np.testing.assert_allclose(np.asarray(infer(x)), expected, rtol=1e-4, atol=1e-4)


def test_changing_weights_are_updated_in_place_again(weights: nm.Tensor) -> None:
    """Holding weights makes updates copy them: it is given up where they change at every call."""
    f, x = product(weights)
    w = weights

    @nm.jit
    def update(g: nm.Tensor) -> None:
        nonlocal w
        w -= g

    g, addresses = nm.ones((SIZE, SIZE)), []
    for _ in range(20):
        f(x)
        update(g)
        view = w._node.view
        assert view is not None
        addresses.append(view.storage.memory.address)
    assert len(set(addresses[-6:])) <= 2
    check(f, x, w)


def test_dynamic_numbers_are_not_hoisted(weights: nm.Tensor) -> None:
    f = nm.jit(lambda x, s: x @ (weights * s).T)
    x = nm.asarray(draw(48, SIZE))
    for s in (1.0, 2.0, 3.0):
        expected = np.asarray(x) @ (np.asarray(weights) * s).T
        np.testing.assert_allclose(np.asarray(f(x, s)), expected, rtol=1e-4, atol=1e-4)


def test_variables_that_are_replaced(weights: nm.Tensor) -> None:
    class Model:
        def __init__(self) -> None:
            self.w = weights

    model = Model()
    f, x = nm.jit(lambda x: nm.relu(x @ model.w.T)), nm.asarray(draw(48, SIZE))
    for _ in range(3):
        for _ in range(3):
            check(f, x, model.w)
        model.w = nm.asarray(draw(SIZE, SIZE))


def test_what_a_scatter_writes_to_is_made_in_every_run() -> None:
    """A scatter copies its operand and writes to the copy: the copy of a captured one, too."""
    base = nm.random.normal((64, 48))
    rows, columns = nm.asarray([3, 3, 60]), nm.asarray([5, 5, 7])

    @nm.jit
    def f(x: nm.Tensor, values: nm.Tensor) -> nm.Tensor:
        return x @ base.at[rows, columns].add(values)

    for _ in range(4):
        x, values = nm.random.normal((96, 64)), nm.random.normal((3,))
        added = base.numpy().copy()
        np.add.at(added, ([3, 3, 60], [5, 5, 7]), values.numpy())
        np.testing.assert_allclose(f(x, values).numpy(), x.numpy() @ added, rtol=0, atol=1e-4)


def test_loops_write_to_their_constants_copies_in_every_iteration() -> None:
    zeros = nm.zeros((40,))

    def step(carry: nm.Tensor, i: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        return carry, zeros.at[i].set(1.0)

    _, found = nm.scan(step, nm.asarray(0.0), nm.arange(6))
    np.testing.assert_array_equal(found.numpy(), np.eye(6, 40))
    last = nm.while_loop(
        lambda s: s[0] < 5, lambda s: (s[0] + 1, zeros.at[s[0]].set(1.0)), (nm.asarray(0), zeros)
    )[1]
    np.testing.assert_array_equal(last.numpy(), np.eye(5, 40)[4])
