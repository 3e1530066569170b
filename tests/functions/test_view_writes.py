"""Writes through views: seen by the base and by every other view, as in NumPy and PyTorch."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError
from numus.functions import in_place
from tools.fuzz_views import numpy_difference


def _matrix() -> nm.Tensor:
    return nm.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))


WRITES = {
    "item of a row": lambda x: x[0].__setitem__(1, 50),
    "augmented row": lambda x: _augment(x[0]),
    "rows": lambda x: [_augment(row) for row in x],
    "mask of a slice": lambda x: x[1:].__setitem__(x[1:] > 5, 1),
    "transpose": lambda x: x.T.__setitem__(..., 7),
    "transposed row": lambda x: _augment(x.T[1]),
    "reshape": lambda x: _augment(x.reshape(2, 6)[1]),
    "ravel": lambda x: x.ravel().__setitem__(slice(None, None, 5), -1),
    "diagonal": lambda x: _augment(x.diagonal(1)),
    "flipped": lambda x: x[::-1, ::2].__setitem__(0, 3),
    "squeezed": lambda x: _augment(x[None].squeeze(0)[2]),
    "swapped": lambda x: _augment(x.swapaxes(0, 1)[3]),
    "nothing": lambda x: _augment(x[1:1]),
    "all": lambda x: _augment(x[...]),
    "split": lambda x: _augment(nm.split(x, 2, 1)[1] if not _is_numpy(x) else np.split(x, 2, 1)[1]),
    "of a copy": lambda x: _augment(x.T.reshape(-1)),  # not a view: the strides do not allow it
}


def _is_numpy(x: object) -> bool:
    return isinstance(x, np.ndarray)


def _augment(x) -> None:
    x += 10


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
@pytest.mark.parametrize("pending", [False, True], ids=["realised", "pending"])
def test_writes_through_views_are_numpys(write, pending) -> None:
    x = _matrix()
    expected = np.array(x)
    if pending:
        x = x + 0
    if not _write_by_numpy(expected, write):
        return
    other = x[1:, 1:]
    write(x)
    np.testing.assert_array_equal(np.asarray(x), expected)
    np.testing.assert_array_equal(np.asarray(other), expected[1:, 1:])


def _write_by_numpy(expected, write) -> bool:
    try:
        write(expected)
    except ValueError:  # NumPy's diagonals are read-only
        view = np.diagonal(expected, 1)
        view.flags.writeable = True
        view += 10
    return True


def test_siblings_see_writes_after_their_base_is_gone() -> None:
    x = _matrix() + 0
    row, column = x[1], x[:, 2]
    del x
    gc.collect()
    row += 100
    assert column.tolist() == [2, 106, 10]


def test_a_view_alone_is_a_tensor_of_its_own() -> None:
    x = nm.arange(6).reshape(2, 3)
    y = nm.broadcast_to(nm.zeros(1), (3,))
    x[0] = 9
    y += 1
    assert x.tolist() == [[9, 9, 9], [3, 4, 5]]
    assert y.tolist() == [1, 1, 1]


@pytest.mark.parametrize("register", [False, True])
def test_a_view_alone_keeps_the_layout_of_numpys(register) -> None:
    """A transposed view whose base is gone is not contiguous for NumPy, so its reshape copies."""

    def run(new):
        x = new(np.arange(12.0, dtype=np.float32).reshape(3, 4)).T
        if register:
            x[0][1] = 7
        x[x > 5] = -1
        x.reshape(-1)[0] = 50  # of a copy
        x.reshape(2, 2, 3)[1, 1, 1] = 60  # of a view: the first axis can be split
        return np.asarray(x)

    np.testing.assert_array_equal(run(nm.asarray), run(np.array))


def test_a_broadcast_view_cannot_be_written() -> None:
    x = nm.zeros(3)
    y = nm.broadcast_to(x, (2, 3))
    with pytest.raises(ValueError, match=r"shape \(2, 3\).*x\.copy\(\)"):
        y += 1
    assert x.tolist() == [0, 0, 0]


def test_real_and_imaginary_parts_are_views() -> None:
    z = nm.asarray(np.array([1 + 2j, 3 + 4j], np.complex64))
    z.real[0] = 5
    imaginary = z.imag
    imaginary += 1
    assert z.tolist() == [5 + 3j, 3 + 5j]


def test_copies_and_results_are_no_views() -> None:
    x = _matrix()
    for y in (x.copy(), x * 1, nm.diag(x), x[[0, 1]], x[x > 2], nm.flip(x, 0).copy()):
        before = np.array(x)
        y += 1
        np.testing.assert_array_equal(np.asarray(x), before)


def test_many_rows_held_at_once() -> None:
    x = nm.zeros((40, 3))
    rows = list(x)
    for i, row in enumerate(rows):
        row += i
    np.testing.assert_array_equal(np.asarray(x), np.arange(40.0)[:, None] * np.ones(3))
    assert rows[7].tolist() == [7, 7, 7]


# -- gradients ------------------------------------------------------------------------------------


def test_gradients_flow_through_writes_to_views() -> None:
    w = nm.asarray([1.0, 2.0, 3.0], requires_grad=True)
    x = w * 1
    part = x[1:]
    part *= part
    (x * nm.asarray([1.0, 10.0, 100.0])).sum().backward()
    assert w.grad.tolist() == [1, 40, 600]


@pytest.mark.parametrize("jit", [False, True])
def test_a_tensor_overwritten_as_a_whole_still_requires_gradients(jit) -> None:
    """As PyTorch has it: no gradient arrives at what it was computed from."""

    def loss(w):
        x = w * 3
        part = x[1:]
        x[...] = 5.0
        assert x.requires_grad
        assert part.requires_grad
        x += w
        y = w * 2
        y[:] = nm.ones(3)
        assert y.requires_grad
        return (x * x).sum() + y.sum()

    grad = nm.jit(nm.grad(loss)) if jit else nm.grad(loss)
    w = nm.asarray([1.0, 2.0, 3.0])
    for _ in range(3):
        assert grad(w).tolist() == [12, 14, 16]
    w.requires_grad = True
    x = w * 2
    x[...] = 1.0
    x.sum().backward()
    assert w.grad is None or w.grad.tolist() == [0, 0, 0]


def test_a_view_of_a_leaf_is_refused_while_gradients_are_recorded() -> None:
    w = nm.zeros(3, requires_grad=True)
    row = w[:2]
    with pytest.raises(GradientError, match="view of a leaf"):
        row += 1
    with nm.no_grad():
        row += 1
    assert w.tolist() == [1, 1, 0]
    assert w.is_leaf
    assert row.requires_grad


def test_detached_views_share_values_but_not_history() -> None:
    w = nm.asarray([1.0, 2.0], requires_grad=True)
    x = w * 3
    plain = x.detach()
    plain += 1
    assert x.tolist() == [4, 7]
    assert not plain.requires_grad
    x.sum().backward()
    assert w.grad.tolist() == [3, 3]
    w.detach()[0] = 8
    assert w.tolist() == [8, 2]
    assert w.is_leaf


# -- jit ------------------------------------------------------------------------------------------


def test_jitted_functions_write_through_views() -> None:
    @nm.jit
    def step(x):
        row = x[0]
        row += 1
        x.T[1] *= 2
        return x.sum()

    x, expected = _matrix(), np.array(_matrix())
    outside = x[:, 1]
    for _ in range(3):
        expected[0] += 1
        expected.T[1] *= 2
        assert float(step(x)) == expected.sum()
        np.testing.assert_array_equal(np.asarray(x), expected)
        np.testing.assert_array_equal(np.asarray(outside), expected[:, 1])


def test_jitted_functions_write_to_captured_views() -> None:
    x = _matrix()
    row = x[1]

    @nm.jit
    def step():
        nonlocal row
        row += 1

    expected = np.array(x)
    for _ in range(4):
        step()
        later = x[:, 3]  # made after the trace
        expected[1] += 1
        np.testing.assert_array_equal(np.asarray(x), expected)
        np.testing.assert_array_equal(np.asarray(row), expected[1])
    step()
    assert later[1].item() == expected[1, 3] + 1


def test_arguments_that_are_views_of_one_another() -> None:
    @nm.jit
    def f(x, y):
        y += 1
        return x.sum()

    x = _matrix()
    assert float(f(x, nm.zeros(4))) == 66
    assert float(f(x, x[0])) == 70
    assert x[0].tolist() == [1, 2, 3, 4]


# -- random programs ------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_random_programs_are_numpys(jit) -> None:
    for seed in range(12):
        found = numpy_difference(seed, 12, jit)
        assert found is None, found


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_many_random_programs_are_numpys(jit) -> None:
    for seed in range(1000, 1600):
        found = numpy_difference(seed, 16, jit)
        assert found is None, found


# -- x.data and in-place methods ------------------------------------------------------------------


def test_data_is_a_view_without_history() -> None:
    w = nm.zeros((2, 3), requires_grad=True)
    w.data.normal_(key=nm.random.key(0))
    assert w.is_leaf
    assert w.requires_grad
    assert abs(np.asarray(w)).min() > 0
    w.data[0] = 1
    w.data += 1
    assert w[0].tolist() == [2, 2, 2]
    w.data = nm.zeros((2, 3))
    assert w.tolist() == [[0, 0, 0], [0, 0, 0]]
    with w.data() as lent:
        assert not lent.flags.writeable


def test_in_place_methods_are_seen_by_views() -> None:
    x = _matrix()
    row = x[1]
    row.zero_().add_(2, alpha=3).mul_(2).clamp_(0, 10)
    x.T[0].copy_(nm.asarray([1, 2, 3]))
    assert x[1].tolist() == [2, 10, 10, 10]
    assert x[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="int64"):
        nm.arange(3).div_(2)
    with pytest.raises(GradientError, match="leaf"):
        nm.zeros(3, requires_grad=True).exp_()


_MORE_ARGUMENTS = {
    **dict.fromkeys(("atan2", "copysign", "div", "floor_divide", "fmod", "hypot"), (2.0,)),
    **dict.fromkeys(("mul", "pow", "remainder"), (3.0,)),
    "clamp": (0.2, 0.4),
    "clip": (0.2, 0.4),
    "index_add": (0, [1, 1], np.ones((2, 4), np.float32)),
    "index_put": (([0, 2],), 5.0),
    "lerp": (1.0, 0.5),
    "masked_fill": (np.eye(3, 4, dtype=bool), 9.0),
    "masked_scatter": (np.eye(3, 4, dtype=bool), np.arange(3, dtype=np.float32)),
    **dict.fromkeys(
        ("scatter", "scatter_add"), (0, np.array([[0, 1, 2, 0]]), np.ones((1, 4), np.float32))
    ),
    "scatter_reduce": (0, np.array([[0, 1, 2, 0]]), np.ones((1, 4), np.float32), "sum"),
}


@pytest.mark.parametrize("name", in_place.NAMES)
def test_in_place_forms_are_their_functions(name) -> None:
    x = nm.asarray(np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4)) + 0.0
    if name == "acosh":
        x = x + 1
    arguments = [
        nm.asarray(a) if isinstance(a, np.ndarray) else a for a in _MORE_ARGUMENTS.get(name, ())
    ]
    expected, view = getattr(x, name)(*arguments), x[1:]
    assert getattr(x, f"{name}_")(*arguments) is x
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(view, expected[1:])


def test_random_fills_are_the_generators() -> None:
    key, x = nm.random.key(3), nm.zeros((4, 5))
    np.testing.assert_array_equal(
        x.normal_(1.0, 2.0, key=key), nm.random.normal((4, 5), 1.0, 2.0, key=key)
    )
    np.testing.assert_array_equal(
        x.uniform_(-1, 1, key=key), nm.random.uniform((4, 5), -1, 1, key=key)
    )
    np.testing.assert_array_equal(
        x.exponential_(4.0, key=key), nm.random.exponential((4, 5), 0.25, key=key)
    )
    assert set(np.asarray(x.bernoulli_(0.5, key=key)).ravel()) == {0, 1}
    y = nm.ones(2).addcmul_(nm.ones(2), 2.0, value=3).addcdiv_(nm.ones(2), 2.0).sub_(1, alpha=0.5)
    assert y.tolist() == [7, 7]


# -- other libraries ------------------------------------------------------------------------------


@pytest.mark.on_cpu("memory of other libraries")
def test_writes_of_other_libraries_are_seen_by_views_and_by_no_results() -> None:
    x = nm.asarray(np.arange(4, dtype=np.float32))
    before, view = x + 1, x[1:]
    lent = np.from_dlpack(x.detach())
    memory = (ctypes.c_float * 4).from_address(lent.ctypes.data)  # as PyTorch, which ignores flags
    memory[1] = 60
    assert x.tolist() == [0, 60, 2, 3]
    assert view.tolist() == [60, 2, 3]
    between = x * 2
    memory[2] = 70
    assert before.tolist() == [1, 2, 3, 4]
    assert between.tolist() == [0, 120, 4, 6]
    del lent
    gc.collect()
    from numus.graph import active_hooks, lent_memory

    assert not lent_memory
    assert not active_hooks


def test_constants_that_are_assigned_stay_on_the_device() -> None:
    null = nm.device("null")
    x = nm.zeros((2, 3), device=null) + 1
    x[...] = 5
    assert x.device is null
    x.T[...] = 6
    assert x.device is null
    x.reshape(6).fill_(7)
    assert (x + nm.zeros((2, 3), device=null)).device is null
