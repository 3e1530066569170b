"""Copies have memory of their own, and memory that is lent read-only is never written to."""

import copy

import numpy as np
import pytest

import numus as nm

pytestmark = pytest.mark.skipif(
    nm.default_device().name != "cpu", reason="sharing memory with NumPy"
)

COPIES = {
    "asarray": lambda x: nm.asarray(x, copy=True),
    "asarray to float64": lambda x: nm.asarray(x, dtype=nm.float64, copy=True),
    "array": nm.array,
    "tensor": nm.tensor,
    "astype": lambda x: x.astype(x.dtype),
    "astype copy": lambda x: x.astype(x.dtype, copy=True),
    "reshape": lambda x: nm.reshape(x, (4,), copy=True),
    "copy": nm.copy,
    "clone": lambda x: x.clone(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "from_dlpack": lambda x: nm.from_dlpack(x, copy=True),
}


def address(x):
    nm.eval(x)
    return x._node.view.storage.memory.address


@pytest.mark.parametrize("name", COPIES)
def test_copies_have_memory_of_their_own(name):
    x = nm.arange(4.0) * 2
    first, second = COPIES[name](x), COPIES[name](x)
    assert len({address(t) for t in (x, first, second)}) == 3
    assert first.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_borrowed_memory_are_made_at_once(name):
    lent = np.arange(4, dtype=np.float32)
    shared = nm.asarray(lent, copy=False)
    made = COPIES[name](shared)
    lent[0] = 7
    assert made.tolist() == [0, 1, 2, 3]
    assert shared.tolist() == [7, 1, 2, 3]


def test_copies_of_parameters_share_neither_values_nor_gradients():
    p = nm.nn.Parameter(nm.ones(3))
    (p * 2).sum().backward()
    twin = copy.deepcopy(p)
    p.data.add_(1)
    p.grad.add_(1)
    assert twin.tolist() == [1, 1, 1]
    assert twin.grad.tolist() == [2, 2, 2]
    assert len({address(t) for t in (p, twin, p.grad, twin.grad)}) == 4


def test_copies_keep_gradients():
    x = nm.arange(3.0)
    x.requires_grad = True
    for make in (nm.array, nm.copy, lambda x: x.astype(nm.float32)):
        assert nm.grad(lambda x, make=make: (make(x) ** 2).sum())(x).tolist() == [0, 2, 4]
    twin = copy.deepcopy(x)
    assert twin.requires_grad
    assert twin.is_leaf
    assert nm.jit(nm.array)(x.detach()).tolist() == [0, 1, 2]


def read_only():
    """Tensors on the memory of bytes objects, which Python never lets change."""
    data = np.arange(4, dtype=np.float32).tobytes()
    array = np.frombuffer(data, np.float32)
    locked = np.arange(4, dtype=np.float32)
    locked.flags.writeable = False
    return {
        "bytes": (data, nm.asarray(array, copy=False)),
        "memoryview": (data, nm.asarray(memoryview(data).cast("f"), copy=False)),
        "from_dlpack": (locked, nm.from_dlpack(locked, copy=False)),
        "array": (locked, nm.asarray(locked, copy=False)),
    }


@pytest.mark.parametrize("name", ["bytes", "memoryview", "from_dlpack", "array"])
def test_read_only_memory_is_not_written_to(name):
    owner, x = read_only()[name]
    before = bytes(memoryview(owner).cast("B"))
    with x.data_write() as a:
        a[:] = 9
    assert x.tolist() == [9] * 4
    assert bytes(memoryview(owner).cast("B")) == before

    owner, x = read_only()[name]
    for f in (nm.jit(lambda t: t * 2 + 1, donate=0), nm.jit(lambda t: t * 2 + 1, donate=(0,))):
        for _ in range(3):
            owner, x = read_only()[name]
            assert f(x).tolist() == [1, 3, 5, 7]
            assert bytes(memoryview(owner).cast("B")) == before

    owner, x = read_only()[name]

    @nm.jit
    def step():
        x.assign(x * 2)

    for _ in range(4):
        step()
    x += 1
    x[0] = 5
    assert x.tolist() == [5, 17, 33, 49]
    assert bytes(memoryview(owner).cast("B")) == before

    owner, x = read_only()[name]
    x.numpy()[0] = 3  # a copy
    assert bytes(memoryview(owner).cast("B")) == before


def test_writable_memory_is_shared():
    lent = np.zeros(3, np.float32)
    x = nm.asarray(lent, copy=False)
    with x.data_write() as a:
        a[1] = 4
    assert lent.tolist() == [0, 4, 0]


def test_borrowed_memory_is_not_donated():
    """A result does not appear in the memory of an array that its owner still uses."""
    lent = np.ones(4, np.float32)
    doubled = nm.jit(lambda t: t * 2, donate=0)
    for _ in range(3):
        assert doubled(nm.asarray(lent, copy=False)).tolist() == [2] * 4
        assert lent.tolist() == [1] * 4
