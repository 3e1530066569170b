"""Sparse tensors against dense ones: formats, arithmetic, products, indexing, reductions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_matrices import ANY, random

import numus as nm
from numus import sparse
from numus.errors import ShapeError

QUICK = ("random", "no rows")
FORMATS = ("coo", "csr", "csc", "dia", "bsr")


def made(dense, format="csr"):
    a = sparse.from_dense(nm.asarray(dense), "csr")
    if format != "bsr":
        return a.asformat(format)
    m, n = dense.shape
    return a.to_bsr((2 if m % 2 == 0 and m else 1, 2 if n % 2 == 0 and n else 1))


def same(found, wanted, tolerance=1e-12):
    dense = found.to_dense() if isinstance(found, sparse.SparseTensor) else found
    np.testing.assert_allclose(dense.numpy(), wanted, rtol=tolerance, atol=tolerance)


CASES = [
    pytest.param(n, f, marks=[] if f == "csr" or n in QUICK else [pytest.mark.slow])
    for n in ANY
    for f in FORMATS
]


@pytest.mark.parametrize(("name", "format"), CASES)
def test_operations(name, format):
    dense = ANY[name]
    m, n = dense.shape
    a = made(dense, format)
    rng = np.random.default_rng(7)
    x, y, z = rng.standard_normal((n, 3)), rng.standard_normal((3, m)), random(m, n, 0.3, 9)
    other = random(n, 6, 0.4, 8)
    same(a, dense)
    same(a.T, dense.T)
    same(a @ x, dense @ x)
    same(a @ nm.asarray(x[:, 0]), dense @ x[:, 0])
    same(y @ a, y @ dense)
    same(nm.asarray(y[0]) @ a, y[0] @ dense)
    same(a @ made(other), dense @ other)
    same(a + made(z, "csc"), dense + z)
    same(a - made(z), dense - z)
    same(a * made(z, "coo"), dense * z)
    same(a * z, dense * z)
    same(z[:, :1] * a / 3, dense * z[:, :1] / 3)
    same(a * z[:1], dense * z[:1])
    same(2 * a + z, 2 * dense + z)
    same(a.sum(0), dense.sum(0))
    same(a.sum(1), dense.sum(1))
    same(a.sum(), dense.sum())
    same(abs(a) ** 2, dense**2)
    same(a.diagonal(1), dense.diagonal(1))
    if dense.size:
        same(a.max(0), dense.max(0))
        same(a.min(), dense.min())
        same(a.mean(1), dense.mean(1))
        same(a[m - 1], dense[m - 1])
        same(a[:, 0], dense[:, 0])
        same(a[::-2, n // 2 :], dense[::-2, n // 2 :])
        same(a[[m - 1, 0, m - 1]], dense[[m - 1, 0, m - 1]])
        same(a[0, -1], dense[0, -1])
        rows = rng.integers(-m, m, 5)
        same(a[rows, [0] * 5], dense[rows, [0] * 5])
        same(a[:, np.arange(n) % 2 == 0], dense[:, ::2])
    same(a.reshape(n, m), dense.reshape(n, m))
    same(a.eliminate_zeros(), dense)
    assert a.eliminate_zeros().nnz == np.count_nonzero(dense)
    for other_format in ("coo", "csr", "csc", "dia"):
        same(a.asformat(other_format), dense)


def test_structures_are_exact_and_shared():
    a, b = made(ANY["random"]), made(ANY["convection"])
    assert (2 * a).structure is a.structure
    assert (a + a).structure is a.structure
    assert a.T.T.structure.pattern is a.structure.pattern
    assert (b @ b).structure is (b @ (3 * b)).structure
    wanted = np.abs(ANY["convection"]) @ np.abs(ANY["convection"])
    product = b @ b
    assert product.nnz == np.count_nonzero(wanted)
    rows, columns = product.structure.coordinates
    assert np.array_equal(np.stack([rows, columns]), np.stack(np.nonzero(wanted)))
    assert a.structure == made(ANY["random"]).structure != b.structure


def test_axes_of_coordinates():
    rng = np.random.default_rng(3)
    where = np.stack([rng.integers(0, n, 40) for n in (3, 4, 5)])
    a = sparse.coo_tensor(where, rng.standard_normal(40), (3, 4, 5))
    dense = np.zeros((3, 4, 5))
    np.add.at(dense, tuple(where), a.values.numpy())
    same(a, dense)
    same(a.sum_duplicates(), dense)
    assert a.coalesce().nnz == np.count_nonzero(dense)
    same(a.transpose((2, 0, 1)), dense.transpose(2, 0, 1))
    same(a.sum((0, 2)), dense.sum((0, 2)))
    same(a.max(1), dense.max(1))
    same(a[1], dense[1])
    same(a[:, 2, 1:], dense[:, 2, 1:])
    same(a[..., [0, 0, 4]], dense[..., [0, 0, 4]])
    same(a + a[::-1], dense + dense[::-1])
    same(a * a, dense * dense)
    same(a.reshape(12, 5) @ np.ones(5), dense.reshape(12, 5).sum(1))


def test_duplicates_and_unsorted_columns_add_up():
    a = sparse.csr_tensor([0, 3, 4], [2, 0, 2, 1], [1.0, 2.0, 3.0, 4.0], (2, 3))
    dense = np.array([[2.0, 0.0, 4.0], [0.0, 4.0, 0.0]])
    same(a, dense)
    same(a.sum_duplicates(), dense)
    assert a.sum_duplicates().nnz == 3
    same(a @ a.T, dense @ dense.T)
    same(a * a, dense**2)
    same(a**2, dense**2)
    same(a.max(), 4.0)
    same(a.to_csc().sum_duplicates(), dense)


@st.composite
def structures(draw):
    m, n = draw(st.integers(0, 7)), draw(st.integers(0, 7))
    count = draw(st.integers(0, 20)) if m and n else 0
    rows = draw(st.lists(st.integers(0, max(m - 1, 0)), min_size=count, max_size=count))
    columns = draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=count, max_size=count))
    values = draw(st.lists(st.integers(-4, 4), min_size=count, max_size=count))
    place = np.array([rows, columns], np.int64).reshape(2, count)
    dense = np.zeros((m, n))
    np.add.at(dense, tuple(place), np.array(values, float))
    return sparse.coo_tensor(place, np.array(values, float), (m, n)), dense


@settings(max_examples=12)
@given(structures(), structures(), st.sampled_from(("coo", "csr", "csc")))
def test_random_structures(first, second, format):
    (a, da), (b, db) = first, second
    a = a.asformat(format)
    same(a, da)
    same(a.sum_duplicates(), da)
    same(a.T @ np.ones(a.shape[0]), da.T @ np.ones(a.shape[0]))
    same(sparse.kron(a, b), np.kron(da, db))
    same(a.T @ a, da.T @ da)
    if a.shape == b.shape:
        same(a + b, da + db)
        same(a * b, da * db)
    same(sparse.tril(a), np.tril(da))


def test_construction():
    a, b = ANY["random"], random(4, 3, 0.5, 6)
    x, y = made(a), made(b)
    same(sparse.eye(3, 4, -1), np.eye(3, 4, -1))
    wanted = np.diag([1.0, 2.0, 3.0]) + 4 * np.eye(3, k=-1)
    same(sparse.diags([[1.0, 2.0, 3.0], 4.0], [0, -1], (3, 3)), wanted)
    zero = np.zeros((17, 3))
    same(sparse.block([[x, None], [None, y]]), np.block([[a, zero], [np.zeros((4, 23)), b]]))
    same(sparse.block_diag([x, y]), np.block([[a, zero], [np.zeros((4, 23)), b]]))
    same(sparse.hstack([x, x]), np.hstack([a, a]))
    same(sparse.vstack([x, x]), np.vstack([a, a]))
    same(sparse.triu(x, 2), np.triu(a, 2))
    order = np.random.default_rng(1).permutation(17)
    same(sparse.permute(x, rows=order), a[order])
    u, v = np.ones((17, 2)), random(2, 23, 1.0)
    same(sparse.sddmm(x, u, v), (u @ v) * (a != 0))
    same(sparse.masked_matmul(x, x.T, sparse.eye(17)), np.diag(np.diag(a @ a.T)))
    assert sparse.random(40, 30, 0.75).nnz == 900
    mask = made(b)
    same(sparse.from_dense(np.ones((4, 3)), structure=mask.T.T.structure), (b != 0) * 1.0)


BAD = {
    "index out of range": lambda: sparse.coo_tensor([[0], [3]], [1.0], (2, 3)),
    "negative index": lambda: sparse.csr_tensor([0, 1], [-1], [1.0], (1, 3)),
    "pointers descend": lambda: sparse.csr_tensor([0, 2, 1], [0], [1.0], (2, 3)),
    "pointers too long": lambda: sparse.csr_tensor([0, 5], [0], [1.0], (1, 3)),
    "wrong number of pointers": lambda: sparse.csc_tensor([0, 1], [0], [1.0], (1, 3)),
    "wrong number of values": lambda: sparse.csr_tensor([0, 1], [0], [1.0, 2.0], (1, 3)),
    "float indices": lambda: sparse.coo_tensor([[0.5], [1.0]], [1.0], (2, 3)),
    "a diagonal twice": lambda: sparse.dia_tensor([1, 1], np.ones((2, 3)), (3, 3)),
    "blocks that do not tile": lambda: sparse.bsr_tensor([0, 1], [0], np.ones((1, 2, 2)), (3, 2)),
    "too many elements": lambda: sparse.coo_tensor(
        [[0], [0]], [1.0], (2**40, 2**40)
    ).sum_duplicates(),
    "shapes of a product": lambda: sparse.eye(3) @ np.ones(4),
    "shapes of a sum": lambda: sparse.eye(3) + sparse.eye(4),
    "index": lambda: sparse.eye(3)[5],
    "broadcast": lambda: sparse.eye(3) * np.ones((3, 2)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what):
    with pytest.raises((ValueError, TypeError, IndexError), match=r"\w+: "):
        BAD[what]()


def test_reductions_keep_axes_and_do_not_overflow():
    dense = random(6, 5, 0.5, 3)
    for format in ("csr", "coo"):
        a = made(dense, format)
        for axis in (None, 0, -1, (0, 1)):
            same(a.sum(axis, keepdims=True), dense.sum(axis, keepdims=True))
            same(a.max(axis, keepdims=True), dense.max(axis, keepdims=True))
        same(a.mean(0, keepdims=True), dense.mean(0, keepdims=True))
    small = nm.sparse.csr_tensor([0, 2], [0, 1], np.array([100, 100], np.int8), (1, 2))
    assert small.sum(1).dtype is nm.int64
    assert small.sum(1).tolist() == [200]
    assert small.astype(nm.bool_).max(0).tolist() == [True, True]
    assert small.astype(nm.bool_).min().item() is True


def test_crossed_indices_and_masks():
    dense = random(6, 5, 0.5, 3)
    a = made(dense)
    at = np.ix_([4, 0, 4], [1, 3])
    same(a[at], dense[at])
    assert isinstance(a[at], sparse.SparseTensor)
    same(a[dense > 0], dense[dense > 0])
    same(a[nm.asarray(dense > 0)], dense[dense > 0])
    with pytest.raises(ShapeError, match="no mask"):
        a[dense[:, :2] > 0]
    cube = np.stack([dense, 2 * dense])
    same(sparse.from_dense(nm.asarray(cube), "coo")[cube > 1], cube[cube > 1])


def test_axes_that_no_int64_can_number():
    a = sparse.coo_tensor([[1], [0]], [1.0], (2**33, 1))
    with pytest.raises(ShapeError, match="kron: an axis"):
        sparse.kron(a, a, format="coo")
    b = sparse.coo_tensor([[1], [0]], [1.0], (2**62, 1))
    with pytest.raises(ShapeError, match="block: an axis"):
        sparse.vstack([b, b], format="coo")


@pytest.mark.parametrize("format", FORMATS)
def test_sums_of_bools_are_true_where_any_is(format):
    rng = np.random.default_rng(4)
    first, second = (rng.random((6, 8)) < 0.5 for _ in range(2))
    a, b = made(first, format), made(second, format)
    both = a + b
    assert both.dtype is nm.bool_
    np.testing.assert_array_equal(both.numpy(), first | second)
    np.testing.assert_array_equal((a @ b.T).numpy(), first @ second.T)
    np.testing.assert_array_equal(
        sparse.sddmm(sparse.eye(6), nm.asarray(first), nm.asarray(second.T)).numpy() != 0,
        np.eye(6, dtype=bool) & (first @ second.T),
    )
    rows, columns = rng.integers(0, 6, 60), rng.integers(0, 8, 60)
    values = rng.random(60) < 0.5
    many = sparse.coo_tensor(np.stack([rows, columns]), values, (6, 8))
    wanted = np.zeros((6, 8), bool)
    np.logical_or.at(wanted, (rows, columns), values)
    for found in (
        many,
        many.coalesce(),
        many.to_csr(),
        many.to_csr().sum_duplicates(),
        many.to_dia(),
    ):
        np.testing.assert_array_equal(found.numpy(), wanted)
