"""Fast path of jitted training steps: updates in place, gradients, optimizer state."""

from __future__ import annotations

import gc
import sys
import types

import numpy as np
import pytest

import numus as nm
from numus.runtime.pycall import vm

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind != "cpu", reason="steps of many kernels are slow paths"),
]

OPTIMIZERS = {
    "sgd": lambda p: nm.optim.SGD(p, lr=0.1),
    "momentum": lambda p: nm.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: nm.optim.Adam(p, lr=0.01),
    "adamw": lambda p: nm.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


class Net(nm.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nm.nn.Linear(6, 8)
        self.last = nm.nn.Linear(8, 3)

    def __call__(self, x):
        x = nm.relu(self.first(x))
        return self.last(x * 2 if self.training else x)


def batch(seed=0):
    rng = np.random.default_rng(seed)
    x = nm.asarray(rng.standard_normal((4, 6)).astype(np.float32))
    t = nm.asarray(rng.integers(0, 3, 4))
    nm.eval(x, t)
    return x, t


class Run:
    """A model with its optimizer and its step, jitted or not; all of them begin alike."""

    def __init__(self, optimizer, jitted, accumulate=False):
        self.net = Net()
        rng = np.random.default_rng(7)
        with nm.no_grad():
            for p in self.net.parameters():
                p[...] = nm.asarray(rng.standard_normal(p.shape).astype(np.float32))
        self.optimizer = OPTIMIZERS[optimizer](self.net.parameters())
        self.accumulate = accumulate
        self.step = nm.jit(self._step) if jitted else self._step

    def _step(self, x, t):
        loss = nm.nn.functional.cross_entropy(self.net(x), t)
        if not self.accumulate:
            self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    @property
    def is_fast(self):
        jitted = self.step.__closure__[0].cell_contents
        return isinstance(jitted._fast_path, types.BuiltinFunctionType)

    def state(self):
        found = [p.numpy() for p in self.net.parameters()]
        return found + [p.grad.numpy() for p in self.net.parameters() if p.grad is not None]


def agree(one, other):
    for a, b in zip(one.state(), other.state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_without_jit(optimizer):
    fast, plain = Run(optimizer, True), Run(optimizer, False)
    for seed in range(8):
        x, t = batch(seed)
        np.testing.assert_allclose(fast.step(x, t).item(), plain.step(x, t).item(), rtol=1e-5)
        agree(fast, plain)
    assert fast.is_fast


def test_gradients_accumulate():
    fast, plain = Run("sgd", True, accumulate=True), Run("sgd", False, accumulate=True)
    for seed in range(8):
        fast.step(*batch(seed))
        plain.step(*batch(seed))
        agree(fast, plain)
    assert fast.is_fast
    for run in (fast, plain):
        run.optimizer.zero_grad()
    for seed in range(3):
        fast.step(*batch(seed))
        plain.step(*batch(seed))
        agree(fast, plain)


VIEWS = {  # they see what is written
    "a detached parameter": lambda run: run.net.first.weight.detach(),
    "a view of a parameter": lambda run: run.net.first.weight.detach()[1:],
}
DISTURBANCES = {
    **VIEWS,
    "a pending sum": lambda run: run.net.first.weight.detach() + 1,
    "a gradient": lambda run: run.net.first.weight.grad,
    "an array on a parameter": lambda run: np.asarray(run.net.first.weight.detach()),
    "a node": lambda run: run.net.first.weight._node,
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", DISTURBANCES)
def test_values_that_are_referenced_stay(optimizer, name):
    fast, plain = Run(optimizer, True), Run(optimizer, False)
    for seed in range(3):
        fast.step(*batch(seed))
        plain.step(*batch(seed))
    for seed in range(3, 7):
        held = DISTURBANCES[name](fast)
        if name != "a node":
            before = np.array(held if isinstance(held, np.ndarray) else held.numpy())
            held = DISTURBANCES[name](fast)
        fast.step(*batch(seed))
        plain.step(*batch(seed))
        agree(fast, plain)
        if name != "a node" and not isinstance(held, np.ndarray):
            now = VIEWS[name](fast).numpy() if name in VIEWS else before
            np.testing.assert_array_equal(held.numpy(), now)
        del held


def test_flags_parameters_and_gradients_are_guarded():
    fast, plain = Run("sgd", True), Run("sgd", False)
    for seed in range(12):
        for run in (fast, plain):
            if seed == 3:
                run.net.eval()
            if seed == 5:
                run.net.train()
            if seed == 6:
                run.net.first.weight.grad = None
            if seed == 7:
                with nm.no_grad():
                    run.net.first.weight *= 0.5
            if seed == 8:
                run.net.last.bias.requires_grad = False
            run.step(*batch(seed))
        agree(fast, plain)


def test_a_parameter_as_an_argument_is_no_fast_call():
    w = nm.asarray(np.ones(4, np.float32), requires_grad=True)

    def step(x):
        loss = (w * x.detach()).sum()
        w.grad = None
        loss.backward()
        with nm.no_grad():
            w.__isub__(w.grad)

    f = nm.jit(step)
    x = nm.asarray(np.full(4, 0.25, np.float32))
    for i in range(4):
        f(x)
        np.testing.assert_allclose(w.detach().numpy(), 1 - 0.25 * (i + 1), rtol=1e-6)
    before = w.detach().numpy()
    f(w)
    np.testing.assert_allclose(w.detach().numpy(), before - before, atol=1e-6)


def test_results_beside_tensors():
    run = Run("sgd", True)

    def step(x, t):
        return (run._step(x, t), None), 3

    f = nm.jit(step)
    for seed in range(4):
        (loss, nothing), three = f(*batch(seed))
        assert np.isfinite(loss.item())
        assert nothing is None
        assert three == 3
    assert isinstance(f.__closure__[0].cell_contents._fast_path, types.BuiltinFunctionType)


def test_other_numbers_of_threads():
    fast, plain = Run("adam", True), Run("adam", False)
    runtime = nm.device().runtime
    before = runtime.get_num_threads()
    try:
        for seed, threads in enumerate((1, 1, 2, 2, 3, 1, before, before)):
            runtime.set_num_threads(threads)
            fast.step(*batch(seed))
            plain.step(*batch(seed))
            agree(fast, plain)
    finally:
        runtime.set_num_threads(before)


def test_nothing_is_left_behind():
    run = Run("adam", True)
    x, t = batch()
    for _ in range(50):
        run.step(x, t)
    gc.collect()
    blocks, memory = sys.getallocatedblocks(), nm.device().runtime.memory_stats()["in_use"]
    for _ in range(300):
        run.step(x, t)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100
    assert nm.device().runtime.memory_stats()["in_use"] <= memory
