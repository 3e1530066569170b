"""Schedules chosen by measuring them."""

import json
from dataclasses import replace

import numpy as np
import pytest

import numus as nm
from numus.compiler import hooks
from numus.compiler.lower import autotune, stored_templates, templates
from numus.compiler.lower.autotune import _storage_extent
from numus.compiler.lower.dispatch import lower_group
from numus.compiler.plan import clear_plans


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "choices", autotune._Choices())
    monkeypatch.setattr(autotune, "SECONDS", 1e-4)
    clear_plans()
    yield tmp_path
    clear_plans()


def operands():
    rng = np.random.default_rng(0)
    return (nm.asarray(rng.standard_normal((200, 200)).astype("f")) for _ in range(2))


def forget():
    """As a new process would."""
    autotune.choices = autotune._Choices()
    clear_plans()


def test_nothing_is_measured_unless_asked_for(folder, monkeypatch):
    monkeypatch.setattr(autotune, "_best", None)
    x, y = operands()
    nm.eval(x @ y)
    assert not (folder / "tuning.json").exists()


def test_what_is_measured_is_remembered(folder, monkeypatch):
    x, y = operands()
    usual = (x @ y).numpy()
    with nm.tune():
        tuned = (x @ y).numpy()
    assert tuned.tobytes() == usual.tobytes()
    found = json.loads((folder / "tuning.json").read_text())
    assert len(found) == 1
    assert set(found.values()) <= {"", *autotune.VARIANTS}
    forget()
    monkeypatch.setattr(autotune, "_best", None)  # nothing is measured again
    with nm.tune():
        assert (x @ y).numpy().tobytes() == usual.tobytes()


def let_win(monkeypatch, variant):
    """A variant is measured to be quicker than all others."""
    monkeypatch.setattr(autotune, "_times", lambda runs, _: {n: float(n != variant) for n in runs})


@pytest.mark.parametrize("variant", autotune.VARIANTS)
def test_every_choice_gives_the_same_bits(folder, monkeypatch, variant):
    x, y = operands()
    image, weight = nm.reshape(x, (2, 5, 100, 40)), nm.reshape(y, (16, 5, 5, 100))[..., :5]
    nm.eval(image, weight)

    def results():
        return [z.numpy().tobytes() for z in (x @ y, nm.conv2d(image, weight, padding=2))]

    usual = results()
    clear_plans()
    let_win(monkeypatch, variant)
    with nm.tune():
        assert results() == usual


@pytest.mark.on_cpu("the order of sums in its vectors")
def test_what_gives_other_bits_is_no_choice(folder, monkeypatch):
    """Vectors of another width add up otherwise, as more units of a GPU do."""
    narrow = {"narrow": lambda target: replace(target, vector_bytes=target.vector_bytes // 2)}
    monkeypatch.setattr(autotune, "VARIANTS", narrow)
    let_win(monkeypatch, "narrow")
    x, y = operands()
    for of in (lambda: x @ y, lambda: x @ y[0]):
        usual = of().numpy().tobytes()
        with nm.tune():
            assert of().numpy().tobytes() == usual
    assert sorted(json.loads((folder / "tuning.json").read_text()).values()) == ["", "narrow"]


@pytest.mark.on_cpu("variants that differ")
def test_strided_operands_are_measured_in_memory_of_their_extent(folder, monkeypatch):
    # half the vector width is another kernel on every CPU, whatever its caches
    half = {"half": lambda target: replace(target, vector_bytes=target.vector_bytes // 2)}
    monkeypatch.setattr(autotune, "VARIANTS", half)
    extents = []

    def watched(*of):
        extents.append(_storage_extent(*of))
        return extents[-1]

    monkeypatch.setattr(autotune, "_storage_extent", watched)
    x, y = operands()
    nm.eval(x, y)
    with nm.tune():
        nm.eval(x[::-2, ::4] @ y[50:100])
    assert {(99 * 400, 99 * 400 + 1 + 49 * 4), (0, 50 * 200)} <= set(extents)


@pytest.mark.on_cpu("kernels on disk")
def test_programs_are_measured_unasked_when_nothing_has_to_be_compiled(folder, monkeypatch):
    met = []
    monkeypatch.setattr(stored_templates, "enabled", True)
    monkeypatch.setattr(autotune, "UNASKED_FLOPS", (0, 1 << 40))
    monkeypatch.setattr(autotune, "_best", lambda *of: met.append(of) or "")
    x, y = operands()
    results = []
    for repeats in (0, 1, 1):  # in the first process kernels are new, in the third all is known
        clear_plans()
        results.append(nm.jit(lambda x, y: nm.exp2(nm.sin(nm.tanh(x @ y))))(x, y).numpy().tobytes())
        assert len(met) == repeats
    assert len(set(results)) == 1
    (key,) = json.loads((folder / "tuning.json").read_text())
    assert key.endswith(autotune.UNASKED)
    with nm.tune():  # all variants
        nm.eval(nm.exp2(nm.sin(nm.tanh(x @ y))))
    assert len(met) == 2
    nm.eval(x @ y)  # eagerly nothing is
    assert len(met) == 2


@pytest.mark.on_cpu("the order of sums in its vectors")
def test_a_lucky_measurement_is_no_choice(folder, monkeypatch):
    narrow = {"narrow": lambda target: replace(target, vector_bytes=target.vector_bytes // 2)}
    monkeypatch.setattr(autotune, "VARIANTS", narrow)
    seconds = iter([{"": 2.0, "narrow": 1.0}, {"": 1.0, "narrow": 1.0}])
    monkeypatch.setattr(autotune, "_times", lambda *_: next(seconds))
    x, y = operands()
    with nm.tune():
        nm.eval(x @ y)
    assert list(json.loads((folder / "tuning.json").read_text()).values()) == [""]


@pytest.mark.on_cpu("templates")
def test_a_choice_leaves_templates_on(folder, monkeypatch):
    """Lowering runs once for each structure and variant, whatever was measured."""
    narrow = {"narrow": lambda target: replace(target, vector_bytes=target.vector_bytes // 2)}
    monkeypatch.setattr(autotune, "VARIANTS", narrow)
    let_win(monkeypatch, "narrow")
    x, y = operands()
    with nm.tune():
        nm.eval(x @ y)
    forget()
    lowered = []
    monkeypatch.setattr(
        templates, "lower_group", lambda *of: lowered.append(of[2]) or lower_group(*of)
    )
    for size in range(170, 190):
        nm.eval(x[:size] @ y[:, : size + 1])
    assert len(lowered) < 6
    before = len(lowered)
    nm.eval(x @ y)
    usual = nm.device("cpu").runtime.target
    assert all(t.vector_bytes < usual.vector_bytes for t in lowered[before:])
    assert all(t is usual for t in lowered[:before])


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 3}', '{"a": "no such variant"}'])
def test_a_damaged_file_is_no_harm(folder, content):
    (folder / "tuning.json").write_text(content)
    x, y = operands()
    with nm.tune():
        nm.eval(x @ y)
    assert len(json.loads((folder / "tuning.json").read_text())) >= 1


@pytest.mark.on_cpu("kernels that are compiled quickly")
def test_loops_of_programs_are_compiled_well(folder):
    """Kernels of a few thousand elements are short where they run once, and not where often."""

    def short(function):
        found = []

        def watch(device, plan, leaves, constants):
            found.extend(step.kernel.small for step in plan.steps)

        hooks.before_run.append(watch)
        try:
            nm.eval(function())
        finally:
            hooks.before_run.remove(watch)
        return found

    x = nm.asarray(np.linspace(0, 1, 3000, dtype=np.float32))
    nm.eval(x)
    assert short(lambda: nm.exp(x) * 2) == [True]
    with autotune.repeated():
        clear_plans()
        assert short(lambda: nm.exp(x) * 2) == [False]
        assert short(lambda: nm.exp(x[:100]) * 2) == [True]
    clear_plans()
