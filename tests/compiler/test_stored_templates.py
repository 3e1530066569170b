"""Lowering templates on disk: another process finds the kernels that lowering would give."""

import dataclasses
import hashlib

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.compiler import plan_template
from numus.compiler.fused_graph import FusedGraph
from numus.compiler.fusion.fuser import Fuser
from numus.compiler.lower import autotune, stored_templates, templates
from numus.compiler.plan import Plan, clear_plans
from numus.runtime.devices import BACKENDS

pytestmark = pytest.mark.on_cpu("templates are those of CPUs, and of a machine of its own")


@pytest.fixture
def counts(monkeypatch, tmp_path):
    """An empty cache on disk, and the number of lowerings."""
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stored_templates, "enabled", True)
    monkeypatch.setattr(autotune.choices, "_known", {})  # products as usual
    found = {"lowered": 0}
    record = templates._record

    def counted(*args):
        found["lowered"] += 1
        return record(*args)

    monkeypatch.setattr(templates, "_record", counted)
    clear_plans()
    yield found
    clear_plans()


def run(n):
    rng = np.random.default_rng(n)
    x = nm.asarray(rng.standard_normal((n, 24)).astype("float32"))
    w = nm.asarray(rng.standard_normal((24, 40)).astype("float32"))
    y = nm.gelu(x @ w + 0.25)
    nm.eval(y)
    q = y.reshape(1, n, 2, 20).swapaxes(1, 2)
    z = nm.scaled_dot_product_attention(q, q, q, is_causal=True)
    return b"".join(a.numpy().tobytes() for a in (nm.softmax(y, axis=-1), z, nm.cumsum(x, axis=0)))


def test_nothing_is_lowered_again(counts):
    sizes = (5, 9, 30, 31)
    wanted = [run(n) for n in sizes]
    first, counts["lowered"] = counts["lowered"], 0
    assert first > 4
    clear_plans()  # as in a new process
    assert [run(n) for n in sizes] == wanted
    assert counts["lowered"] == 0


def test_statements_are_those_that_were_stored(counts, monkeypatch):
    run(12)
    kernels = []
    load = stored_templates.load

    def watched(name):
        found = load(name)
        kernels.extend(() if found is None else [step.kernel for step in found.steps])
        return found

    monkeypatch.setattr(stored_templates, "load", watched)
    clear_plans()
    run(12)
    assert kernels  # how many depends on the CPU: its schedules, and which of them fuse
    for kernel in kernels:
        digest = kernel.cached_digest
        kernel.cached_text = None
        assert hashlib.sha256(ir.kernel_text(kernel).encode()).digest() == digest


def layers(n):
    """Enough of a network to be stored as a plan."""
    rng = np.random.default_rng(0)
    w = nm.asarray(rng.standard_normal((16, 16)).astype("float32"))
    x = nm.asarray(rng.standard_normal((n, 16)).astype("float32"))
    for _ in range(4):
        x = x + nm.gelu(nm.layer_norm(x) @ w)
    return x.numpy().tobytes()


def test_a_stored_plan_is_neither_fused_nor_scheduled(counts, monkeypatch):
    sizes = (1, 20, 21, 22, 35, 50)
    wanted = [layers(n) for n in sizes]
    plan_template.store_all()  # as at the end of a process
    made, loaded = [], []
    for of in (FusedGraph, Plan):
        init = of.__init__

        def counted(self, *args, init=init, **kwargs):
            made.append(type(self))
            init(self, *args, **kwargs)

        monkeypatch.setattr(of, "__init__", counted)
    load = stored_templates.load

    def watched(name):
        found = load(name)
        loaded.extend([] if found is None else [name])
        return found

    monkeypatch.setattr(stored_templates, "load", watched)
    clear_plans()
    counts["lowered"] = 0
    assert [layers(n) for n in sizes] == wanted
    assert (made, counts["lowered"]) == ([], 0)
    assert len(loaded) <= 2  # one row has a structure of its own
    assert layers(40) == layers(40)
    assert FusedGraph not in made


def test_a_stored_plan_of_other_schedules_is_not_used(counts, monkeypatch):
    wanted = [layers(n) for n in (20, 21, 22)]
    plan_template.store_all()
    clear_plans()
    monkeypatch.setattr(stored_templates, "_version", lambda: "another")
    counts["lowered"] = 0
    assert [layers(n) for n in (20, 21, 22)] == wanted
    assert counts["lowered"] > 0


def test_a_damaged_template_is_lowered_again(counts, tmp_path):
    wanted = run(7)
    first, counts["lowered"] = counts["lowered"], 0
    stored_templates.flush()
    for path in (tmp_path / "kernels").glob("*/*"):
        path.write_bytes(path.read_bytes()[:-9] + b"damaged..")
    clear_plans()
    assert run(7) == wanted
    assert counts["lowered"] == first


def test_structures_without_a_name_outside_of_the_process(counts):
    target = nm.device("cpu").runtime.target
    assert stored_templates.name(("loop", object()), [3], target) is None
    assert stored_templates.name(("loop", (1, "a")), [3], target) is not None


def test_kernels_of_gpus_are_lowered_once(counts, monkeypatch):
    """For sizes of their own; what a kernel needs of itself is stored with it."""
    target = dataclasses.replace(simt_machine.HOPPER, language="ptx")
    BACKENDS["simt_stored"] = lambda index: simt_machine.Machine(target)
    lowered = []
    lower_group = templates.lower_group
    monkeypatch.setattr(
        templates, "lower_group", lambda *args: lowered.append(args) or lower_group(*args)
    )
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((33, 64), (64, 48))]

    def run(device):
        x, w = (nm.asarray(a, device=device) for a in arrays)
        y = nm.softmax(x @ w * 2.5, axis=-1)
        return y.numpy(), nm.sum(y, axis=0).numpy()

    found = []
    for _ in range(2):
        found.append(run("simt_stored"))
        stored_templates.flush()
        clear_plans()  # as in a new process
        count, lowered[:] = len(lowered), []
        found.append(count)
    first, some, again, none = found
    assert some >= 2
    assert none == 0
    for a, b, c in zip(first, again, run("cpu"), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5)


def test_traced_graphs_of_gpus_are_fused_once(counts, monkeypatch):
    """With parameters that are objects, state that is replaced, and a chain of operations."""
    target = dataclasses.replace(simt_machine.HOPPER, language="ptx")
    BACKENDS["simt_fused"] = lambda index: simt_machine.Machine(target)
    fused = []
    run_fuser = Fuser.run
    monkeypatch.setattr(Fuser, "run", lambda self: fused.append(self) or run_fuser(self))

    def steps(device):
        rng = np.random.default_rng(0)
        x, state = (
            nm.asarray(rng.standard_normal((2, 2, 9, 8)).astype("f"), device=device)
            for _ in range(2)
        )

        @nm.jit
        def step(x):
            y = nm.scaled_dot_product_attention(x, x, x, is_causal=True)
            for i in range(60):
                y = nm.tanh(y + 0.25 * i)
            state.assign(state + y)
            return y.sum(axis=-1)

        return step(x).numpy(), step(x).numpy(), state.numpy()

    want = steps("cpu")
    found = []
    for _ in range(2):
        fused.clear()
        found.append(steps("simt_fused"))
        found.append(len(fused))
        stored_templates.flush()
        clear_plans()  # as in a new process
    first, some, again, none = found
    assert some >= 1
    assert none == some - 1  # the traced one is not
    for a, b, c in zip(first, again, want, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-5)
