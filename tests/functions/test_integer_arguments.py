"""Integer arguments: NumPy integers and 0-d integer tensors are converted at the call.

Nothing but Python integers gets into a shape or the parameters of a node, where comparisons would
be tensors and the allocator would meet sizes that have to be evaluated.
"""

import numpy as np
import pytest
from ops import ROWS

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError


def integer_leaves(case):
    return [i for i, leaf in enumerate(case.leaves()) if type(leaf) is int]


def replaced(case, place, convert):
    """The case with its leaf number `place` converted."""
    numbers = iter(range(1 << 30))
    return case.map(lambda leaf: convert(leaf) if next(numbers) == place else leaf)


def holds_arrays(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return any(map(holds_arrays, value))
    return isinstance(value, (nm.Tensor, np.generic))


def assert_python_integers(out):
    """Shapes and parameters of the pending graph hold neither tensors nor NumPy's numbers."""
    seen, pending = set(), [t._node for t in nm.tree.leaves(out) if isinstance(t, nm.Tensor)]
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(node.inputs)
            assert all(type(n) is int for n in node.shape), node
            assert not holds_arrays(node.params), node


CASES = [
    pytest.param(row, i, place, id=f"{row.name}-{i}-{place}")
    for row in ROWS
    for i, case in enumerate(row.cases)
    for place in integer_leaves(case)
]


@pytest.mark.parametrize(
    "convert",
    [nm.asarray, pytest.param(np.int64, marks=pytest.mark.slow)],
    ids=["tensor", "numpy"],
)
@pytest.mark.parametrize(("row", "index", "place"), CASES)
def test_every_integer_of_the_op_table(row, index, place, convert):
    drawn = row.cases[index].drawn(dt.as_dtype(row.dtypes[0]), row.seed(index))
    given = drawn.map(lambda a: nm.asarray(a) if isinstance(a, np.ndarray) else a)
    results = []
    for case in (given, replaced(given, place, convert)):
        nm.random.seed(1)
        results.append(row(*case.args, **case.kwargs))
    assert_python_integers(results[1])
    want, got = map(nm.tree.leaves, results)
    for a, b in zip(got, want, strict=True):
        if isinstance(a, nm.Tensor):
            assert a.shape == b.shape
            np.testing.assert_allclose(
                *(t.numpy().astype(complex) for t in (a, b)), rtol=1e-5, atol=1e-5
            )
        else:
            assert a == b


X = nm.arange(24.0).reshape(2, 3, 4)
two = nm.asarray(2)

OTHERS = {
    "narrow": lambda n: nm.narrow(X, 2, n, 1),
    "topk": lambda n: nm.topk(X, n),
    "unfold": lambda n: X.unfold(n, n, n),
    "slice_assign": lambda n: nm.slice_assign(X, nm.zeros((2, 3, 2)), n, n),
    "bincount minlength": lambda n: nm.bincount(nm.asarray([0, 1]), minlength=n),
    "bincount length": lambda n: nm.bincount(nm.asarray([0, 1]), length=n),
    "scan": lambda n: nm.scan(lambda c, _: (c + 1, c), nm.asarray(0), length=n),
    "fori_loop": lambda n: nm.fori_loop(0, n, lambda i, c: c + i, nm.asarray(0)),
    "split": lambda n: nm.split(X, n, axis=n),
    "chunk": lambda n: nm.chunk(X, n, n),
    "diagonal": lambda n: nm.diagonal(X, n, 1, n),
    "diag": lambda n: nm.diag(nm.ones(3), n),
    "tril": lambda n: nm.tril(X, n),
    "eye": lambda n: nm.eye(n, n, k=n - 1),
    "zeros": lambda n: nm.zeros(n),
    "reshape": lambda n: X.reshape(n, -1),
    "reshape to one axis": lambda n: nm.ones(2).reshape(n),
    "expand": lambda n: nm.ones((1, 3)).expand(n, -1),
    "round": lambda n: nm.round(X, n),
    "diff": lambda n: nm.diff(X, n=n),
    "one_hot": lambda n: nm.one_hot(nm.asarray([0, 1]), n),
    "histogram": lambda n: nm.histogram(X, n),
    "linspace": lambda n: nm.linspace(0, 1, n),
    "group_norm": lambda n: nm.group_norm(nm.ones((2, 4)), n),
    "segment_sum": lambda n: nm.segment_sum(nm.ones(2), nm.asarray([0, 1]), n),
    "norm": lambda n: nm.norm(X, n),
    "permutation": lambda n: nm.random.permutation(n, key=nm.random.key(0)),
    "integers": lambda n: nm.random.integers(n, n + 1, n),
    "split keys": lambda n: nm.random.split(nm.random.key(n), n),
    "tensordot": lambda n: nm.tensordot(nm.ones((2, 3)), nm.ones((2, 3)), axes=n),
    "repeat": lambda n: nm.repeat(X, n, axis=n),
    "tile": lambda n: nm.tile(X, (n, 1)),
    "roll": lambda n: nm.roll(X, n, n),
    "slice": lambda n: X[:n, n - 1 :: n],
    "frombuffer": lambda n: nm.frombuffer(bytes(16), count=n),
    "Linear": lambda n: nm.nn.Linear(n, n)(nm.ones((1, 2))).shape,
    "Conv2d": lambda n: nm.nn.Conv2d(n, n, n, n, n, n, n)(nm.ones((1, 2, 5, 5))).shape,
    "Embedding": lambda n: nm.nn.Embedding(n, n)(nm.asarray([0])).shape,
    "LSTM": lambda n: nm.nn.LSTM(n, n, n)(nm.ones((1, 2, 2)))[0].shape,
    "MultiheadAttention": lambda n: (
        nm.nn.MultiheadAttention(n, n)(*[nm.ones((1, 2, 2))] * 3)[0].shape
    ),
    "PixelShuffle": lambda n: nm.nn.PixelShuffle(n)(nm.ones((1, 4, 2, 2))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_tensors_as_integers(name):
    want, got = OTHERS[name](2), OTHERS[name](two)
    assert_python_integers(got)
    for a, b in zip(*(nm.tree.leaves(r) for r in (got, want)), strict=True):
        if isinstance(a, nm.Tensor):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        else:
            assert type(a) is int
            assert a == b


@pytest.mark.parametrize("given", [2.0, nm.asarray(2.0), nm.asarray([2]), "2"], ids=str)
@pytest.mark.parametrize("name", ["narrow", "topk", "unfold", "diag", "bincount length", "scan"])
def test_other_numbers_are_refused(name, given):
    with pytest.raises((DTypeError, ShapeError), match="must be an integer"):
        OTHERS[name](given)


def test_the_pool_takes_no_lock_while_a_size_is_evaluated():
    """A size that is a tensor allocates memory itself when it is compared."""
    from numus.runtime import get

    pool = get("cpu").memory
    for n in range(20):  # among known sizes, so that hashes and comparisons meet
        assert pool.allocate(nm.asarray(4096 + 64 * n) + 0).nbytes == 4096 + 64 * n
