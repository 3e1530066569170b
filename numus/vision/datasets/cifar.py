"""CIFAR-10 and CIFAR-100 in their binary version: records of a label (or two) and a picture.

    CIFAR-10: label, 3072 bytes;  CIFAR-100: coarse label, fine label, 3072 bytes
    a picture: red, green and blue planes of 32 × 32

The Python version of these files is pickles, which run code when they are read: it is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.data import Dataset
from numus.vision.datasets.idx import Array, read_bytes

__all__ = ["CIFAR10", "CIFAR100"]

_PICTURE = 3 * 32 * 32


class _Cifar(Dataset):
    """Records of all files of a split."""

    classes = 10
    labels_per_record = 1
    files: dict[bool, tuple[str, ...]] = {}  # noqa: RUF012

    def __init__(self, folder: str | Path, train: bool = True) -> None:
        parts = [self._records(Path(folder) / name) for name in self.files[train]]
        records = np.concatenate(parts)
        self.images = records[:, self.labels_per_record :].reshape(-1, 3, 32, 32)
        self.labels = records[:, self.labels_per_record - 1].astype(np.int64)
        self.coarse_labels = records[:, 0].astype(np.int64)

    def _records(self, path: Path) -> Array:
        size = self.labels_per_record + _PICTURE
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is not there: this reads the binary version of the files, {path.name}"
            )
        contents = read_bytes(path)
        if not contents or len(contents) % size:
            raise ValueError(
                f"{path}: {len(contents)} bytes are not a whole number of records of {size}"
            )
        records = np.frombuffer(contents, np.uint8).reshape(-1, size)
        largest = int(records[:, self.labels_per_record - 1].max())
        if largest >= self.classes:
            raise ValueError(f"{path}: label {largest}, where {self.classes} classes exist")
        return records

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        return self.images[index], int(self.labels[index])

    def get_batch(self, indices: Any) -> Any:
        """Many examples at once: pictures (count, 3, 32, 32) and labels."""
        at = np.asarray(indices, np.int64)
        return nm.asarray(self.images[at]), nm.asarray(self.labels[at])


class CIFAR10(_Cifar):
    """Pictures of 10 classes, from a folder with data_batch_1.bin … and test_batch.bin."""

    files = {  # noqa: RUF012
        True: tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        False: ("test_batch.bin",),
    }


class CIFAR100(_Cifar):
    """Pictures of 100 classes (`labels`) in 20 groups (`coarse_labels`): train.bin, test.bin."""

    classes = 100
    labels_per_record = 2
    files = {True: ("train.bin",), False: ("test.bin",)}  # noqa: RUF012
