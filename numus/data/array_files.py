"""Arrays in files: NumPy's .npy and .npz, text, raw bytes. Nothing in them is ever executed:
objects (pickles) are refused."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

import numus as nm
from numus.dtypes import as_dtype
from numus.errors import DTypeError, RecordError
from numus.files import PathLike, atomically, open_regular
from numus.tensor import Tensor

__all__ = [
    "fromfile", "genfromtxt", "load", "loadtxt", "save", "savetxt", "savez", "savez_compressed",
]  # fmt: skip

_ZIP, _NPY = b"PK", b"\x93NUMPY"


class _PyTorchFileError(RecordError):
    """A file of PyTorch's where an array of NumPy's was expected."""


def _host(x: Any, op: str) -> np.ndarray[Any, Any]:
    """The elements of an array in a dtype that .npy files have."""
    given = nm.asarray(x)
    if given.dtype.is_low_precision and given.dtype is not nm.float16:
        raise DTypeError(
            f"{op}: .npy files have no {given.dtype.name}; cast it with astype(nm.float32), or "
            "write it by nm.nn.save_safetensors"
        )
    return given.detach().numpy()


def _with_suffix(path: PathLike, suffix: str) -> str:
    name = os.fspath(path)
    name = name.decode() if isinstance(name, bytes) else name
    return name if name.endswith(suffix) else name + suffix


def _is_path(file: Any) -> bool:
    return isinstance(file, (str, bytes, os.PathLike))


def _check_target(file: Any, op: str) -> None:
    if isinstance(file, (Tensor, dict, np.ndarray)):
        raise TypeError(
            f"{op}: the file comes first, {op}(file, x); tensors by name are written by "
            "nm.nn.save_safetensors(tensors, path)"
        )


def save(file: Any, arr: Any) -> None:
    """Write an array to a .npy file, a path (which gets that suffix) or an open binary file.

    The file is replaced at once, when all of it has been written.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npy"
    >>> nm.save(path, nm.arange(3))
    >>> nm.load(path).tolist()
    [0, 1, 2]
    """
    _check_target(file, "save")
    if isinstance(arr, dict):
        raise TypeError("save: takes one array; use savez(file, **arrays) for several")
    array = _host(arr, "save")
    if _is_path(file):
        path = _with_suffix(file, ".npy")
        atomically(path, lambda f: np.save(f, array, allow_pickle=False))
    else:
        np.save(file, array, allow_pickle=False)


def _save_archive(op: str, write: Any, file: Any, arrays: tuple[Any, ...], named: Any) -> None:
    _check_target(file, op)
    found = {f"arr_{i}": _host(x, op) for i, x in enumerate(arrays)}
    if set(found) & set(named):
        raise ValueError(f"{op}: {sorted(set(found) & set(named))[0]} names two arrays")
    found |= {name: _host(x, op) for name, x in named.items()}
    if _is_path(file):
        path = _with_suffix(file, ".npz")
        atomically(path, lambda f: write(f, **found))
    else:
        write(file, **found)


def savez(file: Any, *args: Any, **kwds: Any) -> None:
    """Write several arrays to a .npz file, by name or as arr_0, arr_1, ...

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/xs.npz"
    >>> nm.savez(path, a=nm.ones(2), b=nm.arange(3))
    >>> sorted(nm.load(path))
    ['a', 'b']
    """
    _save_archive("savez", np.savez, file, args, kwds)


def savez_compressed(file: Any, *args: Any, **kwds: Any) -> None:
    """`savez`, compressed."""
    _save_archive("savez_compressed", np.savez_compressed, file, args, kwds)


@contextmanager
def _opened(file: Any) -> Iterator[BinaryIO]:
    if not _is_path(file):
        yield file
        return
    with open_regular(file) as f:
        yield f


def _check_header(f: BinaryIO, name: str) -> None:
    """Refuse a .npy file that promises more than it has, before memory is taken for it."""
    start = f.tell()
    version = np.lib.format.read_magic(f)
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}", None)
    if read is None:
        raise ValueError(f"format version {version}")
    shape, _, dtype = read(f)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    begin = f.tell()
    held = f.seek(0, os.SEEK_END) - begin
    needed = dtype.itemsize
    for n in shape:
        needed *= n
    if needed > held:
        raise ValueError(f"{shape} of {dtype} needs {needed} bytes, and {held} are there")
    f.seek(start)


def load(file: Any) -> Any:
    """The array of a .npy file, or the arrays by name of a .npz or .safetensors file.

    >>> import io
    >>> file = io.BytesIO()
    >>> nm.save(file, nm.ones(2))
    >>> _ = file.seek(0)
    >>> nm.load(file).tolist()
    [1.0, 1.0]
    """
    name = os.fspath(file) if _is_path(file) else getattr(file, "name", "the file")
    with _opened(file) as f:
        if not f.seekable():
            f = io.BytesIO(f.read())
        magic, start = f.read(6), f.tell() - 6
        f.seek(start)
        if not magic.startswith((_ZIP, _NPY)):
            if _is_path(file):
                return nm.nn.load_safetensors(file)
            raise RecordError(f"load: {name} is neither a .npy nor a .npz file")
        try:
            if magic == _NPY:
                _check_header(f, str(name))
                return nm.asarray(np.load(f, allow_pickle=False))
            if magic.startswith(_ZIP) and any(
                part.endswith("data.pkl") for part in zipfile.ZipFile(f).namelist()
            ):
                raise _PyTorchFileError(
                    f"load: {name} is a file of PyTorch's, a pickle; numus.torch.load reads its "
                    "tensors without running its code"
                )
            f.seek(start)
            with np.load(f, allow_pickle=False) as archive:
                return {key: nm.asarray(archive[key]) for key in archive.files}
        except (DTypeError, MemoryError, _PyTorchFileError):
            raise
        except Exception as error:  # zip, zlib and NumPy's parsers have errors of many kinds
            raise RecordError(f"load: {name} is damaged: {error}") from error


def loadtxt(
    fname: Any,
    dtype: Any = None,
    comments: Any = "#",
    delimiter: str | None = None,
    converters: Any = None,
    skiprows: int = 0,
    usecols: Any = None,
    unpack: bool = False,
    ndmin: int = 0,
    **options: Any,
) -> Any:
    """The numbers of a text file, a row to a line; NumPy's arguments.

    >>> import io
    >>> nm.loadtxt(io.StringIO("1 2\\n3 4")).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return _from_text(
        np.loadtxt, fname, dtype, unpack, comments=comments, delimiter=delimiter,
        converters=converters, skiprows=skiprows, usecols=usecols, ndmin=ndmin, **options,
    )  # fmt: skip


def genfromtxt(fname: Any, dtype: Any = None, *, unpack: bool = False, **options: Any) -> Any:
    """The numbers of a text file, in which some may be missing; NumPy's arguments.

    >>> import io
    >>> nm.genfromtxt(io.StringIO("1,,3"), delimiter=",").tolist()
    [1.0, nan, 3.0]
    """
    return _from_text(np.genfromtxt, fname, dtype, unpack, **options)


def _from_text(read: Any, fname: Any, dtype: Any, unpack: bool, **options: Any) -> Any:
    wanted = nm.float32 if dtype is None else as_dtype(dtype)
    wide = np.float64 if wanted.is_floating else wanted.np
    found = nm.asarray(read(fname, dtype=wide, **options), dtype=wanted)
    return tuple(nm.unstack(nm.transpose(found))) if unpack else found


def savetxt(fname: Any, X: Any, fmt: Any = "%.18e", delimiter: str = " ", **options: Any) -> None:
    """Write a vector or a matrix as text, a row to a line; NumPy's arguments.

    >>> import io
    >>> file = io.StringIO()
    >>> nm.savetxt(file, nm.asarray([[1, 2]]), fmt="%d")
    >>> file.getvalue()
    '1 2\\n'
    """
    given = nm.asarray(X)
    wide = given.astype(nm.float32) if given.dtype.is_low_precision else given
    array = wide.detach().numpy()
    if _is_path(fname) and not str(fname).endswith((".gz", ".bz2", ".xz")):
        atomically(fname, lambda f: np.savetxt(f, array, fmt, delimiter, **options))
    else:
        np.savetxt(fname, array, fmt, delimiter, **options)


def fromfile(
    file: Any, dtype: Any = None, count: int = -1, sep: str = "", offset: int = 0
) -> Tensor:
    """A vector of the elements in a file: bytes as `Tensor.tofile` writes them, or with a
    separator the numbers of a text.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.bin"
    >>> nm.arange(3).tofile(path)
    >>> nm.fromfile(path, dtype=nm.int64).tolist()
    [0, 1, 2]
    """
    wanted = nm.float32 if dtype is None else as_dtype(dtype)
    if sep:
        wide = np.float64 if wanted.is_floating else wanted.np
        return nm.asarray(np.fromfile(file, wide, count, sep), dtype=wanted)
    with _opened(file) as f:
        f.seek(offset, os.SEEK_CUR)
        size = -1 if count < 0 else count * wanted.itemsize
        found = f.read(size)
    whole = len(found) // wanted.itemsize * wanted.itemsize
    return nm.asarray(np.frombuffer(found[:whole], wanted.np).copy(), dtype=wanted)
