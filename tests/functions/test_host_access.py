"""Reading and writing a tensor's memory from the host."""

import threading

import numpy as np
import pytest
from in_threads import in_threads

import numus as nm
from numus.errors import GradientError


def realised(*values):
    x = nm.asarray(np.array(values, np.float32))
    nm.eval(x)
    return x


def address(x):
    return x._node.view.storage.memory.address


def write(x, value, at=...):
    with x.data_write() as a:
        a[at] = value


def test_reading():
    x = nm.arange(6).reshape(2, 3) + 1
    with x.data() as a:
        np.testing.assert_array_equal(a, [[1, 2, 3], [4, 5, 6]])
        assert not a.flags.writeable
        with x.data() as b:  # readers share
            assert b[0, 0] == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "bool", "complex64"])
def test_elements_come_in_their_own_dtype(dtype):
    x = nm.zeros(3, dtype=dtype)
    with x.data() as a:
        assert a.dtype == x.dtype.np
    write(x, 1, 1)
    assert x.tolist() == [0, 1, 0]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 2)])
def test_all_shapes(shape):
    x = nm.ones(shape)
    with x.data() as a:
        assert a.shape == shape
    with x.data_write() as a:
        a[...] = 5
    np.testing.assert_array_equal(x.numpy(), np.full(shape, 5))


def test_a_tensor_of_its_own_is_written_where_it_lies():
    x = realised(1, 2, 3)
    where = address(x)
    for i in range(3):  # also when the last loop's array is still there
        with x.data_write() as a:
            a[i] = 10
        assert address(x) == where
    assert x.tolist() == [10, 10, 10]


def test_views_see_the_write():
    x = realised(0, 1, 2, 3, 4, 5)
    views = [x[1:3], x.reshape(2, 3), x[::-1], x[:], x.detach(), x.reshape(3, 2).T]
    for i, writer in enumerate([x, *views]):
        write(writer, 10 * (i + 1))
        expected = [v.numpy() for v in views]
        held = x.numpy()
        assert 10 * (i + 1) in held
        np.testing.assert_array_equal(expected[0], held[1:3])
        np.testing.assert_array_equal(expected[1], held.reshape(2, 3))
        np.testing.assert_array_equal(expected[2], held[::-1])
        np.testing.assert_array_equal(expected[3], held)
        np.testing.assert_array_equal(expected[4], held)
        np.testing.assert_array_equal(expected[5], held.reshape(3, 2).T)


def test_views_of_views_of_what_is_gone():
    x = realised(0, 1, 2, 3)
    y = x[1:]
    z = y[1:]
    del y
    write(z, 9)
    assert x.tolist() == [0, 1, 9, 9]
    write(x, 5)
    assert z.tolist() == [5, 5]


def test_pending_work_does_not_see_the_write():
    x = realised(1, 2, 3)
    total, part, shape = x + 1, x[1:] * 2, x.reshape(3, 1) - 1
    write(x, 100)
    assert total.tolist() == [2, 3, 4]
    assert part.tolist() == [4, 6]
    assert shape.tolist() == [[0], [1], [2]]
    assert x.tolist() == [100] * 3
    after = x + 1
    assert after.tolist() == [101] * 3


def test_what_was_given_away_does_not_change():
    x = realised(1, 2)
    given = [np.asarray(x)]
    if nm.device().on_host:  # NumPy takes no other memory
        given.append(np.from_dlpack(x))
    copies = [+x, x.astype("float32"), nm.asarray(x, copy=True), x.copy(), x.numpy()]
    write(x, 7)
    for each in (*given, *copies):
        assert each.tolist() == [1, 2]
    # nor does writing to a copy, or a view of one, come back
    write(copies[0][1:], 8)
    assert x.tolist() == [7, 7]


def test_writing_to_a_copy_of_pending_work():
    y = nm.ones(3) + 1
    z = +y
    nm.eval(y, z)
    write(z[1:], 9)
    assert y.tolist() == [2, 2, 2]
    assert z.tolist() == [2, 9, 9]


def test_results_computed_before_stay():
    x = realised(1, 2)
    y = x * 2
    nm.eval(y)
    write(x, 50)
    assert y.tolist() == [2, 4]


def test_constants_can_be_written():
    for x in (nm.zeros((2, 2)), nm.full((3,), 7), nm.asarray(1.0), nm.arange(4), nm.eye(2)):
        expected = x.numpy()
        expected[...] = 3
        write(x, 3)
        np.testing.assert_array_equal(x.numpy(), expected)


def test_elements_that_share_memory_cannot_be_written():
    x = realised(1, 2, 3)
    wide = nm.broadcast_to(x, (2, 3))
    if wide._node.view is not None and 0 in wide.strides:
        with pytest.raises(ValueError, match="copy"), wide.data_write():
            pass
    write(x, 4)
    assert wide.tolist() == [[4] * 3] * 2


def test_leaves_stay_leaves():
    w = nm.asarray([1.0, 2.0, 3.0], requires_grad=True)
    part = w[1:]
    write(w, 5)
    assert w.is_leaf
    assert part.tolist() == [5, 5]
    (part * part).sum().backward()
    assert w.grad.tolist() == [0, 10, 10]
    write(part, 6)
    assert w.tolist() == [5, 6, 6]


def test_gradients_of_what_was_recorded_before_a_write():
    w = nm.asarray([2.0, 3.0], requires_grad=True)
    loss = (w * w).sum()
    write(w, 100)
    loss.backward()
    assert w.grad.tolist() == [4, 6]


def test_computed_tensors_with_history_refuse():
    w = nm.asarray([1.0], requires_grad=True)
    y = w * 2
    with pytest.raises(GradientError, match="detach"), y.data_write():
        pass
    write(y.detach(), 9)


def test_views_see_writes_after_in_place_operators():
    x = realised(1, 2)
    view = x[:1]
    x += 1
    assert view.tolist() == [2]
    write(x, 9)
    assert view.tolist() == [9]
    view += 1
    write(view, 5)
    assert x.tolist() == [5, 9]


def test_traced_tensors_have_no_memory():
    with pytest.raises(RuntimeError, match="vmap"):
        nm.vmap(lambda t: t.data().__enter__())(nm.ones(2))


# -- threads --------------------------------------------------------------------------------------


@pytest.mark.on_cpu("its memory is the host's")
def test_one_thread_cannot_wait_for_itself():
    x = realised(1, 2)
    with x.data(), pytest.raises(RuntimeError, match="already"), x.data_write():
        pass
    with x.data_write() as a:
        a[0] = 9
        with pytest.raises(RuntimeError, match="already"), x.data_write():
            pass
    with x.data_write() as a:
        a[1] = 8
        assert (x * 2).tolist() == [18, 16]  # a thread sees what it has written so far
        with x.data() as b:
            assert b.tolist() == [9, 8]


def test_the_guard_opens_after_an_error():
    x = realised(1)
    with pytest.raises(ZeroDivisionError), x.data_write():
        raise ZeroDivisionError
    write(x, 2)
    assert x.tolist() == [2]


@pytest.mark.parametrize("action", ["data", "data_write", "numpy", "compute"])
def test_others_wait_for_a_writer(action):
    x = realised(*[0] * 64)
    started, seen = threading.Event(), []

    def other():
        started.set()
        if action == "data":
            with x.data() as a:
                seen.append(a.copy())
        elif action == "data_write":
            with x.data_write() as a:
                seen.append(a.copy())
        elif action == "numpy":
            seen.append(x.numpy())
        else:
            seen.append((x + 0).numpy())

    with x.data_write() as a:
        thread = threading.Thread(target=other)
        a[:32] = 1
        thread.start()
        started.wait()
        thread.join(0.05)  # long enough to go wrong
        assert not seen
        a[32:] = 1
    thread.join()
    np.testing.assert_array_equal(seen[0], 1)


def test_a_writer_waits_for_readers():
    x = realised(1, 1)
    done = threading.Event()

    def writer():
        write(x, 2)
        done.set()

    with x.data() as a:
        thread = threading.Thread(target=writer)
        thread.start()
        assert not done.wait(0.05)
        assert a.tolist() == [1, 1]
    thread.join()
    assert x.tolist() == [2, 2]


def test_many_threads_never_see_half_a_write():
    x = realised(*[0] * 500)
    view = x[10:]

    def writer(number):
        for i in range(20):
            with (x if i % 2 else view).data_write() as a:
                a[...] = number * 100 + i

    def reader():
        for _ in range(30):
            with view.data() as a:
                assert a.min() == a.max()
            values = (view * 2).numpy()
            assert values.min() == values.max()

    in_threads(lambda number: writer(number) if number < 2 else reader(), 5)
