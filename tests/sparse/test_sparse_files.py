"""Files and other libraries' sparse matrices, good and damaged."""

import contextlib

import numpy as np
import pytest
from sparse_matrices import ANY

import numus as nm
from numus import sparse

scipy = pytest.importorskip("scipy.sparse")
io = pytest.importorskip("scipy.io")


def same(found, wanted):
    np.testing.assert_allclose(found.to_dense().numpy(), wanted.toarray(), rtol=1e-15)


@pytest.mark.parametrize("format", ["coo", "csr", "csc", "bsr", "dia"])
def test_scipy_and_npz(tmp_path, format):
    matrix = scipy.csr_array(ANY["convection"]).asformat(format)
    a = sparse.from_scipy(matrix)
    assert a.format == format
    same(a, matrix)
    back = sparse.to_scipy(a)
    assert back.format == format
    np.testing.assert_array_equal(back.toarray(), matrix.toarray())
    scipy.save_npz(tmp_path / "theirs.npz", matrix)
    same(sparse.load_npz(tmp_path / "theirs.npz"), matrix)
    sparse.save_npz(tmp_path / "ours.npz", a)
    np.testing.assert_array_equal(scipy.load_npz(tmp_path / "ours.npz").toarray(), matrix.toarray())


def test_no_copy_on_the_cpu():
    matrix = scipy.csr_array(ANY["random"])
    a = sparse.from_scipy(matrix, device="cpu")
    assert np.shares_memory(a.structure.arrays()[1], matrix.indices)
    matrix.data[0] = 7.0
    assert a.values[0].item() == 7.0


@pytest.mark.parametrize("kind", ["general", "symmetric", "complex", "integer", "array", "pattern"])
def test_matrix_market(tmp_path, kind):
    whole = ANY["poisson2"]
    if kind == "complex":
        whole = whole + 1j * np.triu(whole, 1) - 1j * np.tril(whole, -1)
    matrix = scipy.coo_array(whole.astype(np.int64) if kind == "integer" else whole)
    path = tmp_path / "a.mtx"
    if kind == "pattern":
        matrix.data[:] = 1.0
        io.mmwrite(path, matrix, field="pattern")
    else:
        io.mmwrite(path, matrix.toarray() if kind == "array" else matrix)
    same(sparse.mmread(path), matrix)
    sparse.mmwrite(path, sparse.from_scipy(matrix), comment="twice\nas good")
    np.testing.assert_allclose(io.mmread(path, spmatrix=False).toarray(), matrix.toarray())


HEAD = b"%%MatrixMarket matrix coordinate real general\n"
DAMAGED = [
    b"", b"hello\n", HEAD, HEAD + b"2 2\n", HEAD + b"2 2 1\n", HEAD + b"2 2 1\n3 1 1.0\n",
    HEAD + b"2 2 1\n0 1 1.0\n", HEAD + b"2 2 1\n1 1 x\n", HEAD + b"2 2 1\n1.5 1 1\n",
    HEAD + b"2 2 99999999999\n1 1 1\n", HEAD + b"-1 2 1\n1 1 1\n", HEAD + b"2 2 1\n1 1 1 1\n",
    b"%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n1 1 1\n",
    b"%%MatrixMarket matrix array pattern general\n1 1\n1\n",
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_matrix_market(tmp_path, content):
    (tmp_path / "a.mtx").write_bytes(content)
    with pytest.raises(sparse.FormatError, match="mmread"):
        sparse.mmread(tmp_path / "a.mtx")


def fuzz(tmp_path, count):
    """Every damaged file is an error of its own kind, or a matrix all the same."""
    rng = np.random.default_rng(0)
    a = sparse.from_dense(nm.asarray(ANY["convection"]))
    sparse.save_npz(tmp_path / "a.npz", a, compressed=False)
    sparse.mmwrite(tmp_path / "a.mtx", a)
    for path, read in ((tmp_path / "a.npz", sparse.load_npz), (tmp_path / "a.mtx", sparse.mmread)):
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(count):
            bad = whole.copy()
            if rng.random() < 0.3:
                bad = bad[: rng.integers(bad.size)]
            at = rng.integers(0, max(1, bad.size), rng.integers(1, 9))
            if bad.size:
                bad[at] = rng.integers(0, 256, at.size)
            path.write_bytes(bad.tobytes())
            with contextlib.suppress(sparse.FormatError):
                read(path).to_dense().numpy()


def test_fuzzed_files(tmp_path):
    fuzz(tmp_path, 60)


@pytest.mark.slow
def test_many_fuzzed_files(tmp_path):
    fuzz(tmp_path, 1000)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch():
    torch = pytest.importorskip("torch")
    whole = ANY["random"]
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        a = sparse.from_torch(torch.tensor(whole).to_sparse(layout=layout))
        np.testing.assert_array_equal(a.numpy(), whole)
        np.testing.assert_array_equal(sparse.to_torch(a).to_dense().numpy(), whole)


def test_integers_of_matrix_market_are_exact(tmp_path):
    numbers = np.array([2**60 + 1, -(2**62) - 3])
    a = sparse.csr_tensor([0, 2], [0, 1], numbers, (1, 2))
    sparse.mmwrite(tmp_path / "a.mtx", a)
    assert sparse.mmread(tmp_path / "a.mtx").values.tolist() == numbers.tolist()
    text = "%%MatrixMarket matrix array unsigned-integer general\n1 1\n18446744073709551615\n"
    (tmp_path / "b.mtx").write_text(text)
    assert sparse.mmread(tmp_path / "b.mtx").values.tolist() == [2**64 - 1]
    (tmp_path / "c.mtx").write_text(text.replace("unsigned-", ""))
    with pytest.raises(sparse.FormatError, match="something else"):
        sparse.mmread(tmp_path / "c.mtx")


@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_bfloat16():
    torch = pytest.importorskip("torch")
    whole = torch.tensor([[0.0, 1.5, 0.0], [-2.0, 0.0, 3.0]]).bfloat16()
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        a = sparse.from_torch(whole.to_sparse(layout=layout))
        assert a.dtype is nm.bfloat16
        back = sparse.to_torch(a)
        assert back.layout is layout
        assert torch.equal(back.to_dense(), whole)
