"""Python's operators and protocols on tensors."""

import contextlib
import copy
import enum
import gc
import math
import operator
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from described import described

import numus as nm
from numus.dispatch.node_ops import FastCall
from numus.errors import GradientError

BINARY = "add sub mul truediv floordiv mod pow".split()
BITS = "and_ or_ xor lshift rshift".split()


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_with_tensors_scalars_and_arrays(name):
    op = getattr(operator, name)
    a, b = np.array([1.5, 2.0, 3.5], np.float32), np.array([2.0, 0.5, 1.25], np.float32)
    x, y = nm.asarray(a), nm.asarray(b)
    for got, expected in (
        (op(x, y), op(a, b)),
        (op(x, 2), op(a, 2)),
        (op(2, x), op(2, a)),
        (op(x, 2.5), op(a, 2.5)),
        (op(x, b), op(a, b)),
        (op(a, y), op(a, b)),
        (op(x, np.float32(2)), op(a, np.float32(2))),
        (op(np.float32(2), x), op(np.float32(2), a)),
    ):
        assert isinstance(got, nm.Tensor)
        assert got.dtype is nm.float32
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    assert op(np.float64(2), x).dtype is nm.float32


@pytest.mark.parametrize("name", BITS)
def test_bit_operators(name):
    op = getattr(operator, name)
    a, b = np.array([5, 12, 3]), np.array([3, 1, 2])
    np.testing.assert_array_equal(op(nm.asarray(a), nm.asarray(b)).numpy(), op(a, b))
    np.testing.assert_array_equal(op(nm.asarray(a), 2).numpy(), op(a, 2))
    np.testing.assert_array_equal(op(20, nm.asarray(b)).numpy(), op(20, b))


@pytest.mark.parametrize("name", "eq ne lt le gt ge".split())
def test_comparisons(name):
    op = getattr(operator, name)
    a, b = np.array([1.0, 2.0, math.nan]), np.array([1.0, 3.0, math.nan])
    np.testing.assert_array_equal(op(nm.asarray(a), nm.asarray(b)).numpy(), op(a, b))
    np.testing.assert_array_equal(op(nm.asarray(a), 2).numpy(), op(a, 2))
    np.testing.assert_array_equal(op(2, nm.asarray(a)).numpy(), op(2, a))
    assert op(nm.asarray(a), nm.asarray(b)).dtype is nm.bool
    small = np.array([0, 200], np.uint8)
    for number in (-1, 300, 2**80, -(2**80)):  # out of range, and known all the same
        np.testing.assert_array_equal(op(nm.asarray(small), number).numpy(), op(small, number))
        np.testing.assert_array_equal(op(number, nm.asarray(small)).numpy(), op(number, small))


def test_unary_operators():
    x = nm.asarray([-1.5, 2.5])
    assert (-x).tolist() == [1.5, -2.5]
    assert (+x).tolist() == [-1.5, 2.5]
    assert abs(x).tolist() == [1.5, 2.5]
    assert (~nm.asarray([True, False])).tolist() == [False, True]
    assert (~nm.asarray([1])).tolist() == [-2]
    assert round(x).tolist() == [-2, 2]
    assert math.floor(x).tolist() == [-2, 2]


def test_matmul():
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose((nm.asarray(a) @ nm.asarray(a.T)).numpy(), a @ a.T)
    np.testing.assert_allclose((a @ nm.asarray(a.T)).numpy(), a @ a.T)


def test_strangers_get_their_turn():
    class Stranger:
        def __radd__(self, other):
            return "radd"

        def __eq__(self, other):
            return "eq"

        __hash__ = None

    assert nm.ones(2) + Stranger() == "radd"
    assert (nm.ones(2) == Stranger()) == "eq"
    with pytest.raises(TypeError):
        nm.ones(2) + "text"
    with pytest.raises(TypeError):
        operator.add(nm.ones(2), [1, 2])
    assert (nm.ones(2) == "text") is False
    with pytest.raises(TypeError):
        operator.iadd(nm.ones(2), "text")


def test_subclasses_of_numbers():
    class Level(enum.IntEnum):
        HIGH = 3

    assert (nm.ones(2, dtype="float16") * Level.HIGH).dtype is nm.float16


@pytest.mark.parametrize("name", ["i" + n for n in BINARY])
def test_in_place(name):
    x = y = nm.asarray([1.5, 2.0])
    expected = getattr(operator, name[1:])(np.array([1.5, 2.0]), 2.0)
    x = getattr(operator, name)(x, 2.0)
    assert x is y  # the handle is the same one
    np.testing.assert_allclose(y.numpy(), expected)


def test_in_place_changes_neither_shape_nor_dtype():
    x = nm.ones((2,), dtype="int32")
    with pytest.raises(TypeError, match=r"int32"):
        x += 1.5
    with pytest.raises(ValueError, match="shape"):
        x += nm.ones((3, 2), dtype="int32")
    with pytest.raises(TypeError):
        x /= 2
    x += 1
    assert x.tolist() == [2, 2]
    x <<= 2
    assert x.tolist() == [8, 8]


def test_in_place_under_gradients():
    w = nm.asarray([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match="no_grad"):
        w += 1
    y = w * 2
    before = y
    y *= y  # what was recorded before keeps its meaning
    assert y is before
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [8, 16])
    with nm.no_grad():
        w -= 0.5 * w.grad
    assert w.is_leaf
    assert w.requires_grad
    np.testing.assert_allclose(w.numpy(), [-3, -6])


def test_in_place_leaves_pending_work_alone():
    x = nm.asarray([1.0])
    y = x + 1
    x += 10
    assert (x.item(), y.item()) == (11, 2)


def test_a_plus_sign_makes_a_tensor_of_its_own():
    w = nm.asarray([1.0], requires_grad=True)
    y = +w
    y += 1
    assert (w.item(), y.item()) == (1, 2)
    y.sum().backward()
    assert w.grad.item() == 1


# -- a tensor as a number -------------------------------------------------------------------------


def test_conversions_to_numbers():
    assert float(nm.asarray(1.5)) == 1.5
    assert float(nm.asarray(1.5, dtype="bfloat16")) == 1.5
    assert int(nm.asarray(-2.7)) == -2
    assert complex(nm.asarray(1 + 2j)) == 1 + 2j
    assert bool(nm.asarray(0.0)) is False
    assert bool(nm.asarray([3])) is True
    assert operator.index(nm.asarray(3, dtype="uint8")) == 3
    assert [10, 20, 30][nm.asarray(1)] == 20
    assert type(float(nm.asarray(1))) is float
    assert type(int(nm.asarray(True))) is int


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: bool(nm.ones(2)), ValueError),
        (lambda: bool(nm.ones(0)), ValueError),
        (lambda: float(nm.ones(2)), (TypeError, ValueError)),
        (lambda: float(nm.asarray(1j)), TypeError),
        (lambda: int(nm.asarray(1j)), TypeError),
        (lambda: int(nm.asarray(math.nan)), ValueError),
        (lambda: int(nm.asarray(math.inf)), OverflowError),
        (lambda: operator.index(nm.asarray(1.0)), TypeError),
        (lambda: operator.index(nm.asarray([1])), TypeError),
        (lambda: len(nm.asarray(1)), TypeError),
        (lambda: list(nm.asarray(1)), TypeError),
    ],
)
def test_conversions_that_make_no_sense(call, error):
    with pytest.raises(error):
        call()


def test_sequences():
    x = nm.asarray([[1, 2], [3, 4], [5, 6]])
    assert len(x) == 3
    assert [row.tolist() for row in x] == [[1, 2], [3, 4], [5, 6]]
    _, _, c = x
    assert c.tolist() == [5, 6]
    assert 4 in x
    assert 7 not in x
    assert list(nm.zeros((0, 2))) == []


def test_identity():
    x, y = nm.ones(2), nm.ones(2)
    assert len({x, y, x}) == 2
    assert {x: 1}[x] == 1


def test_copies_are_tensors_of_their_own():
    w = nm.asarray([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    for duplicate in (copy.copy(w), copy.deepcopy(w)):
        assert duplicate.is_leaf
        assert duplicate.requires_grad
        assert duplicate.grad.tolist() == [2, 4]
        assert duplicate.grad is not w.grad
        with duplicate.data_write() as a:
            a[0] = 9
        assert w.tolist() == [1, 2]
    shared = [w, w]
    first, second = copy.deepcopy(shared)
    assert first is second
    assert copy.deepcopy(w * 2).is_leaf


# -- display --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (lambda: nm.asarray([1.0, 2.0]), "tensor([1., 2.])"),
        (lambda: nm.asarray(1.5), "tensor(1.5)"),
        (lambda: nm.asarray([1, 2]), "tensor([1, 2])"),
        (lambda: nm.asarray([True]), "tensor([ True])"),
        (lambda: nm.asarray([1, 2], dtype="int8"), "tensor([1, 2], dtype=int8)"),
        (lambda: nm.asarray([0.1], dtype="bfloat16"), "tensor([0.1001], dtype=bfloat16)"),
        (lambda: nm.asarray([0.5], dtype="float8_e4m3fn"), "tensor([0.5], dtype=float8_e4m3fn)"),
        (lambda: nm.asarray([0.1], dtype="float64"), "tensor([0.1], dtype=float64)"),
        (lambda: nm.asarray([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: nm.zeros(0), "tensor([])"),
        (lambda: nm.zeros((0, 3)), "tensor([], shape=(0, 3))"),
        (lambda: nm.asarray([1 + 2j]), "tensor([1.+2.j])"),
        (lambda: nm.eye(2), "tensor([[1., 0.],\n        [0., 1.]])"),
        (
            lambda: nm.arange(5000),
            "tensor([   0,    1,    2, ..., 4997, 4998, 4999])",
        ),
    ],
)
def test_repr(x, text):
    shown = repr(x())
    if nm.device() != "cpu":
        assert shown.count(f", device='{nm.device()}'") == 1
    assert shown.replace(f", device='{nm.device()}'", "") == text


def test_str_and_format():
    assert str(nm.asarray([1.0, 2.0])) == "[1. 2.]"
    assert f"{nm.asarray(3.14159):.2f}" == "3.14"
    assert f"{nm.asarray([1, 2])}" == "[1 2]"
    with pytest.raises(TypeError, match="format"):
        f"{nm.ones(2):.2f}"


def test_traced_tensors_can_be_printed():
    seen = []

    def f(x):
        seen.append((repr(x), str(x)))
        return x

    nm.vmap(f)(nm.ones((3, 2)))
    assert all("traced" in text and "float32" in text for pair in seen for text in pair)


# -- the array API's own methods ------------------------------------------------------------------


def test_namespace():
    x = nm.ones(2)
    assert x.__array_namespace__() is nm
    assert x.__array_namespace__(api_version="2024.12") is nm
    with pytest.raises(ValueError, match="1066"):
        x.__array_namespace__(api_version="1066.10")
    info = nm.__array_namespace_info__()
    assert info.default_device() is nm.default_device()
    assert nm.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] is nm.float32
    assert set(info.dtypes(kind="integral")) == {
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    }
    assert info.capabilities()["data-dependent shapes"]
    for name in nm.__all__:
        assert hasattr(nm, name)
    assert nm.newaxis is None


def test_moving_and_converting():
    x = nm.asarray([1.5, 2.5])
    here = nm.default_device()
    assert x.to(here) is x
    assert x.to("float16").dtype is nm.float16
    assert x.to(here.name, nm.int8).dtype is nm.int8
    assert x.to(dtype="float64").dtype is nm.float64
    assert x.to(nm.ones(1, dtype="int16")).dtype is nm.int16
    assert x.to_device(here) is x
    for name, dtype in {"half": nm.float16, "double": nm.float64, "long": nm.int64}.items():
        assert getattr(x, name)().dtype is dtype
    assert x.bool().tolist() == [True, True]
    assert x.to_dtype("int32").tolist() == [1, 2]
    assert x.tanh_act().tolist() == nm.tanh(x).tolist()


def test_dtypes_are_those_of_the_device(monkeypatch):
    from numus.functions.interop import namespace_info

    target = SimpleNamespace(dtypes={"bool", "int32", "float32", "float16", "complex64"})
    place = SimpleNamespace(runtime=SimpleNamespace(target=target))
    monkeypatch.setattr(namespace_info, "as_device", lambda given: place)
    info = nm.__array_namespace_info__()
    assert set(info.dtypes(device="webgpu")) == {"bool", "int32", "float32", "complex64"}
    assert set(info.dtypes(kind="real floating")) == {"float32"}


@pytest.mark.on_cpu("tensors that stay there")
def test_without_a_gpu_it_stays_and_says_so_once(monkeypatch):
    from numus.functions.interop import namespace_info

    monkeypatch.setattr(namespace_info, "_told", set())
    monkeypatch.setattr(namespace_info, "best_gpu", lambda: None)
    x = nm.ones(2)
    with pytest.warns(RuntimeWarning, match="no GPU"):
        assert x.to_gpu() is x
    assert x.to_gpu() is x  # a second warning would be an error


def test_eval():
    x, y = nm.ones(2) + 1, nm.ones(3) * 2
    nm.eval({"a": [x, (y, None)], "b": 3})
    assert x._node.view is not None
    assert y._node.view is not None
    nm.eval()
    nm.synchronize()


def test_the_version_is_the_packages():
    import pathlib
    import tomllib

    root = pathlib.Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert nm.__version__ == project["version"]


def test_short_names_of_operators():
    x, y = nm.asarray([3.0, -1.0], requires_grad=True), nm.asarray([2.0, 4.0])
    assert x.sub(y).tolist() == [1.0, -5.0]
    assert x.mul(y).tolist() == [6.0, -4.0]
    assert x.div(y).tolist() == [1.5, -0.25]
    assert x.neg().tolist() == [-3.0, 1.0]
    x.mul(y).sub(x).neg().sum().backward()
    assert x.grad.tolist() == [-1.0, -3.0]
    assert x.cpu().is_gpu() is False


# -- the tenth time as the first ------------------------------------------------------------------


def _operands():
    values = np.array([[1.5, -2.0, 3.5], [0.25, 4.0, -1.0]], np.float32)
    x, y = nm.asarray(values), nm.asarray(values[::-1] + 3)
    tracked = nm.asarray(values * 2)
    tracked.requires_grad = True
    return {
        "two tensors": (x, y),
        "one twice": (x, x),
        "pending ones": (x + 1, y * 2),
        "tensors of float64": (x.astype("float64"), y.astype("float64")),
        "of bfloat16": (x.astype("bfloat16"), y.astype("bfloat16")),
        "of two dtypes": (x, y.astype("float64")),
        "of integers": (nm.asarray([1, 2]), nm.asarray([3, 4])),
        "complex ones": (x + 1j, y),
        "a row": (x, y[0]),
        "one without axes": (x, nm.asarray(2.5)),
        "from none": (nm.asarray(2.5), x),
        "at home everywhere": (nm.ones((2, 3)), x),
        "views": (x.T, y.T),
        "nothing": (x[:0], y[:0]),
        "a float": (x, 2.5),
        "minus zero": (x, -0.0),
        "an integer": (x, 3),
        "a long integer": (x, 1 << 70),
        "a boolean": (x, True),
        "a complex number": (x, 2j),
        "a number of NumPy's": (x, np.float64(2)),
        "an array": (x, values),
        "a number first": (2.5, x),
        "an integer first": (3, y),
        "a tracked one": (tracked, y),
        "the other tracked": (x, tracked),
        "both tracked": (tracked, tracked * 2),
        "tracked and a number": (tracked, 2.0),
    }


@pytest.mark.parametrize("operands", _operands())
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_operators_make_the_same_graphs_natively(name, operands):
    op = getattr(operator, name)
    FastCall.reset_all()
    graphs, plain = [], []
    x, y = _operands()[operands]
    inputs = [t._node for t in (x, y) if isinstance(t, nm.Tensor)]
    with np.errstate(all="ignore"):
        for _ in range(10):
            out = op(x, y)
            graphs.append(described(out._node, inputs))
            reach = out._node.depth, out._node.retained_bytes
            assert type(out) is nm.Tensor
            assert out._node.handle() is out
            graphs[-1].append(reach)
            with nm.no_grad():
                plain.append(described(op(x, y)._node, inputs))
    assert graphs.count(graphs[0]) == 10
    assert plain.count(plain[0]) == 10


@pytest.mark.parametrize("operands", _operands())
def test_products_make_the_same_graphs_natively(operands):
    FastCall.reset_all()
    x, y = _operands()[operands]
    inputs = [t._node for t in (x, y) if isinstance(t, nm.Tensor)]
    modes = [
        contextlib.nullcontext(),
        nm.no_grad(),
        nm.autocast("bf16"),
        nm.matmul_precision("tf32"),
    ]
    for how in modes:
        graphs = []
        for _ in range(6):
            with how:
                try:
                    out = x @ y.T if isinstance(y, nm.Tensor) else x @ y
                except (nm.errors.ShapeError, TypeError, ValueError) as error:
                    graphs.append(str(error))
                    continue
            graphs.append(described(out._node, inputs))
        assert graphs.count(graphs[0]) == 6


def test_operators_refuse_the_same_natively():
    x = nm.asarray([1.0, 2.0])
    for _ in range(10):
        with pytest.raises(OverflowError):
            x * 10**400
        with pytest.raises(TypeError):
            x + "1"
        with pytest.raises(TypeError):
            "1" - x
        with pytest.raises(nm.errors.ShapeError, match="broadcast"):
            x * nm.asarray([1.0, 2.0, 3.0])
        with pytest.raises(nm.errors.DeviceError):
            x * nm.asarray([1.0, 2.0], device="reference")


def test_operators_leave_nothing_behind():
    x, y = nm.asarray([1.0, 2.0]), nm.asarray([3.0, 4.0])
    x.requires_grad = True

    def turn():
        z = (x + y) * 2.5 - 1
        nm.eval(z / y + x, 3 / z)

    for _ in range(30):
        turn()
    gc.collect()
    before = sys.getallocatedblocks()
    things = (x._node.shape, y._node, nm.float32, 2.5)
    counts = [sys.getrefcount(thing) for thing in things]
    for _ in range(500):
        turn()
    gc.collect()
    assert sys.getallocatedblocks() - before < 200
    now = [sys.getrefcount(thing) for thing in things]
    assert all(b - a < 20 for a, b in zip(counts, now, strict=True))


def test_long_chains_of_operators_are_bounded():
    x = nm.asarray([0.0, 1.0])
    y = x
    for _ in range(3 * nm.config.MAX_PENDING_DEPTH):
        y = y + 1
        assert y._node.depth <= nm.config.MAX_PENDING_DEPTH
    assert y.tolist() == [3.0 * nm.config.MAX_PENDING_DEPTH, 3.0 * nm.config.MAX_PENDING_DEPTH + 1]
