"""What cannot be done is refused at the call, by name, with the shapes and the way out.

And what looks odd but means something (no axes, no elements) works.
"""

import numpy as np
import pytest

import numus as nm
from numus import data, nn, optim
from numus.errors import DeviceError, DTypeError, IndexRangeError, NumusError, ShapeError

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def T(array=X, **options):
    return nm.asarray(np.asarray(array), **options)


# -- shapes ---------------------------------------------------------------------------------------

SHAPES = {
    "add": lambda: T() + nm.ones(2),
    "mul": lambda: nm.multiply(nm.ones((2, 1, 3)), nm.ones((4, 3, 3, 2))),
    "where": lambda: nm.where(nm.ones(2, dtype="bool"), nm.ones(3), 1.0),
    "matmul": lambda: T() @ T(),
    "mm": lambda: nm.mm(nm.ones(3), T().T),
    "bmm": lambda: nm.bmm(nm.ones((2, 3, 4)), nm.ones((3, 4, 5))),
    "dot": lambda: nm.dot(T(), T()),
    "einsum": lambda: nm.einsum("ij,jk", T(), T()),
    "tensordot": lambda: nm.tensordot(T(), T(), axes=1),
    "vecdot": lambda: nm.vecdot(T(), nm.ones(2)),
    "reshape": lambda: nm.reshape(T(), (4, 2)),
    "broadcast_to": lambda: nm.broadcast_to(T(), (3, 2)),
    "concat": lambda: nm.concat([T(), nm.ones((2, 4))]),
    "stack": lambda: nm.stack([T(), T().T]),
    "squeeze": lambda: nm.squeeze(T(), 0),
    "split": lambda: nm.split(T(), 5),
    "layer_norm": lambda: nm.layer_norm(T(), nm.ones(2)),
    "average": lambda: nm.average(T(), weights=nm.ones(4)),
    "searchsorted": lambda: nm.searchsorted(nm.ones((3, 4)), nm.ones((2, 4))),
    "full": lambda: nm.full((2, 2), nm.ones(3)),
    "zeros": lambda: nm.zeros((2, -1)),
    "tril": lambda: nm.tril(nm.ones(3)),
    "topk": lambda: nm.topk(nm.ones(3), 4),
    "max": lambda: nm.max(nm.zeros((0, 3)), axis=0),
    "argmin": lambda: nm.argmin(nm.zeros((0,))),
    "index_put": lambda: nm.index_put(T(), (np.array([0]),), nm.ones(7)),
    "masked_scatter": lambda: nm.masked_scatter(nm.ones(2), nm.ones((2, 3), dtype="bool"), T()),
    "random.normal": lambda: nm.random.normal((2,), nm.ones(3)),
    "categorical": lambda: nm.random.categorical(nm.zeros((2, 0))),
    "choice": lambda: nm.random.choice(3, (5,), replace=False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shapes(name):
    """The message begins with the operation and tells a shape or a number."""
    with pytest.raises(ShapeError, match=rf"^{name.split('.')[-1]}.*\d") as caught:
        SHAPES[name]()
    assert isinstance(caught.value, (ValueError, NumusError))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nm.sum(x, 2),
        lambda x: nm.max(x, axis=-3),
        lambda x: nm.softmax(x, 5),
        lambda x: nm.flip(x, 2),
        lambda x: nm.swapaxes(x, 0, 2),
        lambda x: nm.concat([x, x], 2),
        lambda x: nm.stack([x], 4),
        lambda x: nm.sort(x, axis=2),
        lambda x: nm.argmax(x, 7),
        lambda x: nm.cumsum(x, 2),
        lambda x: nm.take(x, [0], axis=2),
        lambda x: nm.roll(x, 1, axis=3),
        lambda x: nm.diff(x, axis=2),
        lambda x: nm.squeeze(x, 2),
        lambda x: nm.expand_dims(x, 4),
        lambda x: nm.repeat(x, 2, axis=2),
        lambda x: nm.moveaxis(x, 0, 2),
        lambda x: nm.diagonal(x, 0, 0, 2),
        lambda x: nm.unstack(x, axis=2),
        lambda x: nm.gather(x, 2, np.zeros((2, 3), int)),
        lambda x: nm.layer_norm(x, axis=2),
        lambda x: nm.vmap(nm.sum, in_axes=3)(x),
    ],
)
def test_axes_out_of_range(call):
    with pytest.raises((ShapeError, ValueError), match=r"axis -?\d|in_axes"):
        call(T())


@pytest.mark.parametrize("axis", [(0, 0), (1, -1), 1.5, "rows"])
def test_axes_that_are_none(axis):
    for function in (nm.sum, nm.mean, nm.max, nm.flip, nm.any):
        with pytest.raises((ShapeError, TypeError)):
            function(T(), axis=axis)


# -- dtypes ---------------------------------------------------------------------------------------

DTYPES = {
    "complex numbers have no order": lambda: T(X + 1j) < 1,
    "maximum": lambda: nm.maximum(T(X + 1j), 1),
    "max": lambda: nm.max(T(X + 1j)),
    "floor": lambda: nm.floor(T(X + 1j)),
    "erf": lambda: nm.erf(T(X + 1j)),
    "astype": lambda: T(X + 1j).astype("float32"),
    "bitwise_and": lambda: T() & T(),
    "bitwise_left_shift": lambda: T() << 1,
    "subtract": lambda: T(X > 1) - T(X > 1),
    "negative": lambda: -T(X > 1),
    "float128": lambda: nm.zeros(2, dtype="float128"),
    "indices|integers": lambda: T()[T()],
    "mask": lambda: nm.masked_fill(T(), T(), 0),
    "bincount": lambda: nm.bincount(T()),
    "one_hot": lambda: nm.one_hot(T(), 3),
    "does not go into": lambda: nm.index_put(T(X.astype(int)), (0,), 1.5),
    "mean": lambda: nm.mean(T(), dtype="int32"),
    "matmul": lambda: nm.matmul(T(), T().T, dtype="int32"),
    "bits": lambda: nm.random.bits((2,), dtype="float32"),
    "integers": lambda: nm.random.integers(3, dtype="float32"),
    "dropout": lambda: nm.random.dropout(T(X.astype(int)), 0.5),
    "repeat": lambda: nm.repeat(T(), T()[0]),
    "not defined for bool": lambda: nm.scatter_add(T(X > 1), 0, [[0]], T(X > 1)),
    "relu": lambda: nm.relu(T(X > 1)),
}


@pytest.mark.parametrize("message", DTYPES)
def test_wrong_dtypes(message):
    with pytest.raises((DTypeError, TypeError), match=message):
        DTYPES[message]()


@pytest.mark.parametrize(
    "thing", ["text", None, object(), {"a": 1}, {1, 2}], ids=lambda t: type(t).__name__
)
def test_what_is_no_tensor(thing):
    for function in (nm.exp, nm.sum, nm.sort, nm.flip, nm.isnan, nm.softmax):
        with pytest.raises(TypeError, match=r"expected a tensor|asarray"):
            function(thing)
    with pytest.raises(TypeError):
        T() + thing


# -- indices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[2],
        lambda x: x[:, -4],
        lambda x: x[[0, 5]],
        lambda x: x[0, 0, 0],
        lambda x: x[nm.asarray([9])],
        lambda x: x[np.zeros((3, 3), bool)],
        lambda x: nm.take(x, [3], axis=1),
        lambda x: nm.gather(x, 0, [[2, 0, 0]]),
        lambda x: nm.embedding_lookup(x, [2]),
        lambda x: nm.scatter(x, 1, [[3]], 1.0),
        lambda x: nm.put(x.copy(), [6], 1.0),
        lambda x: x.select(0, 2),
    ],
)
def test_indices_out_of_range(call):
    with pytest.raises(IndexError) as caught:
        call(T())
    assert isinstance(caught.value, IndexRangeError)


# -- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b.T,
        lambda a, b: nm.where(a > 0, a, b),
        lambda a, b: nm.concat([a, b]),
        lambda a, b: nm.index_put(a, (0,), b[0]),
    ],
)
def test_mixed_devices(call):
    with pytest.raises(DeviceError, match=r"on (cpu and reference|reference and cpu); .*\.to\("):
        call(T(device="cpu"), T(device="reference"))


def test_mixed_devices_name_the_function():
    a, b = T(device="cpu"), T(device="reference")
    for call, name in ((lambda: a @ b.T, "matmul"), (lambda: a - b, "subtract")):
        with pytest.raises(DeviceError, match=f"^{name}: operands are on cpu and reference"):
            call()


def test_devices_that_are_not_there():
    for name in ("abacus", "cpu:7", 3):
        with pytest.raises(DeviceError, match="device"):
            nm.zeros(2, device=name)


def test_python_numbers_are_at_home_everywhere():
    x = T(device="reference")
    assert (x + 1).device == "reference"
    assert nm.where(x > 1, 2.0, x).device == "reference"
    assert nm.concat([x, nm.full((1, 3), 2.0, device="reference")]).device == "reference"


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: nm.zeros((1 << 40, 1 << 40)),
        lambda: nm.ones(1 << 63),
        lambda: nm.arange(1 << 62, dtype="uint64") + nm.arange(10)[:, None],
        lambda: nm.eye(1 << 40, 1 << 40),
        lambda: nm.linspace(0, 1, 1 << 63),
        lambda: nm.random.normal((1 << 40, 1 << 40)),
        lambda: nm.broadcast_to(nm.ones(1), (1 << 40, 1 << 40)),
        lambda: nm.tile(nm.ones(10), 1 << 62),
        lambda: nm.repeat(nm.ones(10), 1 << 62),
        lambda: nm.pad(nm.ones(10), 1 << 62),
    ],
)
def test_more_than_there_can_be(call):
    with pytest.raises((ShapeError, OverflowError, MemoryError)):
        call()


def test_more_than_there_is():
    """A size that could be, on another machine: nothing happens until it is asked for."""
    x = nm.zeros((1 << 45,))
    assert x[:3].tolist() == [0, 0, 0]  # never made as a whole
    with pytest.raises(MemoryError):
        nm.eval(x + 1)
    assert (nm.ones(3) + 1).tolist() == [2, 2, 2]


def test_numbers_that_do_not_fit():
    for call in (
        lambda: nm.asarray([1], dtype="uint8") + 256,
        lambda: nm.full((2,), -1, dtype="uint16"),
        lambda: nm.asarray([2**70]),
        lambda: nm.arange(300, dtype="uint8"),
        lambda: nm.random.key(1 << 70),
    ):
        with pytest.raises((OverflowError, DTypeError)):
            call()


# -- no axes, no elements -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (2, 0, 4)])
def test_everything_takes_no_axes_and_no_elements(shape):
    x = np.zeros(shape, np.float32)
    t = nm.asarray(x)
    pairs = [
        (nm.exp(t) + t, np.exp(x) + x),
        (t.sum(), x.sum()),
        (nm.prod(t), x.prod()),
        (t.T, x.T),
        (t.reshape(-1), x.reshape(-1)),
        (nm.concat([t, t], axis=None), np.concat([x, x], axis=None)),
        (nm.stack([t, t]), np.stack([x, x])),
        (nm.cumsum(t), np.cumsum(x)),
        (nm.sort(t, axis=None), np.sort(x, axis=None)),
        (nm.flip(t), np.flip(x)),
        (nm.where(t > 0, t, 1), np.where(x > 0, x, 1)),
        (nm.any(t), x.any()),
        (nm.all(t), x.all()),
        (nm.tile(t, 2), np.tile(x, 2)),
        (nm.roll(t, 1), np.roll(x, 1)),
        (nm.isin(t, t), np.isin(x, x)),
        (nm.unique_values(t), np.unique(x)),
        (nm.outer(t, t), np.outer(x, x)),
        (nm.tensordot(t, t, axes=0), np.tensordot(x, x, axes=0)),
        (nm.kron(t, t), np.kron(x, x)),
        (t[None], x[None]),
        (t[...], x[...]),
        (nm.count_nonzero(t), np.count_nonzero(x)),
        (t.astype("int8"), x.astype("int8")),
        (nm.diff(nm.atleast_1d(t)), np.diff(np.atleast_1d(x))),
        (nm.vector_norm(t), np.linalg.norm(x.ravel())),
    ]
    for got, want in pairs:
        assert got.shape == np.shape(want)
        np.testing.assert_array_equal(got.numpy(), want)
    w = nm.asarray(x, requires_grad=True)
    (nm.tanh(w) * 2).sum().backward()
    assert w.grad.shape == shape


def test_gradients_that_there_are_not():
    x = T(requires_grad=True)
    with pytest.raises(RuntimeError, match=r"one element|scalar|gradient"):
        (x * 2).backward()
    with pytest.raises(RuntimeError):
        T().sum().backward()
    with pytest.raises((RuntimeError, TypeError)):
        nm.grad(lambda t: t * 2)(T())
    with pytest.raises((RuntimeError, TypeError)):
        nm.grad(nm.sum)(T(X.astype(int)))


# -- slips of those who come from elsewhere -------------------------------------------------------

LAYER = nn.Linear(3, 2)
SLIPS = {
    "grad: takes a function, not int": lambda: nm.grad(3),
    "jacrev: takes a function, not Tensor": lambda: nm.jacrev(T()),
    "jacfwd: takes a function, not str": lambda: nm.jacfwd("f"),
    "vmap: takes a function, not int": lambda: nm.vmap(3),
    "vjp: takes a function, not int": lambda: nm.vjp(3, T()),
    "checkpoint: takes a function": lambda: nm.checkpoint(3),
    "custom_vjp: takes a function": lambda: nm.custom_vjp(3),
    "custom_jvp: takes a function": lambda: nm.custom_jvp(3),
    "cond: takes a function, not int": lambda: nm.cond(True, 3, 4),
    "scan: takes a function": lambda: nm.scan(3, 0.0, T()),
    "fori_loop: takes a function": lambda: nm.fori_loop(0, 3, 5, 0.0),
    "while_loop: takes a function": lambda: nm.while_loop(3, 4, 0.0),
    "associative_scan: takes a function": lambda: nm.associative_scan(3, T()),
    "vmap: in_axes has 2 entries, but 1 positional": lambda: nm.vmap(nm.sin, in_axes=(0, 0))(T()),
    "where: takes a condition alone, or with both": lambda: nm.where(T(), T()),
    "stack: takes a sequence of arrays, not int": lambda: nm.stack(3),
    "indexing: index .* has rows of unequal lengths": lambda: T()[[[0, 1], [0]]],
    "to: 'gpux' names no device .*cpu.*; 'gpux' is not a dtype": lambda: T().to("gpux"),
    "normal: scale must be a number, not .* first argument": lambda: nm.random.normal(0, 1, (3,)),
    "uniform: high must be a number, not .* first argument": lambda: nm.random.uniform(0, 1, (3,)),
    "seed must be an integer, not 'a'": lambda: nm.random.seed("a"),
    "module .numus. has no attribute .random_normal.": lambda: nm.random_normal(3),
    "linear: a weight of shape .* has 3 elements, not shape": lambda: LAYER(nm.ones((2, 5))),
    "bilinear: a weight of shape": lambda: nn.Bilinear(2, 3, 4)(nm.ones((5, 2)), nm.ones((5, 4))),
    "batch_norm: running_mean of shape .* 4 channels": lambda: nn.BatchNorm1d(3)(nm.ones((2, 4))),
    "instance_norm: running_mean of shape": lambda: nn.InstanceNorm1d(3, track_running_stats=True)(
        nm.ones((2, 4, 5))
    ),
    "kl_div: input of shape .* differ": lambda: nn.functional.kl_div(T(), T().T),
    "Sequential: holds modules, not int: 3": lambda: nn.Sequential(3),
    "ModuleList: holds modules, not int: 3": lambda: nn.ModuleList([LAYER, 3]),
    "ModuleDict: holds modules, not str": lambda: nn.ModuleDict({"a": "b"}),
    "Conv2d: kernel_size is a number or 2 of them": lambda: nn.Conv2d(3, 4, (3, 3, 3)),
    "ConvTranspose1d: output_padding is a number or 1": lambda: nn.ConvTranspose1d(
        3, 4, 2, stride=2, output_padding=(1, 1)
    ),
    "Conv2d: padding is numbers, 'valid' or 'same'": lambda: nn.Conv2d(3, 4, 3, padding="full"),
    "load_state_dict: takes a mapping .* not int": lambda: LAYER.load_state_dict(3),
    "SGD: takes a module, or its parameters .* not int": lambda: optim.SGD(3, lr=0.1),
    "SGD: takes a module, .* not Parameter": lambda: optim.SGD(LAYER.weight, lr=0.1),
    "SGD: a group names its parameters": lambda: optim.SGD([{"lr": 1.0}], lr=0.1),
    "SGD.load_state_dict: .* no 'param_groups'": lambda: optim.SGD(LAYER, lr=0.1).load_state_dict(
        {}
    ),
    "explain: takes a function, or tensors, not int": lambda: nm.explain(3),
    "register_parameter: 'a' takes an nn.Parameter": lambda: LAYER.register_parameter("a", T()),
    "takes a module, or parameters, not int": lambda: nn.utils.clip_grad_norm_(3, 1.0),
    "DataLoader: int is no dataset": lambda: data.DataLoader(3),
    "StepLR: takes an optimiser, not int": lambda: optim.lr_scheduler.StepLR(3, 5),
}


@pytest.mark.parametrize("message", SLIPS)
def test_slips_are_named(message):
    with pytest.raises((TypeError, ValueError, AttributeError), match=message):
        SLIPS[message]()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda a, b: a * b, "multiply"),
        (lambda a, b: a - b, "subtract"),
        (lambda a, b: a < b, "less"),
        (lambda a, b: nm.remainder(a, b), "remainder"),
    ],
)
def test_errors_speak_of_public_names(function, name):
    with pytest.raises(ValueError, match=f"^{name}: shapes"):
        function(nm.ones(3), nm.ones(4))
