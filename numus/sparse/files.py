"""Sparse matrices in files: SciPy's `.npz` layout and Matrix Market (NIST's exchange format)."""

from __future__ import annotations

import os
import zipfile
from typing import Any, BinaryIO

import numpy as np

import numus as nm
from numus import files
from numus.sparse.creation import bsr_tensor, coo_tensor, csc_tensor, csr_tensor, dia_tensor
from numus.sparse.pattern import Array
from numus.sparse.structure import COO, DIA
from numus.sparse.tensor import SparseTensor

Path = str | os.PathLike[str]

_MAX_ARRAYS = 16
_MAX_HEADER_LINE = 1 << 16


class FormatError(ValueError):
    """A file that is not what it says it is."""


# -- npz ------------------------------------------------------------------------------------------


def save_npz(path: Path, a: SparseTensor, compressed: bool = True) -> None:
    """Write a sparse matrix in the layout of `scipy.sparse.save_npz`.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npz")
    >>> nm.sparse.save_npz(path, nm.sparse.eye(3))
    >>> nm.sparse.load_npz(path)
    SparseTensor(csr, shape=(3, 3), nnz=3, dtype=float32)
    """
    s = a.structure
    content: dict[str, Any] = {
        "format": np.array(s.format.encode()),
        "shape": np.array(s.shape, np.int64),
        "data": a.values.numpy(),
    }
    if isinstance(s, COO):
        if s.ndim == 2:
            content.update(row=s.indices[0], col=s.indices[1])
        else:
            content.update(coords=s.indices)
    elif isinstance(s, DIA):
        content["offsets"] = s.offsets
    else:
        content["indptr"], content["indices"] = s.arrays()
    write = np.savez_compressed if compressed else np.savez
    path = os.fspath(path)
    path = path if path.endswith(".npz") else f"{path}.npz"
    files.atomically(path, lambda out: write(out, **content))


def load_npz(path: Path, *, device: Any = None) -> SparseTensor:
    """Read a sparse matrix as `scipy.sparse.save_npz` writes it.

    Args:
        path: of the file.
        device: of the values.
    """
    op = f"load_npz: {os.fspath(path)!r}"
    try:
        with files.open_regular(path) as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile) or len(archive.files) > _MAX_ARRAYS:
                raise FormatError(f"{op} is no archive of a sparse matrix")
            with archive:
                content = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, SyntaxError, ValueError) as bad:
        if isinstance(bad, (FileNotFoundError, PermissionError, IsADirectoryError, FormatError)):
            raise
        raise FormatError(f"{op} cannot be read: {bad}") from bad
    except MemoryError as bad:
        raise FormatError(f"{op} claims more memory than there is") from bad
    except Exception as bad:  # zlib.error and what decoders of a damaged archive raise
        raise FormatError(f"{op} is damaged: {bad}") from bad

    def array(name: str) -> Array:
        if name not in content:
            raise FormatError(f"{op} has no array {name!r}")
        return content[name]

    kind = array("format")
    text = kind.item() if kind.shape == () else None
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    shape, data = array("shape"), array("data")
    if shape.ndim != 1 or shape.dtype.kind not in "iu" or data.dtype.kind not in "biufc":
        raise FormatError(f"{op} has a shape or values of another kind than numbers")
    extents = tuple(int(n) for n in shape)
    try:
        if text == "coo":
            axes = (
                content["coords"] if "coords" in content else np.stack([array("row"), array("col")])
            )
            return coo_tensor(axes, data, extents, device=device)
        if text == "dia":
            return dia_tensor(array("offsets"), data, extents, device=device)
        makers = {"csr": csr_tensor, "csc": csc_tensor, "bsr": bsr_tensor}
        if text in makers:
            return makers[text](array("indptr"), array("indices"), data, extents, device=device)
    except FormatError:
        raise
    except (ValueError, TypeError, IndexError) as bad:
        raise FormatError(f"{op} is inconsistent: {bad}") from bad
    raise FormatError(f"{op} has the unknown format {text!r}")


# -- Matrix Market --------------------------------------------------------------------------------

_FIELDS = {
    "real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "complex": 2, "pattern": 0,
}  # fmt: skip
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


def mmwrite(path: Path, a: SparseTensor, comment: str = "") -> None:
    """Write a matrix as Matrix Market coordinates, with all digits.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.mtx")
    >>> nm.sparse.mmwrite(path, nm.sparse.eye(2))
    >>> nm.sparse.mmread(path).diagonal().tolist()
    [1.0, 1.0]
    """
    coo = a.to_coo().sum_duplicates()
    m, n = coo.shape
    row, column = coo.structure.coordinates
    values = coo.values.numpy()
    is_integer = values.dtype.kind in "biu"
    field = "complex" if values.dtype.kind == "c" else "integer" if is_integer else "real"
    lines = [f"%%MatrixMarket matrix coordinate {field} general"]
    lines += [f"%{line}" for line in comment.splitlines()]
    lines.append(f"{m} {n} {values.size}")
    for i, j, v in zip(row.tolist(), column.tolist(), values.tolist(), strict=True):
        number = (
            f"{v.real!r} {v.imag!r}" if field == "complex" else f"{int(v) if is_integer else v!r}"
        )
        lines.append(f"{i + 1} {j + 1} {number}")
    text = "\n".join(lines) + "\n"
    files.atomically(path, lambda out: out.write(text.encode()))


def mmread(
    path: Path, *, dtype: Any = None, device: Any = None, format: str = "csr"
) -> SparseTensor:
    """Read a Matrix Market file, of coordinates or of all elements (`array`).

    Args:
        path: of the file.
        dtype: of the values; float64, complex128 or int64 as the file says, where it is None.
        device: of the values.
        format: of the result.
    """
    op = f"mmread: {os.fspath(path)!r}"
    with files.open_regular(path) as file:
        kind, field, symmetry, sizes = _header(file, op)
        columns = _FIELDS[field] + (2 if kind == "coordinate" else 0)
        m, n = sizes[:2]
        count = sizes[2] if kind == "coordinate" else _dense_count(m, n, symmetry)
        left = os.fstat(file.fileno()).st_size - file.tell()
        if count * max(1, columns) > left + 1:  # a number takes a character and a blank at least
            raise FormatError(f"{op} is cut off: {count} entries do not fit {left} bytes")
        words = _words(file.read(), count, columns, op)
    lead = columns - _FIELDS[field]
    if kind == "array":
        row, column = _dense_places(m, n, symmetry)
    else:
        places = (_numbers(w, np.float64, op) for w in words[:lead])
        row, column = (_indices(x, n, op) for x, n in zip(places, (m, n), strict=True))
    values = _field_values(words[lead:], field, count, op)
    if symmetry != "general":
        row, column, values = _mirrored(row, column, values, symmetry)
    place = np.stack([row, column])
    found = coo_tensor(place, nm.asarray(values, dtype=dtype, device=device), (m, n))
    return found.asformat(format)


def _header(file: BinaryIO, op: str) -> tuple[str, str, str, list[int]]:
    def line() -> str:
        return file.readline(_MAX_HEADER_LINE).decode("utf-8", "replace")

    words = line().lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise FormatError(f"{op} does not start with '%%MatrixMarket matrix …'")
    kind, field, symmetry = words[2:]
    known = kind in ("coordinate", "array") and field in _FIELDS and symmetry in _SYMMETRIES
    if not known or (kind == "array" and field == "pattern"):
        raise FormatError(f"{op} has the unknown header {' '.join(words)!r}")
    text = line()
    while text and (text.startswith("%") or not text.strip()):
        text = line()
    try:
        sizes = [int(word) for word in text.split()]
    except ValueError:
        sizes = []
    if len(sizes) != (3 if kind == "coordinate" else 2) or min(sizes) < 0 or max(sizes) >= 2**62:
        raise FormatError(f"{op} has no line of sizes but {text[:40]!r}")
    if symmetry != "general" and sizes[0] != sizes[1]:
        raise FormatError(f"{op} is {symmetry}, but not square")
    return kind, field, symmetry, sizes


def _words(text: bytes, count: int, columns: int, op: str) -> list[list[bytes]]:
    """The words of each column."""
    words = text.split()
    if len(words) != count * columns:
        raise FormatError(f"{op} has {len(words)} numbers where {count} × {columns} are announced")
    return [words[k::columns] for k in range(columns)]


def _numbers(words: list[bytes], dtype: Any, op: str) -> Array:
    try:
        return np.array(words, dtype)
    except (ValueError, OverflowError) as bad:
        raise FormatError(f"{op} has something else than a number: {bad}") from bad


def _indices(numbers: Array, extent: int, op: str) -> Array:
    ok = (numbers >= 1) & (numbers <= extent) & (numbers == np.floor(numbers))
    if not ok.all():
        raise FormatError(f"{op} has the index {numbers[~ok][0]:g} along an axis of {extent}")
    return numbers.astype(np.int64) - 1


def _field_values(words: list[list[bytes]], field: str, count: int, op: str) -> Array:
    if field == "pattern":
        return np.ones(count)
    if field in ("integer", "unsigned-integer"):
        return _numbers(words[0], np.int64 if field == "integer" else np.uint64, op)
    numbers = [_numbers(w, np.float64, op) for w in words]
    return numbers[0] if len(numbers) == 1 else np.stack(numbers, 1).view(np.complex128)[:, 0]


def _dense_count(m: int, n: int, symmetry: str) -> int:
    if symmetry == "general":
        return m * n
    return n * (n - 1) // 2 if symmetry == "skew-symmetric" else n * (n + 1) // 2


def _dense_places(m: int, n: int, symmetry: str) -> tuple[Array, Array]:
    """Column by column, as the format has them."""
    if symmetry == "general":
        column, row = np.divmod(np.arange(m * n), max(1, m))
        return row, column
    column, row = np.triu_indices(n, 1 if symmetry == "skew-symmetric" else 0)
    return row, column


def _mirrored(
    row: Array, column: Array, values: Array, symmetry: str
) -> tuple[Array, Array, Array]:
    off = row != column
    other = values[off]
    if symmetry == "skew-symmetric":
        other = -other
    elif symmetry == "hermitian":
        other = np.conj(other)
    return (
        np.concatenate([row, column[off]]),
        np.concatenate([column, row[off]]),
        np.concatenate([values, other]),
    )
