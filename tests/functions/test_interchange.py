"""Arrays from and for others: NumPy, DLPack with torch and jax, buffers, pickles."""

import io
import pickle
import pickletools
import sys

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.dtypes import ALL

NUMPYS = [d for d in ALL if d.name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_numpy(dtype):
    x = nm.asarray(np.array([[1, 0], [1, 1]]).astype(dtype.np))
    for array in (x.numpy(), np.asarray(x), np.array(x)):
        assert array.dtype == dtype.np
        np.testing.assert_array_equal(array.astype(complex), [[1, 0], [1, 1]])
    assert x.numpy().flags.writeable
    assert np.asarray(x).flags.writeable is not x.device.on_host  # memory of the tensor, or a copy
    assert np.array(x, copy=True).flags.writeable


@pytest.mark.on_cpu("memory that NumPy can share")
def test_numpy_copies_only_where_asked():
    x = nm.ones(3)
    a, b = np.asarray(x), np.asarray(x)
    assert np.shares_memory(a, b)
    assert not np.shares_memory(a, np.array(x, copy=True))
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(x, copy=False), a)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, dtype=np.float64, copy=False)


def test_arrays_of_other_devices_are_copies():
    """scikit-learn writes to arrays that share no memory with what it was given."""
    simt_machine.install()
    x = nm.asarray([[1.0, 2.0], [3.0, 4.0]], device="simt")
    for y in (x, x.T[0], nm.broadcast_to(x[0], (2, 2)), x.reshape(2, 2, 1).permute_dims(0, 2, 1)):
        array, want = np.asarray(y), y.numpy()
        array -= [0.0, 1.0]
        np.testing.assert_array_equal(array, want - [0.0, 1.0])
        np.testing.assert_array_equal(y.numpy(), want)
    with pytest.raises(ValueError, match="elements on simt need a copy"):
        np.asarray(x, copy=False)


def test_arrays_outlive_their_tensors():
    array = np.asarray(nm.arange(1000) * 2)
    others = [nm.arange(1000) * 3 for _ in range(10)]
    nm.eval(others)
    np.testing.assert_array_equal(array, np.arange(1000) * 2)


def test_numpy_functions_take_tensors():
    x = nm.asarray([1.0, 4.0])
    np.testing.assert_array_equal(np.sqrt(x), [1, 2])
    assert isinstance(np.ones(2) + x, nm.Tensor)
    assert isinstance(np.float32(2) * x, nm.Tensor)
    assert np.ones(2).dot(x) == 5


# -- DLPack ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPYS, ids=lambda d: d.name)
@pytest.mark.on_cpu("memory that NumPy can share")
def test_dlpack_with_numpy(dtype):
    x = nm.asarray(np.array([1, 0, 1]).astype(dtype.np))
    array = np.from_dlpack(x)
    np.testing.assert_array_equal(array, x.numpy())
    assert np.shares_memory(array, np.asarray(x))
    back = nm.from_dlpack(array)
    assert back.dtype is dtype
    np.testing.assert_array_equal(back.numpy(), array)


@pytest.mark.on_cpu("memory that NumPy can share")
def test_dlpack_options():
    x = nm.ones(3)
    assert x.__dlpack_device__() == (1, 0)
    assert "dltensor" in repr(x.__dlpack__())
    assert "versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    assert x.__dlpack__(dl_device=(1, 0), copy=True) is not None
    with pytest.raises(BufferError, match="device"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="stream"):
        x.__dlpack__(stream=1)
    copy = np.from_dlpack(x, copy=True)
    assert not np.shares_memory(copy, np.asarray(x))
    assert not np.from_dlpack(x).flags.writeable


@pytest.mark.on_cpu("memory that NumPy can share")
def test_from_dlpack():
    host = np.arange(3.0)
    copied, shared = nm.from_dlpack(host), nm.from_dlpack(host, copy=False)
    host[0] = 9
    assert copied.tolist() == [0, 1, 2]
    assert shared.tolist() == [9, 1, 2]
    x = nm.ones(2)
    assert nm.from_dlpack(x) is x
    with pytest.raises(TypeError, match="__dlpack__"):
        nm.from_dlpack([1, 2])
    # views of all kinds
    for view in (host[::-1], np.arange(12).reshape(3, 4).T[1:], host[:0]):
        np.testing.assert_array_equal(nm.from_dlpack(view).numpy(), view)


@pytest.mark.on_cpu("memory that NumPy can share")
def test_dlpack_of_views():
    x = nm.arange(12).reshape(3, 4)
    nm.eval(x)
    for view in (x.T, x[::2, 1:], x[:0]):
        np.testing.assert_array_equal(np.from_dlpack(view), view.numpy())


@pytest.mark.on_cpu("memory that NumPy can share")
def test_torch():
    torch = pytest.importorskip("torch")
    for name in ("float32", "float64", "float16", "bfloat16", "int8", "int64", "bool", "complex64"):
        t = torch.tensor([1, 0, 1]).to(getattr(torch, name))
        x = nm.from_dlpack(t)
        assert x.dtype.name == name
        assert x.tolist() == t.tolist()
        assert nm.asarray(t).tolist() == t.tolist()
        back = torch.from_dlpack(x)
        assert back.dtype is t.dtype
        assert back.tolist() == t.tolist()
    t = torch.zeros(3)
    shared = nm.from_dlpack(t, copy=False)
    t[0] = 5
    assert shared.tolist() == [5, 0, 0]


def test_torch_narrow_floats():
    torch = pytest.importorskip("torch")
    for name in ("float8_e4m3fn", "float8_e5m2"):
        t = torch.tensor([0.5, -2.0]).to(getattr(torch, name))
        try:
            t.__dlpack__()
        except BufferError:
            pytest.skip("this torch does not export 8-bit floats")
        x = nm.from_dlpack(t)
        assert x.dtype.name == name
        assert x.tolist() == [0.5, -2.0]


def test_jax():
    jnp = pytest.importorskip("jax.numpy")
    for name in ("float32", "float16", "bfloat16", "int32", "uint8", "bool", "complex64"):
        a = jnp.asarray([1, 0, 1]).astype(name)
        x = nm.from_dlpack(a)
        assert x.dtype.name == name
        assert x.tolist() == a.tolist()
        assert jnp.from_dlpack(x).tolist() == a.tolist()


# -- buffers and pickles --------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python's buffer method came with 3.12")
def test_buffer():
    view = memoryview(nm.asarray([[1, 2], [3, 4]], dtype="int32", device="cpu"))
    assert view.readonly
    assert view.tolist() == [[1, 2], [3, 4]]


def test_buffer_of_another_device():
    """NumPy takes a copy by `__array__` then."""
    simt_machine.install()
    with pytest.raises(BufferError, match=r"on simt are in no memory of the host; take x.numpy"):
        nm.ones(2, device="simt").__buffer__(0)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_pickle(dtype):
    x = nm.asarray(np.array([[1, 0], [1, 1]]).astype(dtype.np))
    for given in (x, x.T, x[:0], x[0, 0], x + x):
        back = pickle.loads(pickle.dumps(given))
        assert (back.dtype, back.shape) == (given.dtype, given.shape)
        np.testing.assert_array_equal(back.numpy(), given.numpy())


def test_pickle_keeps_leaves():
    w = nm.asarray([1.0], requires_grad=True)
    assert pickle.loads(pickle.dumps(w)).requires_grad
    assert not pickle.loads(pickle.dumps(w * 2)).requires_grad


def test_pickle_holds_plain_data_only():
    names = {
        argument
        for _, argument, _ in pickletools.genops(pickle.dumps(nm.ones(2), protocol=4))
        if isinstance(argument, str)
    }
    assert names == {"numus.functions.interop.protocols", "_rebuilt", "float32"}


def test_numpy_files():
    file = io.BytesIO()
    np.save(file, nm.arange(3))
    file.seek(0)
    assert nm.asarray(np.load(file)).tolist() == [0, 1, 2]


class Elsewhere:
    """An array that says its memory is of another kind, as PyTorch's pinned ones do."""

    def __init__(self, array, kind):
        self.array, self.kind = array, kind

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.kind, 0


@pytest.mark.on_cpu("memory on the host")
def test_pinned_memory_is_the_hosts():
    array = np.arange(3.0)
    for kind in (1, 3, 11):
        for make in (nm.asarray, nm.from_dlpack, lambda x: nm.from_dlpack(x, copy=False)):
            assert make(Elsewhere(array, kind)).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="not in the host's memory"):
        nm.from_dlpack(Elsewhere(array, 8))  # Metal's
