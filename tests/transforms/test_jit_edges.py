"""nm.jit where functions do to their surroundings what Python allows."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import math
import sys
import types
import warnings

import numpy as np
import pytest

import numus as nm
from numus import nn, optim
from numus.errors import TracingError

# -- numbers among the arguments ------------------------------------------------------------------

USES_OF_NUMBERS = {
    "clip": lambda x, a: nm.clip(x, 0, a),
    "power": lambda x, a: x**a,
    "reflected power": lambda x, a: a**x,
    "linspace": lambda x, a: nm.linspace(0, a, 5),
    "round": lambda x, a: x * round(a),
    "divmod": lambda x, a: x * divmod(a, 2)[0] + divmod(7, a)[1],
    "floor": lambda x, a: x * math.floor(a) + math.ceil(a) - math.trunc(a),
    "pad": lambda x, a: nm.pad(x, (1, 2), constant_values=a),
    "a list": lambda x, a: nm.asarray([a, 2 * a, 1.0]),
    "full": lambda x, a: nm.full((2,), a),
    "parts": lambda x, a: x * a.real + a.imag + a.conjugate(),
}


@pytest.mark.parametrize("values", [(3, 2), (3.0, 0.5)], ids=["int", "float"])
@pytest.mark.parametrize("use", USES_OF_NUMBERS.values(), ids=USES_OF_NUMBERS)
def test_a_number_is_used_as_without_jit(use, values):
    x = nm.asarray([1.0, 2.0, 3.0])
    jitted = nm.jit(use)
    for number in values:
        want, found = use(x, number), jitted(x, number)
        assert found.dtype is want.dtype
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-6)


def test_a_number_is_an_index():
    row = nm.jit(lambda x, n: (x[n], x[0, n], x[:, n]))
    x = nm.arange(12.0).reshape(3, 4)
    for n in (0, 2, -1):
        for found, want in zip(row(x, n), (x[n], x[0, n], x[:, n]), strict=True):
            np.testing.assert_array_equal(found.numpy(), want.numpy())


@pytest.mark.parametrize(("dtype", "number"), [("int8", 300), ("uint8", -1), ("int64", 2**70)])
def test_a_number_that_a_dtype_does_not_hold_is_refused_at_every_call(dtype, number):
    add = nm.jit(lambda x, n: x + n)
    x = nm.ones(2, dtype=dtype)
    add(x, 1)
    with pytest.raises(OverflowError, match=f"{number} is out of range for {dtype}"):
        add(x, number)
    assert add(x, 2).tolist() == [3, 3]


def test_static_values_are_compared_by_type_and_bits():
    sign = nm.jit(nm.copysign, static_argnums=1)
    x = nm.asarray(1.0)
    assert [sign(x, 0.0).item(), sign(x, -0.0).item(), sign(x, 0.0).item()] == [1, -1, 1]
    add = nm.jit(lambda x, pair: x + pair[0], static_argnums=1)
    assert add(nm.asarray([1]), (1,)).dtype is nm.int64
    assert add(nm.asarray([1]), (1.0,)).dtype is nm.float32
    traces = []
    count = nm.jit(lambda x, n: traces.append(n) or x * n, static_argnums=1)
    for _ in range(3):
        count(x, math.nan)
    assert len(traces) == 1


# -- arguments and results ------------------------------------------------------------------------


def test_an_array_of_numpys_may_be_changed_inside_again_and_again():
    @nm.jit
    def f(x):
        x += 1
        return x

    given = np.zeros(3)
    for _ in range(3):
        assert f(given).tolist() == [1, 1, 1]
    assert given.tolist() == [0, 0, 0]


def test_results_that_are_equal_views_are_tensors_of_their_own():
    @nm.jit
    def f(x):
        y = x * 2
        return y, y[:], y.reshape(2), y

    a, b, c, d = f(nm.ones(2))
    assert d is a
    a[0] = 9
    assert (b.tolist(), c.tolist()) == ([2, 2], [2, 2])


def test_a_donated_argument_that_is_returned_stays_usable():
    @nm.jit(donate=0)
    def f(x, y):
        x += 1
        return x, x + y

    x = nm.ones(3) * 1
    for n in range(2, 5):
        x, more = f(x, nm.ones(3))
        assert x.tolist() == [n] * 3
        assert more.tolist() == [n + 1] * 3


def test_a_donated_argument_says_what_it_is():
    x = nm.ones(3) * 1
    nm.jit(lambda x: x * 2, donate=0)(x)
    assert "donated" in repr(x)


def test_invalid_argument_positions_are_refused():
    with pytest.raises(ValueError, match="static_argnums names argument 5"):
        nm.jit(lambda x: x, static_argnums=5)
    with pytest.raises(ValueError, match="donate names argument -2"):
        nm.jit(lambda x: x, donate=-2)
    nm.jit(lambda *xs: xs[0], donate=3)


def test_generators_and_coroutines_are_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for f in (generator, coroutine, functools.partial(generator)):
        with pytest.raises(TypeError, match="jit the functions that it calls"):
            nm.jit(f)


def test_the_warning_of_many_structures_names_the_callers_line():
    f = nm.jit(lambda x: x)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for n in range(12):
            f(nm.ones(n + 1))
    assert [w.filename for w in found] == [__file__]


# -- variables ------------------------------------------------------------------------------------


def test_entries_that_are_taken_away():
    entries = {"a": nm.ones(2), "b": nm.ones(2)}

    class Holder:
        pass

    holder = Holder()

    @nm.jit
    def f(x):
        out = x * entries.pop("a") + holder.extra
        del holder.extra
        return out

    for n in (1.0, 2.0, 3.0):
        entries["a"], holder.extra = nm.full((2,), n), nm.ones(2)
        assert f(nm.ones(2)).tolist() == [n + 1, n + 1]
        assert list(entries) == ["b"]
        assert not vars(holder)
    with pytest.raises(KeyError):
        f(nm.ones(2))


def test_lists_that_grow_shorter_or_move():
    queue = [nm.full((2,), n) for n in (1.0, 2.0, 3.0)]
    take = nm.jit(lambda x: x * queue.pop(0))
    assert [take(nm.ones(2)).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    assert queue == []
    window = [nm.zeros(1), nm.ones(1)]

    @nm.jit
    def push(x):
        window.pop(0)
        window.append(x * 1)
        return window[0] + window[1]

    assert [push(nm.full((1,), n)).item() for n in (2.0, 3.0, 4.0)] == [3, 5, 7]
    front = []

    @nm.jit
    def insert(x):
        front.insert(0, x * 1)
        return len(front)

    front.append(nm.zeros(1))
    assert [insert(nm.full((1,), n)) for n in (1.0, 2.0)] == [2, 3]
    assert [x.item() for x in front] == [2, 1, 0]


def test_attributes_of_classes_and_of_modules_in_modules(monkeypatch):
    class Settings:
        scale = nm.ones(2)
        negative = False

    f = nm.jit(lambda x: -x if Settings.negative else x * Settings.scale)
    assert f(nm.ones(2)).tolist() == [1, 1]
    old, Settings.scale = Settings.scale, nm.full((2,), 5.0)
    assert f(nm.ones(2)).tolist() == [5, 5]
    Settings.negative = True
    assert f(nm.ones(2)).tolist() == [-1, -1]
    assert old.tolist() == [1, 1]

    @nm.jit
    def grow(x):
        Settings.scale = Settings.scale + x
        return Settings.scale

    assert [grow(nm.ones(2)).tolist() for _ in range(2)] == [[6, 6], [7, 7]]
    outer, inner = types.ModuleType("outer_of_test"), types.ModuleType("outer_of_test.inner")
    outer.inner, inner.w = inner, nm.ones(2)
    monkeypatch.setitem(sys.modules, "outer_of_test", outer)
    space = {"nm": nm, "outer": outer, "__name__": "somebodys"}
    exec("@nm.jit\ndef f(x):\n  outer.inner.w = outer.inner.w + x\n  return outer.inner.w", space)
    assert [space["f"](nm.ones(2)).tolist() for _ in range(2)] == [[2, 2], [3, 3]]


@dataclasses.dataclass(frozen=True)
class Frozen:
    m: object
    v: object


Named = collections.namedtuple("Named", "m v")


@pytest.mark.parametrize("kind", [Frozen, Named, collections.OrderedDict])
def test_state_in_containers_of_every_kind(kind):
    made = lambda m, v: kind(m=m, v=v)
    read = (lambda s, k: s[k]) if kind is collections.OrderedDict else getattr
    state = made(nm.zeros(2), nm.asarray(0))

    @nm.jit
    def f(x):
        nonlocal state
        state = made(read(state, "m") + x, read(state, "v") + 1)
        return read(state, "m")

    for n in (1, 2, 3):
        assert f(nm.ones(2)).tolist() == [n, n]
        assert type(state) is kind
        assert read(state, "v").item() == n


def test_a_tensor_in_several_variables_that_becomes_two():
    shared = nm.zeros(2)
    entries = {"x": shared, "y": shared}

    @nm.jit
    def f(z):
        entries["x"] += z
        return entries["y"]

    assert f(nm.ones(2)).tolist() == [1, 1]
    entries["x"] = nm.zeros(2)
    assert f(nm.ones(2)).tolist() == [1, 1]
    assert entries["x"].tolist() == [1, 1]


def test_a_layer_replaced_in_a_model_whose_old_one_the_optimiser_still_holds():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    opt = optim.SGD(model.parameters(), lr=0.1)

    @nm.jit
    def step(x):
        opt.zero_grad()
        loss = model(x).sum()
        loss.backward()
        opt.step()
        return loss

    x = nm.ones((1, 2))
    for _ in range(3):
        step(x)
    model[0] = nn.Linear(2, 2)
    model[0].weight.assign(nm.ones((2, 2)))
    model[0].bias.assign(nm.zeros(2))
    assert step(x).item() == 4
    assert model[0].weight.grad is not None


def test_a_group_of_parameters_added_to_an_optimiser():
    first, second = (nn.Parameter(nm.ones(2)) for _ in range(2))
    opt = optim.SGD([first], lr=0.5)

    @nm.jit
    def step():
        opt.zero_grad()
        (first.sum() + second.sum()).backward()
        opt.step()

    step()
    opt.add_param_group({"params": [second], "lr": 1.0})
    step()
    assert (first.tolist(), second.tolist()) == ([0, 0], [0, 0])
    copy.deepcopy(opt.state_dict())


def test_what_a_function_appended_is_taken_away_when_it_fails():
    found = [nm.ones(2)]
    told = []

    @nm.jit
    def f(x):
        found.append(x)
        told.append("traced")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        f(nm.ones(2))
    assert len(found) == 1
    assert told == ["traced"]


def test_what_was_appended_is_there_once_and_says_so_when_used():
    found = []
    f = nm.jit(lambda x: found.append(x * 2) or x)
    f(nm.ones(2))
    f(nm.ones(2))
    assert len(found) == 1
    with pytest.raises(TracingError, match="return it from the function"):
        found[0].numpy()


# -- values ---------------------------------------------------------------------------------------


def test_a_change_in_place_that_changes_nothing_hides_no_other():
    w, entries = nm.ones(2), {"v": nm.ones(2)}

    @nm.jit
    def f(x):
        w.__iadd__(x)
        w.__isub__(0)  # what it stands for stays the same
        entries["v"] -= 0
        entries["v"] = entries["v"] * 2
        return w

    for n in (1, 2, 3):
        f(nm.ones(2))
        assert w.tolist() == [1 + n] * 2
        assert entries["v"].tolist() == [2**n] * 2


def test_loops_and_branches_on_constants():
    @nm.jit
    def f(x):
        constant = nm.asarray(np.arange(4.0, dtype=np.float32))
        total, sums = nm.scan(lambda c, y: (c + y, c + y), 0.0, constant)
        chosen = nm.cond(constant.sum() > 3, lambda y: y * 2, lambda y: y, constant)
        return x * total, sums + x, chosen

    for _ in range(2):
        a, b, c = f(nm.ones(4))
        assert (a.tolist(), b.tolist()) == ([6] * 4, [1, 2, 4, 7])
        assert c.tolist() == [0, 2, 4, 6]


def test_a_tensor_that_is_two_donated_arguments_and_a_result():
    f = nm.jit(lambda a, b: (a, a + b), donate=(0, 1))
    f(nm.ones(2) * 1, nm.ones(2) * 1)
    x = nm.ones(2) * 1
    found = f(x, x)
    assert [y.tolist() for y in found] == [[1, 1], [2, 2]]


def test_calls_that_fail_are_no_structures():
    @nm.jit
    def f(x):
        raise ValueError("no")

    for _ in range(12):  # a warning is an error here
        with pytest.raises(ValueError, match="no"):
            f(nm.ones(2))


def test_a_schedule_steps_outside():
    model = nn.Linear(2, 1)
    opt = optim.SGD(model.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.StepLR(opt, 1)
    with pytest.raises(TracingError, match=r"call its step\(\) outside"):
        nm.jit(lambda x: schedule.step())(nm.ones(2))
    assert (schedule.last_epoch, opt.param_groups[0]["lr"]) == (0, 0.1)
