"""Layout assignment: convolution networks with channels last in memory, on an emulated GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.graph import channels_last
from numus.compiler.plan import clear_plans

simt_machine.install()
GPU = "simt_sm90"
F = nm.nn.functional


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Layouts are chosen for small convolutions as well."""
    monkeypatch.setattr(channels_last, "MIN_MACS", 1)
    monkeypatch.setattr(channels_last, "MIN_CHANNELS", 1)
    clear_plans()
    yield
    clear_plans()


def drawn(seed, *shape):
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return nm.asarray(x).astype("bfloat16")


def gradients(function, operands, dtype, device):
    """Values and gradients of a sum of squares."""

    def loss(*xs):
        return (function(*xs).astype("float32") ** 2).sum()

    xs = [x.astype(dtype).to(device) for x in operands]
    numbers = tuple(range(len(xs)))
    value, found = nm.value_and_grad(loss, argnums=numbers)(*xs)
    nm.eval(value, found)
    return [np.asarray(v.astype("float32").numpy()) for v in (value, *found)]


def normalised(x):
    mean = x.mean((0, 2, 3), keepdims=True)
    return (x - mean) * nm.rsqrt(((x - mean) ** 2).mean((0, 2, 3), keepdims=True) + 1e-3)


def block(x, a, b, c):
    """A convolution, a norm over channels, 1×1 convolutions, a residual sum."""
    x = nm.conv2d(x, a, padding=1)
    y = nm.relu(normalised(nm.conv2d(x, b)))
    return nm.conv2d(y, c) + x


def pooled(x, a, b):
    y = nm.max_pool2d(nm.conv2d(x, a, stride=2, padding=1), 3, 2, 1)
    return nm.conv2d(nm.concat([y, y[:, :, ::-1] * 2], 1), b, stride=2).mean((2, 3))


def reshaped(x, a, b):
    """Views that split and join axes of a twin, and one that cannot."""
    y = nm.conv2d(x, a)
    n, c, h, w = y.shape
    y = y.reshape(n, 2, c // 2, h * w) * nm.arange(c // 2)[:, None].to(x.device).astype(x.dtype)
    y = nm.pad(y.reshape(n, c, h, w), ((0, 0), (0, 0), (1, 0), (0, 2)))
    return nm.conv2d(y, b).transpose(0, 2, 3, 1).reshape(n, -1) + y.reshape(n, -1)[:, :1]


CASES = {
    "block": (block, (2, 8, 5, 6), (16, 8, 3, 3), (8, 16, 1, 1), (16, 8, 1, 1)),
    "pooling": (pooled, (2, 3, 13, 12), (8, 3, 3, 3), (8, 16, 2, 2)),
    "views": (reshaped, (2, 4, 4, 5), (6, 4, 2, 2), (8, 6, 2, 2)),
    "three axes": (
        lambda x, a, b: nm.conv3d(nm.tanh(nm.conv3d(x, a, padding=1)), b, stride=(1, 2, 1)),
        *((1, 3, 3, 4, 3), (4, 3, 2, 3, 2), (8, 4, 2, 2, 2)),
    ),
    "one axis": (
        lambda x, a, b: nm.conv1d(nm.relu(nm.conv1d(x, a, dilation=2)), b, padding=2),
        *((3, 4, 20), (8, 4, 3), (4, 8, 5)),
    ),
    "transposed": (
        lambda x, a, b: nm.conv_transpose2d(nm.conv2d(x, a), b, stride=2, padding=1),
        *((2, 4, 5, 4), (6, 4, 2, 2), (6, 4, 3, 4)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, *shapes = CASES[name]
    operands = [drawn(i, *s) for i, s in enumerate(shapes)]
    want = gradients(function, operands, "float32", "cpu")
    for f in (function, nm.jit(function)):
        for a, b in zip(gradients(f, operands, "bfloat16", GPU), want, strict=True):
            assert a.shape == b.shape
            assert np.linalg.norm(a - b) <= 2e-2 * np.linalg.norm(b)
