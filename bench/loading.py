"""Loading: batches of records from one warm file, beside PyTorch's loader on the same file.

    python -m bench loading

PyTorch's dataset maps the file as well, and makes a tensor of each record where it lies; its
loader collates them. Both have as many workers (threads here, processes there). Records are dicts
of an array and a number, or raw bytes.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from numus import data

from .libraries import torch

SIZES = {4 << 10: 40_000, 64 << 10: 4_000, 1 << 20: 300}  # bytes of a record, and how many
BATCHES = {4 << 10: (32, 64, 256, 1024), 64 << 10: (32, 128), 1 << 20: (8,)}
WORKERS = (0, 1, 2)


def write(path: Path, size: int, count: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, size, dtype=np.uint8)
    with data.RecordWriter.create(path) as writer:
        for i in range(count):
            x[:8] = np.frombuffer(struct.pack("<q", i), np.uint8)
            writer.write_record({"x": x, "y": i % 10})


def seconds(loader: Any, count: int, epochs: int = 4) -> float:
    """The best epoch after one that warms up (and checks the records)."""
    times = []
    for _ in range(epochs + 1):
        began = time.perf_counter()
        seen = sum(len(batch["x"] if isinstance(batch, dict) else batch) for batch in loader)
        times.append(time.perf_counter() - began)
        assert seen == count
    return min(times[1:])


def torch_records(path: Path, offset: int, size: int) -> Any:
    """The records as PyTorch's users would read them: the mapped file, an offset for each."""
    index = data.RecordDataset.open(path)._index

    class Records(torch.utils.data.Dataset):  # type: ignore[misc]
        pages: Any = None

        def __len__(self) -> int:
            return len(index)

        def __getitem__(self, i: int) -> Any:
            if self.pages is None:
                with open(path, "rb") as file:
                    self.pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            array = np.frombuffer(self.pages, np.uint8, size, int(index[i]) + offset)
            return {"x": torch.from_numpy(array.copy()), "y": i % 10}

    return Records()


def rate(loader: Any, size: int, count: int) -> float:
    """GB/s of a loader."""
    return size * count / seconds(loader, count) / 1e9


def report() -> None:
    columns = ("bytes", "batch", "workers", "GB/s", "raw GB/s", "records/s", "torch", "ratio")
    print(("{:>10}" * len(columns)).format(*columns))
    with tempfile.TemporaryDirectory() as folder:
        for size, count in SIZES.items():
            _report(Path(folder), size, count)
        path = Path(folder) / "million.rrec"
        with data.RecordWriter.create(path) as writer:
            for _ in range(1_000_000):
                writer.write_record(b"")
        began = time.perf_counter()
        records = data.RecordDataset.open(path)
        took = time.perf_counter() - began
        assert len(records) == 1_000_000
        print(f"a file of a million records opens in {took * 1e3:.1f} ms")


def _report(folder: Path, size: int, count: int) -> None:
    path, raw = folder / "x.rrec", folder / "raw.rrec"
    write(path, size, count)
    with data.RecordWriter.create(raw) as writer:
        for i in range(count):
            writer.write_record(struct.pack("<q", i) * (size // 8))
    records, plain = data.RecordDataset.open(path), data.RecordDataset.open(raw)
    for batch, workers in itertools.product(BATCHES[size], WORKERS):
        own = rate(data.DataLoader(records, batch, True, num_workers=workers), size, count)
        bare = rate(data.DataLoader(plain, batch, True, num_workers=workers), size, count)
        speed = own * 1e9 / size
        line = f"{size:>10}{batch:>10}{workers:>10}{own:>10.2f}{bare:>10.2f}{speed:>10,.0f}"
        if torch is not None:
            where = bytes(records.contents(0)).find(struct.pack("<q", 0)) + 16
            there = torch_records(path, where, size)
            loader = torch.utils.data.DataLoader(there, batch, True, num_workers=workers)
            theirs = count / seconds(loader, count, epochs=1)
            line += f"{theirs:>10,.0f}{speed / theirs:>10.1f}"
        print(line, flush=True)
    path.unlink()
    raw.unlink()
