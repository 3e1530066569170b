"""Indexing, gathering, sorting and searching under vmap and tracing."""

import numpy as np
import pytest

import numus as nm
from numus.errors import TracingError
from numus.primitives.source import placeholder


def put(t, index, value):
    t = t.clone()
    t[index] = value
    return t


rng = np.random.default_rng(0)
X = rng.standard_normal((3, 4, 5))
N = rng.integers(0, 4, (3, 2))
V = rng.standard_normal((3, 2, 5))

# name: a function of x, an index vector and values
CASES = {
    "x[i]": lambda x, i, v: x[i],
    "x[:, i]": lambda x, i, v: x[1:, i],
    "x[i, i]": lambda x, i, v: x[i, i],
    "x[i] = v": lambda x, i, v: put(x, i, v),
    "x[1:3] = v": lambda x, i, v: put(x, slice(1, 3), v),
    "x[i[0]] = v": lambda x, i, v: put(x, i[0], v[0]),
    "x[mask] = 0": lambda x, i, v: put(x, x > 0, 0.0),
    "searchsorted": lambda x, i, v: nm.searchsorted(nm.sort(x[0]), v),
    "bincount": lambda x, i, v: nm.bincount(i, length=4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_axes", [(0, 0, 0), (0, None, None), (None, 0, None)])
def test_vmap(name, in_axes):
    function = CASES[name]
    given = [
        nm.asarray(a if axis == 0 else a[0]) for a, axis in zip((X, N, V), in_axes, strict=True)
    ]
    loop = [
        function(
            *(a[b] if axis == 0 else a for a, axis in zip(given, in_axes, strict=True))
        ).numpy()
        for b in range(3)
    ]
    mapped = nm.vmap(function, in_axes=in_axes)(*given)
    np.testing.assert_array_equal(mapped.numpy(), np.stack(loop))


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (lambda t: nm.nonzero(t), "nm.where"),
        (lambda t: t[t > 0], "nm.where"),
        (lambda t: nm.masked_select(t, t > 0), "nm.where"),
        (lambda t: nm.unique_values(t), "move the call outside"),
        (lambda t: nm.bincount(t.astype(nm.int64)), "length="),
        (lambda t: nm.repeat(t, t.astype(nm.int64)), "Python integers"),
    ],
)
def test_results_of_unknown_shape_are_refused_while_tracing(call, way_out):
    traced = nm.Tensor(placeholder((3,), nm.float32, nm.device(), "jit(f)"))
    with pytest.raises(TracingError, match=way_out):
        call(traced)


def test_indices_stay_pending_while_tracing():
    x = nm.asarray(X[0])
    i = nm.Tensor(placeholder((2,), nm.int64, nm.device(), "jit(f)"))
    assert x[i].shape == (2, 5)
    x[i] = 0.0
    assert x.shape == (4, 5)


def test_where_alone_is_nonzero():
    found = nm.where(nm.asarray([[0, 1], [2, 0]]))
    assert [f.tolist() for f in found] == [[0, 1], [1, 0]]
