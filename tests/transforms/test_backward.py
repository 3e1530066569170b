"""The tape's face: backward(), .grad, hooks, modes, in-place changes."""

import gc
import threading
import weakref

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError
from numus.primitives import elementwise as ew
from numus.primitives.source import constant, placeholder
from numus.transforms.reverse import pull_back
from numus.transforms.tape import tape, variable


def leaf(values, dtype=nm.float64):
    x = nm.asarray(values, dtype=dtype)
    x.requires_grad = True
    return x


# -- backward -------------------------------------------------------------------------------------


def test_gradients_accumulate():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    (3 * x).sum().backward()
    assert x.grad.tolist() == [5.0, 7.0]
    assert not x.grad.requires_grad
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_a_graph_can_be_walked_again():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    y.backward()
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [4.0, 8.0]


def test_a_seed_is_needed_for_more_than_one_element():
    x = leaf([1.0, 2.0])
    with pytest.raises(GradientError, match="scalar"):
        (x * x).backward()
    (x * x).backward(nm.asarray([1.0, 10.0], dtype=nm.float64))
    assert x.grad.tolist() == [2.0, 40.0]
    with pytest.raises(GradientError, match=r"float64\[2\]"):
        (x * x).backward(nm.ones(3, dtype=nm.float64))
    with pytest.raises(GradientError, match="float32"):
        (x * x).backward(nm.ones(2, dtype=nm.float32))


def test_one_element_needs_no_seed():
    x = leaf([[3.0]])
    (x * x).backward()
    assert x.grad.tolist() == [[6.0]]


def test_backward_without_history_is_an_error():
    with pytest.raises(GradientError, match="requires_grad"):
        nm.asarray(1.0).backward()


def test_several_paths_meet():
    x = leaf(2.0)
    y = x * x
    z = y * x + y + nm.exp(y)
    z.backward()
    np.testing.assert_allclose(x.grad.item(), 3 * 4 + 2 * 2 + np.exp(4) * 4)


def test_forced_values_do_not_cut_gradients():
    x = leaf([1.0, 2.0, 3.0])
    y = x * x
    assert y.tolist() == [1.0, 4.0, 9.0]
    z = y.reshape(3, 1).T[0, 1:]
    assert z.tolist() == [4.0, 9.0]
    total = z.sum()
    if total > 1:  # Python conditions on values are fine
        total = total * 2
    total.backward()
    assert x.grad.tolist() == [0.0, 8.0, 12.0]


def test_create_graph_gives_higher_orders():
    x = leaf(2.0)
    (x**4).backward(create_graph=True)
    first = x.grad
    assert first.requires_grad
    x.grad = None
    first.backward(create_graph=True)
    second = x.grad
    np.testing.assert_allclose(second.item(), 12 * 4)
    x.grad = None
    second.backward()
    np.testing.assert_allclose(x.grad.item(), 24 * 2)
    assert not x.grad.requires_grad


def test_a_tracked_seed_leaves_an_untracked_gradient():
    x, seed = leaf([1.0]), leaf([5.0])
    (x + 0).backward(seed)
    assert x.grad.tolist() == [5.0]
    assert not x.grad.requires_grad


def test_inputs_limit_the_walk():
    x, w = leaf(2.0), leaf(3.0)
    y = x * w
    z = y * y
    z.backward(inputs=[w])
    assert x.grad is None
    assert w.grad.item() == 2 * 6 * 2
    z.backward(inputs=y)
    assert y.grad.item() == 12
    with pytest.raises(GradientError, match=r"inputs\[0\]"):
        z.backward(inputs=[nm.asarray(1.0)])


def test_autograd_grad_touches_no_slot():
    x, w = leaf(2.0), leaf(3.0)
    y = x * x * w
    (g,) = nm.autograd.grad(y, x, create_graph=True)
    (h,) = nm.autograd.grad(g, [x])
    assert (g.item(), h.item()) == (12, 6)
    assert x.grad is None
    assert nm.autograd.grad(x * x, [x, w], allow_unused=True)[1] is None
    with pytest.raises(GradientError, match="allow_unused"):
        nm.autograd.grad(x * x, w)


def test_a_long_chain():
    x = leaf(1.0)
    y = x
    for _ in range(5000):  # several times past the bound of the pending graph
        y = y * 1.0
    y.backward()
    assert x.grad.item() == 1.0


def test_a_chain_of_a_hundred_thousand():
    """No recursion, neither along the chain nor when it is let go; here without values."""
    x = variable(placeholder((), nm.float32, None, "a test"))
    y = x
    for _ in range(100_000):
        y = ew.sin(y)
    found = pull_back(tape((y,)), {y: constant(1.0, nm.float32)}, {x})
    assert found[x].shape == ()
    del y, found
    gc.collect()


def test_float_dtypes_keep_to_themselves():
    for dtype in (nm.float16, nm.bfloat16, nm.float32, nm.float64):
        x = leaf([1.0, 2.0], dtype)
        (x * x).sum().backward()
        assert x.grad.dtype is dtype
        assert x.grad.tolist() == [2.0, 4.0]


def test_gradients_pass_casts_and_scalars():
    x = leaf([1.0, 2.0], nm.float32)
    y = (nm.astype(x, nm.float64) * 3 + 1) * nm.asarray(2.0, dtype=nm.float64)
    y.sum().backward()
    assert x.grad.dtype is nm.float32
    assert x.grad.tolist() == [6.0, 6.0]


def test_integers_have_no_gradients():
    with pytest.raises(GradientError, match="int64"):
        leaf([1, 2], nm.int64)
    x = leaf([1.5, 2.5])
    assert not nm.argmax(x).requires_grad
    assert not (x > 2).requires_grad


# -- hooks ----------------------------------------------------------------------------------------


def test_hooks_see_and_replace_gradients():
    x = leaf([1.0, 2.0])
    y = x * x
    seen = []
    handle = y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert seen == [[1.0, 1.0]]
    assert x.grad.tolist() == [21.0, 41.0]
    handle.remove()
    y.sum().backward()
    assert len(seen) == 1


def test_a_hook_runs_once_on_the_complete_gradient():
    x = leaf(3.0)
    seen = []
    y = x * 2
    y.register_hook(lambda g: seen.append(g.item()))
    (y * y + y).backward()
    assert seen == [13.0]


def test_a_hook_on_a_view_of_a_view_is_met():
    x = leaf(np.arange(6.0))
    y = x.reshape(2, 3)
    y.register_hook(lambda g: g * 2)
    y.reshape(3, 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 6


def test_a_hook_must_fit():
    x = leaf([1.0, 2.0])
    x.register_hook(lambda g: g.sum())
    with pytest.raises(GradientError, match="same shape"):
        x.sum().backward()
    with pytest.raises(GradientError, match="register_hook"):
        nm.asarray(1.0).register_hook(print)


def test_retain_grad():
    x = leaf([1.0, 2.0])
    y = x * x
    assert y.grad is None
    y.retain_grad()
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]
    assert x.grad.tolist() == [6.0, 12.0]


def test_post_accumulate_hooks_can_step():
    """An optimiser that runs inside backward()."""
    w = leaf([1.0, 2.0])

    def step(p):
        assert p is w
        with nm.no_grad():
            p -= 0.5 * p.grad
        p.grad = None

    w.register_post_accumulate_grad_hook(step)
    (w * w).sum().backward()
    assert w.tolist() == [0.0, 0.0]
    assert w.grad is None
    assert w.requires_grad
    with pytest.raises(GradientError, match="leaves"):
        (w * w).register_post_accumulate_grad_hook(step)


def test_backward_hook_is_told_of_every_leaf():
    class Average(nm.BackwardHook):
        def __init__(self):
            self.seen = []

        def on_leaf_grad_ready(self, leaf, grad):
            self.seen.append(leaf)
            return grad / 2

    a, b = leaf(2.0), leaf(3.0)
    hook = Average()
    with nm.register_backward_hook(hook):
        (a * b).backward()
    (a * b).backward()
    assert len(hook.seen) == 2
    assert {id(t) for t in hook.seen} == {id(a), id(b)}
    assert (a.grad.item(), b.grad.item()) == (4.5, 3.0)
    with pytest.raises(TypeError, match="BackwardHook"):
        nm.register_backward_hook(3)


# -- modes ----------------------------------------------------------------------------------------


def test_no_grad_in_every_form():
    x = leaf(2.0)
    with nm.no_grad():
        assert not nm.is_grad_enabled()
        assert not (x * x).requires_grad
        with nm.enable_grad():
            assert (x * x).requires_grad
    assert (x * x).requires_grad
    assert not nm.no_grad()(lambda: x * x)().requires_grad
    assert not nm.no_grad(lambda: x * x)().requires_grad
    assert not nm.inference_mode(lambda: x * x)().requires_grad
    with nm.inference_mode():
        assert not (x * x).requires_grad
    with nm.inference_mode(False):
        assert (x * x).requires_grad


def test_set_grad_enabled():
    x = leaf(2.0)
    nm.set_grad_enabled(False)
    assert not (x * x).requires_grad
    nm.set_grad_enabled(True)
    with nm.set_grad_enabled(False):
        assert not (x * x).requires_grad
    assert nm.is_grad_enabled()
    assert not nm.set_grad_enabled(False)(lambda: x * x)().requires_grad
    assert nm.is_grad_enabled()


def test_an_error_inside_puts_the_mode_back():
    with pytest.raises(ValueError, match="here"), nm.no_grad():
        raise ValueError("here")
    assert nm.is_grad_enabled()


def test_a_mode_belongs_to_its_thread():
    seen = []
    with nm.no_grad():
        thread = threading.Thread(target=lambda: seen.append(nm.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_detach_cuts():
    x = leaf(3.0)
    y = x.detach()
    assert not y.requires_grad
    (x * y).backward()
    assert x.grad.item() == 3.0


# -- in place -------------------------------------------------------------------------------------


def test_in_place_on_a_computed_tensor():
    x = leaf([1.0, 2.0])
    y = x * 2
    early = y * y  # uses the value before the change
    y += 3
    y *= x
    (early + y).sum().backward()
    xs = np.array([1.0, 2.0])
    np.testing.assert_allclose(x.grad.numpy(), 8 * xs + 4 * xs + 3)


def test_assignment_on_a_computed_tensor():
    x, v = leaf([1.0, 2.0, 3.0]), leaf(10.0)
    y = x * x
    early = y.sum()
    y[1] = v * v
    (early + y.sum()).backward()
    assert x.grad.tolist() == [4.0, 4.0, 12.0]
    assert v.grad.item() == 20.0


def test_a_leaf_cannot_be_changed_while_recorded():
    x = leaf([1.0, 2.0])
    with pytest.raises(GradientError, match="no_grad"):
        x += 1
    with pytest.raises(GradientError, match="no_grad"):
        x[0] = 5.0
    assert x.tolist() == [1.0, 2.0]


def test_a_leaf_stays_a_leaf_when_it_is_updated():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()  # uses the value before the update
    with nm.no_grad():
        x -= 1
        x[0] = 7.0
    assert x.is_leaf
    assert x.requires_grad
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    (x * x).sum().backward()
    assert x.grad.tolist() == [16.0, 6.0]


def test_an_unrecorded_change_keeps_the_derivative():
    """As in PyTorch: the value is new, the history is that of before."""
    x = leaf([1.0, -2.0])
    y = x * 3
    with nm.no_grad():
        y += 100
    assert y.tolist() == [103.0, 94.0]
    (y * y).sum().backward()
    assert x.grad.tolist() == [618.0, 564.0]


# -- memory ---------------------------------------------------------------------------------------


def test_gradients_hold_no_history():
    x = leaf(np.ones(4))
    y = nm.exp(x)
    inner = weakref.ref(y._node)
    y.sum().backward()
    del y
    x.grad.numpy()
    assert inner() is None


def test_untracked_values_hold_no_history():
    x = nm.ones(4)
    y = nm.exp(x)
    z = y + 1
    inner = weakref.ref(y._node)
    z.numpy()
    del y
    assert inner() is None
