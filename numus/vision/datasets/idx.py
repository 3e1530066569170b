"""IDX files (MNIST and its kin): an array with its shape before it, plain or gzipped.

0, 0, type (a byte), number of axes (a byte); each extent (u32, big-endian); elements, row-major
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.data import Dataset
from numus.files import open_regular

__all__ = ["MNIST", "read_idx"]

_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
Array = np.ndarray[Any, Any]


def read_bytes(path: str | Path) -> bytes:
    """The contents of a file, unpacked where it is gzipped."""
    with open_regular(path) as file:
        contents: bytes = file.read()
    if contents[:2] != b"\x1f\x8b":
        return contents
    try:
        return gzip.decompress(contents)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: the gzip stream is damaged: {error}") from None


def read_idx(path: str | Path) -> Array:
    """The array of an IDX file, which may be gzipped.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    11
    >>> nm.vision.datasets.read_idx(path).tolist()
    [7, 8, 9]
    """
    contents = read_bytes(path)
    if len(contents) < 4 or contents[:2] != b"\0\0" or contents[2] not in _DTYPES:
        raise ValueError(f"{path} is not an IDX file: it begins with {contents[:4]!r}")
    dtype, rank = np.dtype(_DTYPES[contents[2]]), contents[3]
    start = 4 + 4 * rank
    if len(contents) < start:
        raise ValueError(f"{path} is cut off: {len(contents)} bytes, its header alone has {start}")
    shape = struct.unpack(f">{rank}I", contents[4:start])
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(contents) != wanted:
        raise ValueError(
            f"{path}: an array of shape {shape} takes {wanted} bytes, the file has {len(contents)}"
        )
    found = np.frombuffer(contents, dtype, offset=start).reshape(shape)
    return found.astype(dtype.newbyteorder("="))


class MNIST(Dataset):
    """The pictures and labels of a folder in MNIST's files (also Fashion-MNIST, KMNIST).

    An example is a uint8 picture (1, 28, 28) and a number; `get_batch` gives many at once.

    Args:
        folder: with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-…`, or `.gz`.
        train: the training pictures, or those for tests.
    """

    def __init__(self, folder: str | Path, train: bool = True) -> None:
        name = "train" if train else "t10k"
        self.images = read_idx(_file(folder, f"{name}-images-idx3-ubyte"))
        self.labels = read_idx(_file(folder, f"{name}-labels-idx1-ubyte"))
        if self.images.ndim != 3 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"{folder}: images of shape {self.images.shape} and labels of shape "
                f"{self.labels.shape} are not those of one dataset"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        return self.images[index][None], int(self.labels[index])

    def get_batch(self, indices: Any) -> Any:
        """Many examples at once: pictures (count, 1, height, width) and labels."""
        at = np.asarray(indices, np.int64)
        return nm.asarray(self.images[at][:, None]), nm.asarray(self.labels[at].astype(np.int64))


def _file(folder: str | Path, name: str) -> Path:
    """A file of a folder, or its gzipped form; some write a dot before `idx`."""
    names = [name, name.replace("-idx", ".idx")]
    for candidate in [n + end for n in names for end in ("", ".gz")]:
        if (Path(folder) / candidate).is_file():
            return Path(folder) / candidate
    raise FileNotFoundError(f"{folder}: there is neither {name} nor {name}.gz")
