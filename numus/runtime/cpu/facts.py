"""What schedules may know about this CPU."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from numus import config, dtypes
from numus.runtime.contract import Facts
from numus.runtime.cpu.target import Target, host

_CACHE_DIR = Path("/sys/devices/system/cpu/cpu0/cache")


def facts() -> Facts:
    target = host()
    l1, l2 = cache_sizes()
    return Facts(
        name="cpu",
        description=f"{target.cpu} ({target.lanes_bytes * 8}-bit vectors)",
        dtypes=frozenset(d.name for d in dtypes.ALL),
        lanes_bytes=target.lanes_bytes,
        vector_registers=target.vector_registers,
        cache_l1=l1,
        cache_l2=l2,
        parallel_units=config.default_threads(),
        renderer="llvm",
        features=_features(target),
    )


def _features(target: Target) -> frozenset[str]:
    return target.enabled | {target.arch}


def cache_sizes() -> tuple[int, int]:
    """Bytes of a core's level 1 data cache and level 2 cache; a careful guess where unknown."""
    sizes = {1: 32 << 10, 2: 512 << 10}
    with contextlib.suppress(OSError, ValueError, KeyError):
        if sys.platform == "darwin":
            for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize")):
                sizes[level] = int(subprocess.check_output(["sysctl", "-n", name]))
        for entry in sorted(_CACHE_DIR.glob("index*")):
            level = int((entry / "level").read_text())
            if level in sizes and (entry / "type").read_text().strip() != "Instruction":
                sizes[level] = _bytes((entry / "size").read_text().strip())
    return sizes[1], sizes[2]


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
