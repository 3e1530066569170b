"""Tensors from numbers, sequences and other arrays."""

import array
import math

import derivatives
import numpy as np
import pytest

import numus as nm
from numus.errors import DeviceError, DTypeError, ShapeError

ALL = [d.name for d in nm.dtypes.ALL]


@pytest.mark.parametrize("dtype", ALL)
def test_filled(dtype):
    for make, number in ((nm.zeros, 0), (nm.ones, 1), (nm.empty, None)):
        x = make((2, 3), dtype=dtype)
        assert (x.shape, x.dtype.name, x.device) == ((2, 3), dtype, nm.default_device())
        if number is not None:
            np.testing.assert_array_equal(x.numpy().astype(np.complex128), number)
    assert nm.full((2,), 1, dtype=dtype).dtype.name == dtype
    like = nm.zeros_like(nm.ones((4,), dtype=dtype))
    assert (like.shape, like.dtype.name) == ((4,), dtype)
    assert nm.ones_like(like, dtype="int8").dtype is nm.int8
    assert nm.full_like(like, 1).dtype.name == dtype


def test_full():
    assert nm.full(3, 2.5).tolist() == [2.5] * 3
    assert nm.full((), 7).dtype is nm.int64
    assert nm.full((2,), True).dtype is nm.bool
    assert nm.full((2,), 1j).dtype is nm.complex64
    assert nm.full((2, 2), nm.asarray([1, 2])).tolist() == [[1, 2], [1, 2]]
    assert nm.full((0, 3), 1).shape == (0, 3)
    with pytest.raises(OverflowError, match="256"):
        nm.full((2,), 256, dtype="uint8")
    with pytest.raises(ShapeError):
        nm.full((2,), nm.zeros((3, 2)))


@pytest.mark.parametrize("make", [nm.zeros, nm.ones, nm.empty])
def test_shapes_that_are_none(make):
    for shape in (-1, (2, -3)):
        with pytest.raises(ShapeError, match="negative"):
            make(shape)
    for shape in (1.5, (2, 0.5), "ab", None, (math.inf,)):
        with pytest.raises(ShapeError):
            make(shape)
    with pytest.raises(ShapeError, match="memory"):
        make((1 << 40, 1 << 40))


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 8), (2, 8, 3), (8, 2, -1), (8, 2), (0,), (-3,), (5, 5), (1, 2, 10), (0, -7, -2)],
)
def test_arange_of_integers(arguments):
    np.testing.assert_array_equal(nm.arange(*arguments).numpy(), np.arange(*arguments))
    assert nm.arange(*arguments).dtype is nm.int64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint64"])
def test_arange_dtypes(dtype):
    x = nm.arange(3, 20, 4, dtype=dtype)
    assert x.dtype.name == dtype
    np.testing.assert_array_equal(x.numpy().astype(np.int64), np.arange(3, 20, 4))


def test_arange_of_floats():
    np.testing.assert_allclose(nm.arange(0.5, 3, 0.25).numpy(), np.arange(0.5, 3, 0.25))
    assert nm.arange(3.0).dtype is nm.float32
    x = nm.arange(0, 1, 1e-3, dtype="float64")
    np.testing.assert_allclose(x.numpy(), np.arange(0, 1, 1e-3), rtol=1e-12)


def test_arange_at_the_ends_of_the_integers():
    top = 2**64 - 1
    assert nm.arange(top - 2, top, dtype="uint64").tolist() == [top - 2, top - 1]
    low = -(2**63)
    assert nm.arange(low, low + 3).tolist() == [low, low + 1, low + 2]
    assert nm.arange(2**62, -(2**62), -(2**62)).tolist() == [2**62, 0]
    with pytest.raises(OverflowError):
        nm.arange(0, 300, dtype="uint8")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 5, 0), "step"),
        ((0, math.inf), "finite"),
        ((math.nan,), "finite"),
        ((0.0, 1.0, 1e-300), "memory"),
        ((1 << 70,), "memory"),
    ],
)
def test_arange_that_does_not_end(arguments, error):
    with pytest.raises((ValueError, OverflowError), match=error):
        nm.arange(*arguments)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("num", [0, 1, 2, 5, 50, 1001])
def test_linspace(num, dtype, endpoint):
    x = nm.linspace(-3, 17, num, dtype=dtype, endpoint=endpoint)
    expected = np.linspace(-3, 17, num, dtype=dtype, endpoint=endpoint)
    assert x.dtype.name == dtype
    if dtype == "int32":
        np.testing.assert_array_equal(x.numpy(), expected)
    else:
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6, atol=1e-5)
    if num > 1 and endpoint:
        assert x.numpy()[-1] == 17


def test_linspace_corners():
    x = nm.linspace(-1e308, 1e308, 5, dtype="float64").numpy()
    np.testing.assert_allclose(x, [-1e308, -5e307, 0, 5e307, 1e308])
    np.testing.assert_allclose(nm.linspace(0, 1 + 2j, 3).numpy(), np.linspace(0, 1 + 2j, 3))
    assert nm.linspace(0, 1, 3).dtype is nm.float32
    with pytest.raises(ShapeError, match="negative"):
        nm.linspace(0, 1, -1)
    np.testing.assert_allclose(nm.logspace(0, 3, 4).numpy(), [1, 10, 100, 1000], rtol=1e-6)


@pytest.mark.parametrize("k", [0, 1, -2, 10, -10])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2), (0, 3), (3, 0)])
def test_matrices(shape, k):
    np.testing.assert_array_equal(nm.eye(*shape, k=k).numpy(), np.eye(*shape, k=k))
    np.testing.assert_array_equal(nm.tri(*shape, k=k).numpy(), np.tri(*shape, k=k))
    x = np.arange(2 * math.prod(shape)).reshape(2, *shape)
    np.testing.assert_array_equal(nm.tril(nm.asarray(x), k=k).numpy(), np.tril(x, k))
    np.testing.assert_array_equal(nm.triu(nm.asarray(x), k=k).numpy(), np.triu(x, k))


def test_matrices_need_two_axes():
    with pytest.raises(ShapeError, match="matrix"):
        nm.tril(nm.ones(3))
    assert nm.identity(2, dtype="int8").tolist() == [[1, 0], [0, 1]]
    derivatives.check(nm.tril, np.arange(9.0).reshape(3, 3))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing):
    axes = [np.arange(n, dtype=np.float32) for n in (2, 3, 4)]
    for count in range(4):
        got = nm.meshgrid(*map(nm.asarray, axes[:count]), indexing=indexing)
        for a, b in zip(got, np.meshgrid(*axes[:count], indexing=indexing), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    with pytest.raises(ValueError, match="indexing"):
        nm.meshgrid(indexing="yx")


def test_one_hot():
    x = nm.asarray([[0, 2], [1, 5]])
    assert nm.one_hot(x, 3).tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 0]]]
    assert nm.one_hot(x).shape == (2, 2, 6)
    assert nm.one_hot(x, 3, dtype="float16").dtype is nm.float16
    with pytest.raises(DTypeError):
        nm.one_hot(nm.ones(2), 3)


# -- asarray --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (1, "int64"),
        (1.5, "float32"),
        (True, "bool"),
        (1j, "complex64"),
        ([1, 2], "int64"),
        ([1, 2.5], "float32"),
        ([True, False], "bool"),
        ([True, 2], "int64"),
        ([1.0, 2j], "complex64"),
        ([], "float32"),
        ([[], []], "float32"),
        (((1, 2), (3, 4)), "int64"),
        (range(3), "int64"),
        ([2**63], "uint64"),
        (np.float64(1), "float64"),
        ([np.float64(1)], "float64"),
        (np.ones(2), "float64"),
        ([np.ones(2, np.float32), np.ones(2, np.float32)], "float32"),
        (array.array("i", [1, 2]), "int32"),
        (b"ab", "uint8"),
        (memoryview(np.ones((2, 2), np.int16)), "int16"),
    ],
)
def test_default_dtypes(given, dtype):
    x = nm.asarray(given)
    assert x.dtype.name == dtype
    expected = np.frombuffer(given, np.uint8) if isinstance(given, bytes) else np.asarray(given)
    np.testing.assert_array_equal(x.numpy(), expected.astype(x.numpy().dtype))


def test_sequences_with_tensors_keep_their_gradients():
    def f(a, b):
        return nm.asarray([[a[0], 1.0], [b, a[1]]])

    x = f(nm.asarray([1.0, 2.0]), nm.asarray(3.0))
    assert x.tolist() == [[1, 1], [3, 2]]
    assert nm.asarray([nm.asarray(1, dtype="int8"), 2]).dtype is nm.int8
    assert nm.asarray([nm.asarray([1, 2]), [3.5, 4]]).tolist() == [[1, 2], [3.5, 4]]
    derivatives.check(f, np.array([1.0, 2.0]), np.array(3.0))
    with pytest.raises(ShapeError, match="stack"):
        nm.asarray([nm.ones(2), nm.ones(3)])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("text", TypeError),
        (["text"], DTypeError),
        ([None], DTypeError),
        (object(), TypeError),
        ([[1, 2], [3]], ShapeError),
        ([2**70], DTypeError),
        (np.array(["a"]), DTypeError),
        (np.array([object()]), DTypeError),
    ],
)
def test_what_is_no_array(given, error):
    with pytest.raises(error):
        nm.asarray(given)


def test_asked_for_dtypes():
    assert nm.asarray([1, 2], dtype="float16").tolist() == [1, 2]
    assert nm.asarray([1.7, -1.7], dtype="int32").tolist() == [1, -1]
    assert nm.asarray([0.5, 0], dtype=bool).tolist() == [True, False]
    assert nm.asarray([0.1], dtype="float64").item() == 0.1  # not by way of float32
    assert nm.asarray(1, dtype=nm.complex128).dtype is nm.complex128
    with pytest.raises(OverflowError):
        nm.asarray([300], dtype="uint8")
    with pytest.raises(TypeError, match="imaginary"):
        nm.asarray([1j], dtype="float32")
    with pytest.raises(DTypeError, match="float128"):
        nm.asarray([1], dtype="float128")


@pytest.mark.on_cpu("memory that NumPy can share")
def test_copies():
    host = np.arange(3.0)
    x = nm.asarray(host)
    y = nm.from_numpy(host)
    host[0] = 9
    assert x.tolist() == y.tolist() == [0, 1, 2]
    shared = nm.asarray(host, copy=False)
    host[1] = 7
    assert shared.tolist() == [9, 7, 2]
    assert nm.asarray(x) is x
    assert nm.asarray(x, copy=False) is x
    assert nm.asarray(x, copy=True) is not x
    for given, options in (
        ([1, 2], {}),
        (1.0, {}),
        (host[::2], {}),
        (host, {"dtype": "float32"}),
        (x, {"dtype": "float32"}),
    ):
        with pytest.raises(ValueError, match="copy=False"):
            nm.asarray(given, copy=False, **options)


def test_views_and_byte_orders_come_in_right():
    host = np.arange(12).reshape(3, 4)
    for given in (host.T, host[::-1, ::2], np.asfortranarray(host), host.astype(">i4")):
        np.testing.assert_array_equal(nm.asarray(given).numpy(), given)


def test_requires_grad():
    x = nm.asarray([1.0, 2.0], requires_grad=True)
    assert x.requires_grad
    assert x.is_leaf
    assert nm.zeros(2, requires_grad=True).requires_grad
    plain = nm.ones(2)
    assert nm.asarray(plain, requires_grad=True).requires_grad
    assert not plain.requires_grad
    assert nm.tensor([1.0], requires_grad=True).is_leaf
    assert nm.asarray(x, requires_grad=True) is x
    for given in (x, x * 2, [x[0], 3.0]):
        assert nm.tensor(given, requires_grad=True).is_leaf
    with pytest.raises(RuntimeError, match="floating"):
        nm.asarray([1], requires_grad=True)


def test_frombuffer():
    assert nm.frombuffer(np.arange(3, dtype=np.int16).tobytes(), "int16").tolist() == [0, 1, 2]


def test_devices():
    here = nm.default_device()
    assert nm.zeros(2, device=here).device is here
    assert nm.zeros(2, device=here.name).device == here.name
    assert nm.device("cpu:0") is nm.device("cpu")
    assert nm.device("cpu") == "cpu:0" == nm.device("cpu:0")  # as "cuda:0" is "cuda"
    assert nm.device("cpu") != "cpu:1"
    with pytest.raises(DeviceError, match="devices"):
        nm.zeros(2, device="abacus")


@pytest.mark.parametrize("k", [2**63, -(2**63), -(2**70), 3, -4])
def test_diagonals_outside_the_matrix(k):
    assert not nm.eye(3, 4, k=k).any() or k == 3
    ones = nm.ones((3, 4))
    inside = max(min(k, 4), -4)
    assert nm.tril(ones, k=k).tolist() == np.tril(np.ones((3, 4)), k=inside).tolist()
    assert nm.triu(ones, k=k).tolist() == np.triu(np.ones((3, 4)), k=inside).tolist()
