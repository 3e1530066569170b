"""Roots of unity and chirps on the device: computed once in higher precision, held with a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.evaluation.evaluate import from_host
from numus.functions.template_cache import clear_templates
from numus.graph import Array, Node
from numus.kernels.fft import chirp as chirps
from numus.kernels.fft.roots import unit_roots
from numus.kernels.fft.tables import table
from numus.primitives.source import TABLE
from numus.runtime.devices import Device, default

MAX_TABLE_BYTES = 256 << 20  # of all tables together
MAX_MEMORY_SHARE = 64  # or this part of a device's own memory


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
        node.prim = TABLE
        most = max(MAX_TABLE_BYTES, device.runtime.target.memory_bytes // MAX_MEMORY_SHARE)
        with self.lock:
            if key not in self.found:
                self.found[key] = node
                self.nbytes += node.shape[0] * dtype.itemsize
            is_full = self.nbytes > most
            while self.nbytes > most:
                (_, _, width, _), dropped = self.found.popitem(last=False)
                self.nbytes -= dropped.shape[0] * width.itemsize
        if is_full:  # templates may hold what was dropped
            clear_templates()
        return node


_tables = _Tables()


def roots(n: int, dtype: DType, device: Device | None) -> Node:
    """The table that transforms of n points read on this device (`kernels.fft.tables`)."""
    device = device or default.device
    target = device.runtime.target
    return _tables.get("roots", n, dtype, device, lambda n, t: table(n, t, target))


def half_roots(n: int, dtype: DType, device: Device | None) -> Node:
    """exp(-2 pi i k / n) for k <= n / 2: the rotations of transforms of real signals."""
    return _tables.get(
        "half", n, dtype, device, lambda n, t: unit_roots(np.arange(n // 2 + 1), n, t)
    )


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


def chirp(n: int, dtype: DType, device: Device | None) -> Node:
    """exp(-pi i k^2 / n) for k < n."""
    return _tables.get("chirp", n, dtype, device, chirps.chirp)


def chirp_spectrum(n: int, dtype: DType, device: Device | None) -> Node:
    """The scaled transform of the conjugate chirp, wrapped around to `chirp_length(n)` points."""
    return _tables.get("spectrum", n, dtype, device, chirps.chirp_spectrum)
