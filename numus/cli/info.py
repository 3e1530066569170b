"""`numus info`: the devices, and what they reach."""

from __future__ import annotations

import os
import platform
import warnings

import numus as nm
from numus.functions.inspect import limits
from numus.terminal import table

__all__ = ["run"]


def run(*, quick: bool = False) -> None:
    """Print a table of the devices; `quick`: measure nothing."""
    columns = ["device", "what it is", "features", "memory", "GB/s", "GFLOP/s (f32)"]
    rows = []
    for name in ("cpu", *(str(d) for d in nm.devices() if str(d) != "cpu")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of software, which the table says
            target = nm.device(name).runtime.target
        features = " ".join(sorted(target.features)) or "-"
        if name == "cpu":  # dozens of instruction sets, which the description sums up
            features = f"{len(target.features)} instruction sets"
        speeds = ["-", "-"]
        if not quick:
            bandwidth, flops = limits(name)
            speeds = [f"{bandwidth / 1e9:.1f}", f"{flops / 1e9:.0f}"]
        memory = target.memory_bytes or (_host_memory() if name == "cpu" else 0)
        size = f"{memory / 1e9:.1f} GB" if memory else "-"
        rows.append([name, target.description, features, size, *speeds])
    title = f"numus {nm.__version__} on Python {platform.python_version()}"
    print(table(title, columns, rows, numbers=columns[3:]))
    print(f"threads {nm.get_num_threads()} of {os.cpu_count()} cores")


def _host_memory() -> int:
    """Bytes of memory that the machine has; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 0
