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
L = rng.integers(0, 4, (3, 2, 5))

# name: a function of x, an index vector, values and an index for each element
CASES = {
    "take": lambda x, i, v, k: nm.take(x, i, axis=0),
    "x[i]": lambda x, i, v, k: x[i],
    "x[:, i]": lambda x, i, v, k: x[1:, i],
    "x[i, i]": lambda x, i, v, k: x[i, i],
    "x[i] = v": lambda x, i, v, k: put(x, i, v),
    "x[1:3] = v": lambda x, i, v, k: put(x, slice(1, 3), v),
    "x[i[0]] = v": lambda x, i, v, k: put(x, i[0], v[0]),
    "x[mask] = 0": lambda x, i, v, k: put(x, x > 0, 0.0),
    "take_along_axis": lambda x, i, v, k: nm.take_along_axis(x, k, axis=0),
    "scatter": lambda x, i, v, k: nm.scatter(x, 0, k, v),
    "scatter_add": lambda x, i, v, k: nm.scatter_add(x, 0, k, v),
    "scatter prod": lambda x, i, v, k: nm.scatter_reduce(x, 0, k, v, "prod"),
    "scatter mean": lambda x, i, v, k: nm.scatter_reduce(x, 0, k, v, "mean", include_self=False),
    "scatter amax": lambda x, i, v, k: nm.scatter_reduce(x, 0, k, v, "amax"),
    "index_add": lambda x, i, v, k: nm.index_add(x, 0, i, v),
    "masked_scatter": lambda x, i, v, k: nm.masked_scatter(x, x > 0, v),
    "sort": lambda x, i, v, k: nm.sort(x, axis=0, descending=True),
    "topk": lambda x, i, v, k: nm.topk(x, 2).values,
    "argmax": lambda x, i, v, k: nm.argmax(x, axis=1),
    "searchsorted": lambda x, i, v, k: nm.searchsorted(nm.sort(x[0]), v),
    "histogram": lambda x, i, v, k: nm.histogram(x, 4)[0],
    "bincount": lambda x, i, v, k: nm.bincount(i, length=4),
    "isin": lambda x, i, v, k: nm.isin(k, i),
    "pad": lambda x, i, v, k: nm.pad(x, 2, "reflect"),
    "roll": lambda x, i, v, k: nm.roll(x, (1, 2), axis=(0, 1)),
    "unfold": lambda x, i, v, k: x.unfold(0, 3, 1),
    "diagonal": lambda x, i, v, k: nm.diagonal(x),
}


@pytest.mark.parametrize("name", CASES)
def test_vmap(name):
    function = CASES[name]
    arguments = [nm.asarray(a) for a in (X, N, V, L)]
    loop = [function(*(a[b] for a in arguments)).numpy() for b in range(3)]
    np.testing.assert_array_equal(nm.vmap(function)(*arguments).numpy(), np.stack(loop))
    # not everything batched: the array alone, the indices alone
    first = [a[0] for a in arguments]
    mapped = nm.vmap(function, in_axes=(0, None, None, None))(arguments[0], *first[1:])
    loop = [function(arguments[0][b], *first[1:]).numpy() for b in range(3)]
    np.testing.assert_array_equal(mapped.numpy(), np.stack(loop))
    mapped = nm.vmap(function, in_axes=(None, 0, None, 0))(
        *first[:1], arguments[1], first[2], arguments[3]
    )
    loop = [
        function(first[0], arguments[1][b], first[2], arguments[3][b]).numpy() for b in range(3)
    ]
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
