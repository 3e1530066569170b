"""Data loading: batches of records from one warm file, against PyTorch's loader.

    python -m bench loading

PyTorch's dataset memory-maps the file as well, and makes a tensor of each record; its loader
collates them. Both have the same number of workers (threads in numus, processes in PyTorch).
Records are dicts of an array and a number, or raw bytes. `first` is the epoch that verifies
checksums; `processes` are persistent worker processes of numus.
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
from .table import Table

SIZES = {4 << 10: 30_000, 64 << 10: 3_000, 1 << 20: 200}  # record bytes: number of records
BATCHES = {4 << 10: (32, 64, 256, 1024), 64 << 10: (32, 128), 1 << 20: (8, 32)}
WORKERS = (0, 1, 2)


def write(path: Path, size: int, count: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, size, dtype=np.uint8)
    with data.RecordWriter.create(path) as writer:
        for i in range(count):
            x[:8] = np.frombuffer(struct.pack("<q", i), np.uint8)
            writer.write_record({"x": x, "y": i % 10})


def seconds(loader: Any, count: int, epochs: int = 4) -> tuple[float, float]:
    """The best epoch, and the first, which verifies checksums."""
    times = []
    for _ in range(epochs + 1):
        began = time.perf_counter()
        seen = sum(len(batch["x"] if isinstance(batch, dict) else batch) for batch in loader)
        times.append(time.perf_counter() - began)
        assert seen == count
    return min(times[1:]), times[0]


def torch_records(path: Path, offset: int, size: int) -> Any:
    """The records as a PyTorch dataset over the memory-mapped file."""
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


def rates(loader: Any, size: int, count: int) -> tuple[float, float]:
    """GB/s of the best epoch and of the first."""
    best, first = seconds(loader, count)
    return size * count / best / 1e9, size * count / first / 1e9


def copying() -> float:
    """GB/s of a single-threaded copy larger than the caches."""
    source, target = np.ones(1 << 27, np.uint8), np.ones(1 << 27, np.uint8)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - began)
    return len(source) / min(times) / 1e9


def report(sizes: list[int], markdown: bool) -> None:
    names = ("bytes", "batch", "workers", "GB/s", "first", "raw GB/s", "processes", "records/s")
    columns = (*names, "torch", "ratio")
    copied = copying()
    table = Table(columns, [9] * len(columns), markdown)
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            _report(table, Path(folder), size, SIZES[size])
        path = Path(folder) / "million.rrec"
        with data.RecordWriter.create(path) as writer:
            for _ in range(1_000_000):
                writer.write_record(b"")
        began = time.perf_counter()
        records = data.RecordDataset.open(path)
        took = time.perf_counter() - began
        assert len(records) == 1_000_000
        opened = f"a file of a million records opens in {took * 1e3:.1f} ms"
        table.note(f"one thread copies {copied:.1f} GB/s; {opened}")


def _processes(records: Any, batch: int, workers: int, size: int, count: int) -> float:
    loader = data.DataLoader(
        *(records, batch, True),
        num_workers=workers,
        worker_type="process",
        persistent_workers=True,
    )
    return rates(loader, size, count)[0]


def _report(table: Table, folder: Path, size: int, count: int) -> None:
    path, raw = folder / "x.rrec", folder / "raw.rrec"
    write(path, size, count)
    with data.RecordWriter.create(raw) as writer:
        for i in range(count):
            writer.write_record(struct.pack("<q", i) * (size // 8))
    records, plain = data.RecordDataset.open(path), data.RecordDataset.open(raw)
    for batch, workers in itertools.product(BATCHES[size], WORKERS):
        fresh = data.RecordDataset.open(path)  # with unverified checksums
        loader = data.DataLoader(fresh, batch, True, num_workers=workers)
        own, first = rates(loader, size, count)
        bare, _ = rates(data.DataLoader(plain, batch, True, num_workers=workers), size, count)
        apart = _processes(records, batch, workers, size, count) if workers else 0.0
        speed = own * 1e9 / size
        cells = [f"{n}" for n in (size, batch, workers)]
        cells += [f"{rate:.2f}" for rate in (own, first, bare, apart)]
        cells += [f"{speed:,.0f}", "-", "-"]
        if torch is not None:
            where = bytes(records.contents(0)).find(struct.pack("<q", 0)) + 16
            there = torch_records(path, where, size)
            loader = torch.utils.data.DataLoader(there, batch, True, num_workers=workers)
            theirs = count / seconds(loader, count, epochs=1)[0]
            cells[-2:] = [f"{theirs:,.0f}", f"{speed / theirs:.1f}"]
        table.row(*cells)
    path.unlink()
    raw.unlink()
