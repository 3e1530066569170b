"""Sparse times dense on GPUs, interpreted: lanes that share rows, and threads with vectors of
columns, of every alignment."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import sparse
from numus.compiler.lower.sparse import gpu_product
from numus.compiler.plan import clear_plans

simt_machine.install()
DEVICE = "simt_sm90"
RNG = np.random.default_rng(5)


def entries(rows, columns, counts):
    """A dense matrix with a number of entries in each row, of small integers."""
    out = np.zeros((rows, columns))
    for row, count in enumerate(counts):
        at = RNG.choice(columns, count, replace=False)
        out[row, at] = RNG.integers(1, 4, count) * RNG.choice([-1, 1], count)
    return out


# rows of no entries, one, a few, and many more than others
WHOLE = entries(37, 41, [0, 1, 2, 3, 4, 5, 6, 7, 41, 40, 0, 13] + [9] * 24 + [0])


def product(x, whole=WHOLE):
    a = sparse.from_dense(nm.asarray(whole.astype(x.dtype.np))).to(DEVICE)
    return (a @ x).numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("columns", [1, 6, 16])
def test_dtypes(dtype, columns):
    x = RNG.integers(-3, 4, (41, columns)).astype(dtype)
    wanted = (WHOLE @ x).astype(dtype)
    on_device = nm.asarray(x, device=DEVICE)
    np.testing.assert_array_equal(product(on_device), wanted)
    if columns == 1:
        np.testing.assert_array_equal(product(on_device[:, 0]), wanted[:, 0])


def test_layouts_of_the_operand():
    wide = nm.asarray(RNG.integers(-3, 4, (42, 20)).astype(np.float32), device=DEVICE)
    for x in (
        wide[1:, 4:12],  # rows apart
        wide[1:, 3:11],  # no vector is aligned
        nm.asarray(wide.numpy()[:20, :].T[:, :8], device=DEVICE)[:0],  # no rows
        wide.T[:8, 1:].T,  # by columns, again by rows
        wide[:8, :].T,  # by columns
        2 * wide[1:, :8] - 1,  # computed as it is read
        wide[1:, :0],  # no columns
    ):
        whole = WHOLE[:, : x.shape[0]]
        np.testing.assert_array_equal(product(x, whole), whole @ x.numpy())


def test_batches():
    pointers, indices = [0, 2, 2, 5], [0, 3, 1, 2, 3]
    values = RNG.integers(-3, 4, (3, 5)).astype(np.float32)
    a = sparse.batched_csr_tensor(pointers, indices, nm.asarray(values, device=DEVICE), (3, 4))
    x = RNG.integers(-3, 4, (3, 4, 8)).astype(np.float32)
    wanted = a.to_dense().numpy() @ x
    np.testing.assert_array_equal((a @ nm.asarray(x, device=DEVICE)).numpy(), wanted)
    one = nm.asarray(x[0, :, 0], device=DEVICE)
    np.testing.assert_array_equal((a @ one).numpy(), a.to_dense().numpy() @ x[0, :, 0])


@pytest.mark.parametrize("count", [3, 100, 1500])
def test_lanes_of_a_row(count):
    """From one lane to all of a warp, rows past the end of the last block among them."""
    whole = entries(9, 1600, [count] * 8 + [0])
    x = RNG.integers(-3, 4, 1600).astype(np.float32)
    np.testing.assert_array_equal(product(nm.asarray(x, device=DEVICE), whole), whole @ x)


LEFT = entries(19, 23, [0, 23, 1, *[5] * 15, 2])
RIGHT = entries(23, 700, [0, 700, 33, *[40] * 19, 1])


def multiplied(left, right, dtype="float32"):
    a, b = (
        sparse.from_dense(nm.asarray(w)).to(DEVICE).map(lambda v: v.astype(dtype))
        for w in (left, right)
    )
    return a @ b


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16", "int32"])
def test_sparse_times_sparse(dtype):
    """Rows of several parts, and of none."""
    found = multiplied(LEFT, RIGHT, dtype)
    np.testing.assert_array_equal(found.to_dense().numpy(), LEFT @ RIGHT)
    there = found.T.to_csr().to("cpu")  # on the host, what the device found
    np.testing.assert_array_equal(there.to_dense().numpy(), (LEFT @ RIGHT).T)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (entries(3, 4, [4, 0, 1]), entries(4, 20000, [2, 0, 3, 1])),  # windows without columns
        (entries(2, 3, [3, 1]), entries(3, 9000, [900, 2, 70])),  # long rows, of several windows
        (np.zeros((2, 3)), entries(3, 4, [1, 2, 3])),
        (np.zeros((0, 3)), entries(3, 4, [1, 2, 3])),
    ],
)
def test_structures_of_products(left, right):
    runtime = nm.device(DEVICE).runtime
    runtime.launched.clear()
    found = multiplied(left, right)
    names = {program.name for program in runtime.launched}
    assert not len(left) or "csr_product_counts" in names
    pattern = found.structure.pattern
    there = (left != 0).astype(int) @ (right != 0).astype(int) > 0
    np.testing.assert_array_equal(pattern.pointers.array, [0, *np.cumsum(there.sum(1))])
    np.testing.assert_array_equal(pattern.indices.array, np.argwhere(there)[:, 1])
    np.testing.assert_array_equal(found.to_dense().numpy(), left @ right)


def names_of(run):
    """The result of a call, and the notes of the kernels that it launched."""
    runtime = nm.device(DEVICE).runtime
    runtime.launched.clear()
    found = run().numpy()
    return found, [program.kernel.notes for program in runtime.launched]


def on_grid(side, loose=0):
    """A 9-point stencil on a square with random values, some rows replaced by random ones."""
    import scipy.sparse as sp

    line = sp.diags([1.0] * 3, [-1, 0, 1], shape=(side, side))
    a = sp.kron(line, line).tolil()
    for row in RNG.choice(side * side, loose, replace=False):
        a[row] = 0
        a[row, RNG.choice(side * side, 7, replace=False)] = 1
    a = a.tocsr()
    a.data = RNG.integers(1, 4, a.nnz) * RNG.choice([-1.0, 1.0], a.nnz)
    return a


@pytest.mark.parametrize("loose", [0, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_templates_of_rows(loose, dtype):
    """Rows without a template among those that have one; parts of a block's values."""
    a = on_grid(24, loose)
    ours = sparse.from_scipy(a).map(lambda v: v.astype(dtype)).to(DEVICE)
    x = RNG.integers(-3, 4, a.shape[1]).astype(dtype)
    on_device = nm.asarray(x, device=DEVICE)
    found, notes = names_of(lambda: ours @ on_device)
    assert any("templates of rows" in n for n in notes)
    np.testing.assert_array_equal(found, (a @ x).astype(dtype))
    back = names_of(lambda: ours.T @ on_device)[0]
    np.testing.assert_array_equal(back, (a.T @ x).astype(dtype))


@pytest.mark.parametrize("blocks", [1, 3])
def test_blocks_have_tiles_of_rows_with_templates(monkeypatch, blocks):
    """The last ones are no whole tiles; some have rows without a template."""
    threads = 64 * blocks
    tuning = replace(gpu_product.TUNING, template_threads=64, template_core_threads=threads)
    monkeypatch.setattr(gpu_product, "TUNING", tuning)
    clear_plans()
    a = on_grid(25, 9)
    ours = sparse.from_scipy(a).map(lambda v: v.astype("float32")).to(DEVICE)
    x = RNG.integers(-3, 4, a.shape[1]).astype(np.float32)
    found, notes = names_of(lambda: ours @ nm.asarray(x, device=DEVICE))
    assert any("templates of rows" in n for n in notes)
    np.testing.assert_array_equal(found, a @ x)
    clear_plans()


def test_parts_of_long_rows_with_templates():
    """Rows that have more values than are staged at once."""
    n, length = 600, 150
    columns = np.arange(n)[:, None] + np.arange(length)
    values = RNG.integers(-3, 4, n * length).astype(np.float32)
    a = sparse.csr_tensor(
        np.arange(n + 1) * length, columns.ravel(), nm.asarray(values), (n, n + length)
    ).to(DEVICE)
    x = RNG.integers(-3, 4, n + length).astype(np.float32)
    found, notes = names_of(lambda: a @ nm.asarray(x, device=DEVICE))
    assert any("templates of rows" in n for n in notes)
    np.testing.assert_array_equal(found, (values.reshape(n, length) * x[columns]).sum(1))


def test_batches_of_templates():
    """Several vectors at once have no templates; several matrices of one pattern do."""
    a = on_grid(24)
    values = RNG.integers(-3, 4, (3, a.nnz)).astype(np.float32)
    x = RNG.integers(-3, 4, a.shape[1]).astype(np.float32)
    ours = sparse.from_scipy(a).to(DEVICE)
    on_device = nm.asarray(x, device=DEVICE)
    found = nm.vmap(lambda v: ours.map(lambda _: v) @ on_device)(nm.asarray(values, device=DEVICE))
    wanted = []
    for v in values:
        a.data = v
        wanted.append(a @ x)
    np.testing.assert_array_equal(found.numpy(), wanted)
    many = RNG.integers(-3, 4, (3, a.shape[1])).astype(np.float32)
    found = nm.vmap(lambda v: ours @ v)(nm.asarray(many, device=DEVICE))
    values = ours.values.numpy()
    a.data = values
    np.testing.assert_array_equal(found.numpy(), (a @ many.T).T)


def test_even_rows():
    """Rows of about one length, without templates, have a thread each."""
    rows, columns = 700, 900
    whole = entries(rows, columns, RNG.integers(9, 15, rows))
    x = RNG.integers(-3, 4, columns).astype(np.float32)
    a = sparse.from_dense(nm.asarray(whole.astype(np.float32))).to(DEVICE)
    found, notes = names_of(lambda: a @ nm.asarray(x, device=DEVICE))
    assert any("1 columns per thread" in n for n in notes)
    np.testing.assert_array_equal(found, whole @ x)
