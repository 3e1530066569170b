"""First values have the moments they promise."""

import math

import numpy as np
import pytest

import numus as nm
from numus import nn

init = nn.init


def filled(f, *args, shape=(200, 300), **kwargs):
    w = nn.Parameter(nm.zeros(shape))
    assert f(w, *args, key=nm.random.key(3), **kwargs) is w
    assert w.is_leaf
    return w.numpy()


@pytest.mark.parametrize(
    ("f", "std"),
    [
        (init.xavier_uniform_, math.sqrt(2 / 500)),
        (init.xavier_normal_, math.sqrt(2 / 500)),
        (lambda w, key: init.kaiming_uniform_(w, nonlinearity="relu", key=key), math.sqrt(2 / 300)),
        (lambda w, key: init.kaiming_normal_(w, mode="fan_out", key=key), math.sqrt(2 / 200)),
        (lambda w, key: init.kaiming_uniform_(w, a=math.sqrt(5), key=key), math.sqrt(1 / 900)),
        (init.normal_, 1.0),
    ],
)
def test_spread(f, std):
    w = filled(f)
    assert abs(w.std() / std - 1) < 0.02
    assert abs(w.mean()) < 0.02 * std


def test_bounds():
    w = filled(init.uniform_, -0.5, 0.25)
    assert -0.5 <= w.min() < -0.49
    assert 0.24 < w.max() < 0.25
    w = filled(init.trunc_normal_, 1.0, 2.0, 0.0, 2.0)
    assert w.min() >= 0
    assert w.max() <= 2


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 2, 2)])
def test_orthogonal(shape):
    w = filled(init.orthogonal_, 2.0, shape=shape).reshape(shape[0], -1)
    small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)


def test_patterns():
    w = nn.Parameter(nm.zeros((4, 2, 3)))
    init.dirac_(w, groups=2)
    out = w.numpy()
    assert out.sum() == 4
    assert all(out[r, r % 2, 1] == 1 for r in range(4))
    assert (filled(init.sparse_, 0.1, shape=(20, 5)) == 0).sum(axis=0).tolist() == [2] * 5
    assert init.eye_(nn.Parameter(nm.zeros((2, 3)))).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert init.constant_(nm.zeros(2), 3.0).tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="no inputs and outputs"):
        init.xavier_uniform_(nm.zeros(3))
    with pytest.raises(ValueError, match="swish"):
        init.calculate_gain("swish")


def test_layers_draw_as_pytorch_does():
    linear = nn.Linear(400, 300)
    bound = 1 / 20
    for values in (linear.weight.numpy(), linear.bias.numpy()):
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > 0.97 * bound
