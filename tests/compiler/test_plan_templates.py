"""Plans of other sizes: a known structure is not fused again, and gets the groups that fusion
gives for these sizes, whatever sizes came before."""

import numpy as np
import pytest

import numus as nm
from numus.compiler import plan, plan_template
from numus.compiler.fused_graph import FusedGraph
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.lower import autotune
from numus.compiler.plan import Plan, clear_plans
from numus.ir import kernel_text


def _description(fused):
    """All that a plan is made from."""
    number = {v.id: v for v in fused.values()}
    values = [
        (v.id, v.op, v.kind, [x.id for x in v.inputs], v.params, v.shape, v.dtype)
        for v in number.values()
    ]
    groups = [
        (g.kind, g.space, g.axes, [m.id for m in g.members], sorted(v.id for v in g.stored))
        for g in fused.groups
    ]
    views = [(x.base.id, x.offset, x.strides) for x in fused.views]
    strides = [fused.leaf_strides[v] for v in fused.leaves]
    return values, groups, views, strides, fused.saved_for_backward


def _steps(made):
    """Each kernel with its grid and scalars."""
    values = list(made.values)
    for i, *_ in made.scalar_patches:
        values[i] = "constant"
    at = 0
    for step in made.launches:
        end = at + 1 + len(step.program.kernel.scalars)
        yield step, tuple(values[at:end])
        at = end
    assert at == len(values)


def _launches(made):
    """All that kernels are given, apart from places in memory."""
    return sorted(
        (kernel_text(step.program.kernel), repr(values), list(step.nbytes), list(step.scratch))
        for step, values in _steps(made)
    )


def _overlap(a, b):
    return a.start < b.stop and b.start < a.stop


def _check_memory(made, workers):
    """Kernels read from the arena what is written there as a whole, and waves are independent."""
    arena = made.leaf_count + len(made.result_bytes)
    written = set()  # ranges of the arena
    wave = []
    for step, (grid, *_) in _steps(made):
        own = []  # slots, bytes, and accesses
        count = len(step.nbytes)
        buffers = list(zip(step.program.kernel.buffers, step.buffers, strict=True))
        for (buffer, (slot, at)), size in zip(buffers[:count], step.nbytes, strict=True):
            own.append((slot, range(at, at + size), buffer.access))
        if step.scratch:
            slot, at = step.buffers[count]
            assert step.scratch_pitch >= sum(step.scratch)
            assert slot == arena
            size = min(workers, grid) * step.scratch_pitch
            own.append((slot, range(at, at + size), "scratch"))
        wave = wave if step.concurrent else []
        for slot, place, access in own:
            if slot == arena:
                assert place.stop <= made.arena
                assert access != "read" or place in written
            for other, there, how in wave:
                if slot == other and _overlap(place, there):
                    assert access == how != "write"
        for slot, place, access in own:
            if slot == arena and access != "read":
                written = {r for r in written if not _overlap(r, place)}
                written |= {place} if access == "write" else set()
        wave += own


@pytest.fixture
def checked(monkeypatch):
    """Compares all that templates give with fusion and plans of the same sizes; counts plans, those
    that were scheduled, and recorded fusions."""
    clear_plans()
    monkeypatch.setattr(autotune.choices, "_known", {})  # products as usual
    counts = {"plans": 0, "scheduled": 0, "fused": 0}
    new_plan, init = plan._new_plan, FusedGraph.__init__

    def compared(device, graph, roots):
        made = new_plan(device, graph, roots)
        counts["plans"] += 1
        counts["scheduled"] += isinstance(made, Plan)
        wanted = FusedGraph.__new__(FusedGraph)
        init(wanted, graph, roots, device.runtime.target)
        match = plan_template.structure_of(device, graph).match(graph.numbers)
        if match is not None:
            got = match.fused
            assert _description(got) == _description(wanted)
            numbers = [n for v in got.values() for n in v.shape]
            assert all(type(n) is int for n in numbers)
        full = Plan(device, wanted)
        assert _launches(made) == _launches(full)
        assert made.result_bytes == full.result_bytes
        assert made.outputs == full.outputs
        assert made.saved_for_backward == full.saved_for_backward
        _check_memory(made, device.runtime.target.num_cores)
        return made

    def counted(self, *args, **kwargs):
        counts["fused"] += 1
        init(self, *args, **kwargs)

    monkeypatch.setattr(plan, "_new_plan", compared)
    monkeypatch.setattr(FusedGraph, "__init__", counted)
    yield counts
    clear_plans()


def block(n, device):
    """A transformer's block without a cache, and the next token."""
    w = [nm.ones(s, device=device) for s in ((16, 48), (16, 16), (16, 64), (64, 16), (16, 11))]
    x = nm.ones((1, n, 16), device=device)
    nm.eval(x, *w)
    y = nm.layer_norm(x) @ w[0]
    q, k, v = (y[..., 16 * i : 16 * i + 16].reshape(1, n, 2, 8).swapaxes(1, 2) for i in range(3))
    y = nm.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + y.swapaxes(1, 2).reshape(1, n, 16) @ w[1]
    x = x + nm.gelu(x @ w[2]) @ w[3]
    return nm.argmax((x @ w[4])[:, -1], axis=-1)


def cached(n, device):
    """Attention of one query to a cache that grows."""
    cache, new = nm.ones((2, n, 8), device=device), nm.ones((2, 1, 8), device=device)
    nm.eval(cache, new)
    keys = nm.concat([cache, new], axis=1)
    return nm.softmax(new @ keys.swapaxes(1, 2), axis=-1) @ keys, keys


def statistics(n, device):
    x = nm.ones((n, 2 * n + 1), device=device)
    nm.eval(x)
    return nm.softmax(x, axis=-1), x.sum(axis=0), x.mean(), x[::-1, 1:].T.var(axis=1)


def gradients(n, device):
    x, w = nm.ones((n, 12), device=device), nm.ones((12, 7), device=device)
    nm.eval(x, w)
    return nm.grad(lambda x, w: (nm.tanh(x @ w) ** 2).mean(), argnums=(0, 1))(x, w)


@pytest.mark.parametrize("f", [block, cached, statistics, gradients])
def test_groups_are_those_of_fusion(f, checked):
    for n in (1, 2, 3, 4, 5, 9, 8, 16, 17, 40, 31, 33, 11, 12):
        nm.eval(f(n, "null"))
    assert checked["fused"] < checked["plans"]


@pytest.mark.parametrize("f", [block, cached, gradients])
def test_growing_lengths_are_fused_a_few_times(f, checked):
    for n in range(20, 23):
        nm.eval(f(n, "null"))
    before = checked["fused"]
    for n in range(23, 40):
        nm.eval(f(n, "null"))
    assert checked["plans"] >= 20
    assert checked["fused"] <= before + 1


@pytest.mark.parametrize("f", [block, cached, gradients])
def test_growing_lengths_are_scheduled_a_few_times(f, checked):
    for n in range(20, 60):
        nm.eval(f(n, "null"))
    assert checked["plans"] >= 40
    assert checked["scheduled"] <= 6


def test_two_sizes_vary(checked):
    for m, n in [(20, 30), (21, 31), (22, 31), (21, 40), (27, 50), (60, 33), (33, 60)]:
        x = nm.ones((m, n), device="null")
        nm.eval(x)
        nm.eval(nm.softmax(x * 2, axis=-1), x.sum(axis=0))
    assert checked["fused"] - 7 <= 4


def test_values_do_not_depend_on_the_sizes_before():
    def run(n):
        rng = np.random.default_rng(n)
        x = nm.asarray(rng.standard_normal((n, 24)).astype("float32"))
        w = nm.asarray(rng.standard_normal((24, 24)).astype("float32"))
        y = nm.softmax(nm.gelu(x @ w) @ w.T, axis=-1)
        return np.concatenate([y.numpy().ravel(), (y - y.mean()).sum(axis=0).numpy()]).tobytes()

    sizes = (3, 4, 7, 12, 24, 25, 40)
    wanted = []
    for n in sizes:
        clear_plans()
        wanted.append(run(n))
    clear_plans()
    assert [run(n) for n in sizes] == wanted
    clear_plans()
    assert [run(n) for n in reversed(sizes)] == wanted[::-1]


def test_old_templates_are_dropped(monkeypatch):
    monkeypatch.setattr(plan_template, "_MAX_VALUES", 60)
    clear_plans()
    for depth in range(1, 12):
        for n in (20, 21, 22):
            x = nm.ones((n, 8), device="null")
            nm.eval(x)
            y = x
            for _ in range(depth):
                y = nm.exp(y) + x
            nm.eval(y)
    made = [template for _, template in plan_template._made]
    assert made
    assert sum(template.size for template in made) <= 60
    held = [t for s in plan_template._structures._entries.values() for t in s.templates]
    assert {id(t) for t in held} == {id(t) for t in made}
    clear_plans()


def test_leaves_and_constants_are_told_apart():
    x, zero, one = nm.asarray(3.0) + 0, nm.zeros(()), nm.ones((1,))
    nm.eval(x, zero, one)
    assert [(x * 2 - y).tolist() for y in (0, zero, nm.asarray(4.0) + 0)] == [6.0, 6.0, 2.0]
    assert [nm.sum(x * y).item() for y in (1, one, nm.asarray([2.0, 3.0]))] == [3.0, 3.0, 15.0]
    operands = [nm.asarray(2.0), nm.asarray(0.0), nm.ones(()) * 3, nm.ones(7) * 3]
    nm.eval(operands[2:])
    skeletons = {GraphSignature([nm.negative(y)._node]).skeleton for y in operands}
    assert len(skeletons) == 4


def test_equal_constants_are_one_whether_or_not_they_share_a_node(checked):
    """The first calls of a function make new constants, later ones share those of a template."""
    x, half = nm.ones((30, 20), device="null"), nm.asarray(0.5, device="null")
    nm.eval(x)
    nm.eval((x * 0.5 + 1) * 0.5)
    assert checked["plans"] == 2  # the first is of the ones
    nm.eval((x * half + 1) * half)
    assert checked["plans"] == 2


def test_empty_sizes_of_a_known_structure():
    """Groups without elements have no kernels, whatever other sizes needed."""
    for shape in ((3, 2), (5, 2), (7, 2), (4, 2), (9, 3), (0, 2), (6, 2), (2, 0), (0, 0)):
        x = nm.asarray(np.ones(shape))
        for axis in (0, 1):
            np.testing.assert_array_equal(nm.cumsum(x, axis).numpy(), np.ones(shape).cumsum(axis))
            assert nm.softmax(x * 2, axis=axis).numpy().shape == shape
        np.testing.assert_array_equal((x @ x.T + 1).numpy(), np.ones(shape) @ np.ones(shape).T + 1)
