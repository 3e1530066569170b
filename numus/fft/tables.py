"""Roots of unity and chirps on the device: computed once in higher precision, held with a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.evaluation.evaluate import from_host
from numus.graph import Array, Node
from numus.kernels.fft.roots import unit_roots
from numus.kernels.fft.tables import table
from numus.runtime.devices import Device, default

MAX_TABLE_BYTES = 256 << 20  # of all tables together


class _Tables:
    """Tables by name, length, dtype and device, the least recently used dropped first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: OrderedDict[tuple[str, int, DType, Device], Node] = OrderedDict()
        self.nbytes = 0

    def get(
        self,
        name: str,
        n: int,
        dtype: DType,
        device: Device | None,
        make: Callable[[int, DType], Array],
    ) -> Node:
        device = device or default.device
        key = (name, n, dtype, device)
        with self.lock:
            node = self.found.get(key)
            if node is not None:
                self.found.move_to_end(key)
                return node
        node = from_host(make(n, dtype), dtype, device)
        with self.lock:
            if key not in self.found:
                self.found[key] = node
                self.nbytes += node.shape[0] * dtype.itemsize
            while self.nbytes > MAX_TABLE_BYTES:
                (_, _, width, _), dropped = self.found.popitem(last=False)
                self.nbytes -= dropped.shape[0] * width.itemsize
        return node


_tables = _Tables()


def roots(n: int, dtype: DType, device: Device | None) -> Node:
    """The n-th roots of unity exp(-2 pi i k / n), and what the kernels of this device read beside
    them (`kernels.fft.tables`)."""
    device = device or default.device
    target = device.runtime.target
    return _tables.get("roots", n, dtype, device, lambda n, t: table(n, t, target))


def quarter_roots(n: int, dtype: DType, device: Device | None) -> Node:
    """exp(-pi i k / 2n) for k <= n / 2: the rotations of cosine transforms of types II and III."""
    return _tables.get(
        "quarter", n, dtype, device, lambda n, t: unit_roots(np.arange(n // 2 + 1), 4 * n, t)
    )


def centred_roots(n: int, dtype: DType, device: Device | None) -> Node:
    """exp(-pi i (8 k + 1) / 8n) for k < n / 2: the rotations of cosine transforms of type IV."""
    return _tables.get(
        "centred", n, dtype, device, lambda n, t: unit_roots(8 * np.arange(n // 2) + 1, 16 * n, t)
    )


def permutation(name: str, n: int, device: Device | None, make: Callable[[int], Array]) -> Node:
    """A table of n integers."""
    return _tables.get(name, n, dt.int64, device, lambda n, _: make(n))


def _chirp(n: int, dtype: DType) -> Array:
    k = np.arange(n, dtype=object if n > 1 << 31 else np.int64)
    return unit_roots((k * k % (2 * n)).astype(np.int64), 2 * n, dtype)


def chirp(n: int, dtype: DType, device: Device | None) -> Node:
    """exp(-pi i k^2 / n) for k < n."""
    return _tables.get("chirp", n, dtype, device, _chirp)


def chirp_length(n: int) -> int:
    """The length of the convolution by which Bluestein's algorithm transforms n points: one of few
    structures, so that lengths share their kernels."""
    min_length = 2 * n - 1
    return min(odd << max(0, (-(-min_length // odd) - 1).bit_length()) for odd in (1, 3, 5, 9, 15))


def _chirp_spectrum(n: int, dtype: DType) -> Array:
    m = chirp_length(n)
    wide = np.zeros(m, np.clongdouble if dtype is dt.complex128 else np.complex128)
    half = np.conj(_chirp(n, dt.complex128))
    wide[:n] = half
    wide[m - n + 1 :] = half[:0:-1]
    return (np.fft.fft(wide) / m).astype(dtype.np)


def chirp_spectrum(n: int, dtype: DType, device: Device | None) -> Node:
    """The scaled transform of the conjugate chirp, wrapped around to `chirp_length(n)` points."""
    return _tables.get("spectrum", n, dtype, device, _chirp_spectrum)
