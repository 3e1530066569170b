"""Variables that a jitted function gives other tensors: they change at every call."""

from __future__ import annotations

import types

import pytest

import numus as nm
from numus import nn

total = nm.zeros(())
shared = types.SimpleNamespace()


def traces(name: str) -> int:
    return sum(r.cause == "traced" and name in r.name for r in nm.compile_log())


def test_a_variable_of_an_enclosing_function() -> None:
    x = nm.ones(3)
    first = x

    @nm.jit
    def enclosed() -> nm.Tensor:
        nonlocal x
        x = x + 1
        return x.sum()

    assert [enclosed().item() for _ in range(3)] == [6, 9, 12]
    assert x.tolist() == [4, 4, 4]
    assert first.tolist() == [1, 1, 1]  # whoever held the old tensor keeps it
    assert traces("enclosed") == 1


def test_a_global() -> None:
    global total
    total = nm.zeros(())

    @nm.jit
    def adds(x: nm.Tensor) -> nm.Tensor:
        global total
        before = total
        total = total + x
        return before

    assert [adds(nm.asarray(2.0)).item() for _ in range(3)] == [0, 2, 4]
    assert total.item() == 6


def test_entries_of_dicts_and_lists() -> None:
    state = {"sum": nm.zeros(2), "pair": [nm.zeros(2), nm.ones(2)]}

    def step(state: dict, x: nm.Tensor) -> None:
        state["sum"] = state["sum"] + x
        a, b = state["pair"]
        state["pair"][0], state["pair"][1] = b, a + b

    jitted = nm.jit(lambda x: step(state, x))
    same = {"sum": nm.zeros(2), "pair": [nm.zeros(2), nm.ones(2)]}
    for i in range(4):
        jitted(nm.full((2,), float(i)))
        step(same, nm.full((2,), float(i)))
        assert state["sum"].tolist() == same["sum"].tolist()
        assert [x.tolist() for x in state["pair"]] == [x.tolist() for x in same["pair"]]


def test_a_container_that_is_replaced() -> None:
    params = {"w": nm.ones((2, 2)), "b": nm.zeros(2)}
    start = params

    def loss(params: dict, x: nm.Tensor) -> nm.Tensor:
        return ((x @ params["w"] + params["b"]) ** 2).sum()

    @nm.jit
    def descends(x: nm.Tensor) -> nm.Tensor:
        nonlocal params
        value, grads = nm.value_and_grad(loss)(params, x)
        params = {k: params[k] - 0.01 * grads[k] for k in params}
        return value

    x = nm.ones((1, 2))
    losses = [descends(x).item() for _ in range(5)]
    plain, expected = start, []
    for _ in range(5):
        value, grads = nm.value_and_grad(loss)(plain, x)
        plain = {k: plain[k] - 0.01 * grads[k] for k in plain}
        expected.append(value.item())
    assert losses == pytest.approx(expected, rel=1e-6)
    assert nm.allclose(params["w"], plain["w"])
    assert start["b"].tolist() == [0, 0]
    assert traces("descends") == 1


class Memory:
    """State that comes into being at the first call."""

    def __init__(self) -> None:
        self.value: nm.Tensor | None = None
        self.calls = 0

    def step(self, x: nm.Tensor) -> nm.Tensor:
        self.calls += 1
        self.value = x if self.value is None else 0.5 * self.value + x
        return self.value.sum()


def test_an_attribute_that_was_none() -> None:
    memory, plain = Memory(), Memory()
    step = nm.jit(memory.step)
    for i in range(4):
        x = nm.full((2,), float(i))
        assert step(x).item() == plain.step(x).item()
    assert memory.calls == 2  # traced without the value, then with it


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = nm.zeros(())


def test_slots_and_modules() -> None:
    slotted = Slotted()

    class Counts(nn.Module):
        def __init__(self) -> None:
            self.count = nm.zeros(())

        def forward(self, x: nm.Tensor) -> nm.Tensor:
            self.count = self.count + 1
            slotted.value = slotted.value + x
            return x * self.count

    model = Counts()
    jitted = nm.jit(lambda x: model(x))
    assert [jitted(nm.asarray(2.0)).item() for _ in range(3)] == [2, 4, 6]
    assert (model.count.item(), slotted.value.item()) == (3, 6)


def test_a_module_as_an_argument() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            self.count = nm.zeros(())

    @nm.jit
    def step(model: Counts, x: nm.Tensor) -> nm.Tensor:
        model.count = model.count + x
        return model.count

    one, other = Counts(), Counts()
    assert [step(m, nm.asarray(1.0)).item() for m in (one, one, other, one)] == [1, 2, 1, 3]


def test_new_tensors_that_require_gradients() -> None:
    w = nm.ones(2, requires_grad=True)

    @nm.jit
    def step(x: nm.Tensor) -> nm.Tensor:
        nonlocal w
        loss = (w * x).sum()
        loss.backward()
        w = (w - 0.1 * w.grad).detach().requires_grad_()
        return loss

    losses = [step(nm.ones(2)).item() for _ in range(3)]
    assert losses == pytest.approx([2.0, 1.8, 1.6])
    assert w.requires_grad
    assert w.grad is None


def test_a_variable_that_is_replaced_outside() -> None:
    w = nm.ones(2)
    kept = w  # so that nothing but the name changes
    jitted = nm.jit(lambda x: x * w)
    assert jitted(nm.ones(2)).tolist() == [1, 1]
    w = nm.full((2,), 5.0)
    assert jitted(nm.ones(2)).tolist() == [5, 5]
    w = nm.ones(3)
    assert jitted(nm.ones(3)).tolist() == [1, 1, 1]
    assert kept.tolist() == [1, 1]


def test_two_variables_of_one_tensor_diverge() -> None:
    a = {"x": nm.ones(())}
    b = {"x": a["x"]}

    @nm.jit
    def step() -> nm.Tensor:
        a["x"] = a["x"] + b["x"]
        return a["x"]

    assert [step().item() for _ in range(3)] == [2, 3, 4]
    assert b["x"].item() == 1


def test_an_error_leaves_variables_as_they_were() -> None:
    x = nm.ones(2)

    @nm.jit
    def fails(stop: bool) -> None:
        nonlocal x
        x = x + 1
        if stop:
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fails(True)
    assert x.tolist() == [1, 1]
    fails(False)
    assert x.tolist() == [2, 2]


def test_a_gradient_that_is_returned_and_cleared() -> None:
    w = nm.ones(2, requires_grad=True)

    @nm.jit
    def takes(x: nm.Tensor) -> nm.Tensor:
        (w * x).sum().backward()
        found = w.grad
        w.grad = None
        return found

    assert takes(nm.full((2,), 3.0)).tolist() == [3, 3]
    (w * 2).sum().backward()
    assert takes(nm.full((2,), 3.0)).tolist() == [5, 5]
    assert w.grad is None


def test_lists_that_grow_do_so_once() -> None:
    seen: list[nm.Tensor] = []
    jitted = nm.jit(lambda x: seen.append(x * 2) or x)
    jitted(nm.ones(2))
    jitted(nm.ones(2))
    assert len(seen) == 1
    with pytest.raises(nm.errors.TracingError, match="return it"):
        seen[0] + 1


def test_old_values_are_freed() -> None:
    import weakref

    state = {"x": nm.ones(1000)}
    first = weakref.ref(state["x"])

    @nm.jit
    def step() -> None:
        state["x"] = state["x"] + 1

    step()
    assert first() is None


def test_modules_that_switch_between_training_and_use() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5))

    @nm.jit
    def switched(x: nm.Tensor) -> nm.Tensor:
        return model(x)

    x = nm.random.normal((64, 2))
    with nm.no_grad():
        for _ in range(2):
            model.eval()
            assert (switched(x) == 0).sum().item() == 0
            model.train()
            assert (switched(x) == 0).sum().item() > 0
    assert traces("switched") == 2


def test_flags_of_objects_and_names() -> None:
    double = False

    class Options:
        def __init__(self) -> None:
            self.shift = False

    options = Options()

    @nm.jit
    def flagged(x: nm.Tensor) -> nm.Tensor:
        x = x * 2 if double else x
        return x + 1 if options.shift else x

    found = []
    for flags in [(False, False), (True, False), (True, True), (False, False)]:
        double, options.shift = flags
        found.append(flagged(nm.asarray(3.0)).item())
    assert found == [3, 6, 7, 3]
    assert traces("flagged") == 3
