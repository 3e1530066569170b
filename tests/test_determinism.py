"""The same inputs give the same bits, whatever the number of threads."""

import numpy as np
import pytest

import numus as nm

RNG = np.random.default_rng(0)
LONG = RNG.standard_normal(300_001).astype(np.float32)
WIDE = RNG.standard_normal((700, 301)).astype(np.float32)
INDEX = RNG.integers(0, 50, 20_000)


def gradient(x):
    x = x.detach()
    x.requires_grad = True
    nm.layer_norm(nm.gelu(x @ x.T)).sum().backward()
    return x.grad


def convolution_gradients(x):
    x, w = x[:64, :300].reshape(4, 16, 20, 15), x[64:112, :144].reshape(48, 16, 3, 3)
    gradients = nm.grad(lambda x, w: nm.conv2d(x, w, padding=1).square().sum(), (0, 1))(x, w)
    return nm.concat([g.reshape(-1) for g in gradients])


GRAPHS = {
    "sum": lambda: nm.asarray(LONG).sum(),
    "sum in float16": lambda: nm.asarray(LONG.astype(np.float16)).sum(),
    "sum of rows": lambda: nm.asarray(WIDE).sum(1),
    "sum of columns": lambda: nm.asarray(WIDE).sum(0),
    "variance": lambda: nm.asarray(LONG).var(),
    "norm": lambda: nm.norm(nm.asarray(LONG)),
    "softmax": lambda: nm.softmax(nm.asarray(WIDE)),
    "running sum": lambda: nm.cumsum(nm.asarray(LONG)),
    "product": lambda: nm.asarray(WIDE) @ nm.asarray(WIDE).T,
    "sort": lambda: nm.sort(nm.asarray(LONG)),
    "scatter": lambda: nm.index_add(nm.zeros(50), 0, INDEX, nm.asarray(LONG[:20_000])),
    "histogram": lambda: nm.histogram(nm.asarray(LONG), 30)[0],
    "gradient": lambda: gradient(nm.asarray(WIDE)),
    "gradients of a convolution": lambda: convolution_gradients(nm.asarray(WIDE)),
    "random": lambda: nm.random.normal((100_001,), key=nm.random.key(3)),
}


@pytest.fixture
def threads():
    before = nm.get_num_threads()
    yield nm.set_num_threads
    nm.set_num_threads(before)


@pytest.mark.parametrize("name", GRAPHS)
def test_bits_do_not_depend_on_threads(name, threads):
    found = []
    for count in (1, 2, 3, 2):
        threads(count)
        found.append(GRAPHS[name]().numpy().tobytes())
    assert found.count(found[0]) == len(found)
