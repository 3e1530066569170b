"""Introspection: which kernels run, what was compiled, how much memory is in use."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numus.config import checked_threads
from numus.errors import OutOfMemoryError
from numus.functions.synchronization import eval as evaluate
from numus.runtime import get
from numus.runtime.devices import Device, device
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.tree import leaves

if TYPE_CHECKING:
    from numus.compiler.explain import KernelReport, ProgramReport

__all__ = [
    "Explanation", "compile_log", "explain", "get_num_threads", "memory_stats", "set_num_threads",
    "tune",
]  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """The kernels behind a computation. Print it, or look at `kernels` and their `source`."""

    programs: tuple[ProgramReport, ...]

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """All kernels, in the order in which they ran."""
        return tuple(k for p in self.programs for k in p.kernels)

    @property
    def peak_bytes(self) -> int:
        """The peak memory of one program for its results and temporaries."""
        return max((p.result_bytes + p.temporary_bytes for p in self.programs), default=0)

    def __str__(self) -> str:
        lines = []
        repeats: dict[Any, list[ProgramReport]] = {}  # programs that ran several times, shown once
        for p in self.programs:
            repeats.setdefault(p.structure, []).append(p)
        for p, *others in repeats.values():
            together = f" in {p.waves} waves" if p.waves < len(p.kernels) else ""
            times = f", {len(others) + 1} times" if others else ""
            lines.append(
                f"{len(p.kernels)} kernel{'s' * (len(p.kernels) != 1)}{together} on {p.device}; "
                f"results {_bytes(p.result_bytes)}, temporaries {_bytes(p.temporary_bytes)}"
                f"{f', hoisted {_bytes(p.hoisted_bytes)}' if p.hoisted_bytes else ''}{times}"
            )
            if p.under_way:
                lines.append(f"  while {_shorten(p.under_way, 4)} is under way")
            for k in p.kernels:
                once = ", once for all calls" if k.hoisted else ""
                lines.append(f"  {k.name:12} {_cost(k, p.device)}{once}")
                lines.append(f"    {_shorten(k.fused)}")
        return "\n".join(lines) or "nothing had to be computed"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A table of the kernels, in notebooks."""
        from numus.functions.interop import html

        rows = [
            (k.name, _cost(k, p.device), _shorten(k.fused))
            for p in self.programs
            for k in p.kernels
        ]
        devices = ", ".join(sorted({p.device for p in self.programs}))
        caption = f"{len(rows)} kernel{'s' * (len(rows) != 1)} on {devices or 'no device'}"
        return html.table(caption, ("kernel", "cost", "fused"), rows)


def explain(what: Any, *args: Any, timed: bool = True) -> Explanation:
    """The kernels that a computation becomes: what each fuses, moves and costs.

    Args:
        what: a function, called with `args`, or tensors that are still pending.
        timed: also run each kernel by itself, and compare with the device's limits.

    >>> x = nm.ones((64, 64))
    >>> found = nm.explain(lambda x: nm.softmax(x, axis=-1), x)
    >>> len(found.kernels)
    1
    """
    from numus.compiler.explain import recording

    if not callable(what) and not any(isinstance(x, Tensor) for x in leaves((what, args))):
        raise TypeError(f"explain: takes a function, or tensors, not {type(what).__name__}")
    evaluate(args)
    if timed:
        limits("cpu")  # measured before anything is recorded
    reports: list[ProgramReport] = []
    with recording(reports, timed):
        result = what(*args) if callable(what) else (what, *args)
        evaluate(result)
    return Explanation(tuple(reports))


def _shorten(names: tuple[str, ...], shown: int = 16) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest


def _bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def _cost(k: KernelReport, dev: str) -> str:
    out = f"reads {_bytes(k.bytes_read)}, writes {_bytes(k.bytes_written)}, {k.flops:,} flops"
    if k.seconds is None:
        return out
    out = f"{out}; {k.seconds * 1e6:.1f} µs"
    try:
        bandwidth, flops = limits(dev)
    except OutOfMemoryError:  # a device that is full is not measured
        return out
    limit = max((k.bytes_read + k.bytes_written) / bandwidth, k.flops / flops)
    return f"{out}, {100 * limit / k.seconds:.0f}% of the device's limit"


@functools.cache
def limits(dev: str) -> tuple[float, float]:
    """Bytes and operations per second that the device reaches, measured once."""
    from numus.functions.creation.creation import ones
    from numus.functions.elementwise.arithmetic import add
    from numus.functions.linear.matmul import matmul

    def best(f: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            evaluate(f())
            device(dev).runtime.synchronize()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    def measure(f: Callable[[Tensor], Tensor], size: int, rank: int, largest: int) -> Any:
        while True:  # larger until it takes a while: calls themselves take time
            x = ones((size,) * rank, device=dev)
            evaluate(x)
            seconds = best(functools.partial(f, x))
            if seconds > 2e-3 or size >= largest:
                return x, seconds
            size *= 2

    line, seconds = measure(lambda x: add(x, 1.0), 1 << 23, 1, 1 << 28)
    bandwidth = 2 * line.nbytes / seconds
    square, seconds = measure(lambda x: matmul(x, x), 512, 2, 8192)
    return bandwidth, 2 * square.shape[0] ** 3 / seconds


def compile_log(on: Device | str | None = None) -> list[Any]:
    """The kernels compiled (or loaded from the disk cache) so far, in order.

    Each record has `name`, `notes` (what the kernel fuses), `cause` ("compiled" or "disk"),
    `seconds` and `source`.
    """
    return list(getattr(device(on).runtime, "compile_log", ()))


def memory_stats(on: Device | str | None = None) -> dict[str, int]:
    """Bytes in use, in the pool and at the peak, and counts of allocations.

    >>> sorted(nm.memory_stats())[:2]
    ['allocations', 'in_use']
    """
    return dict(device(on).runtime.memory_stats())


@contextlib.contextmanager
def tune() -> Iterator[None]:
    """Autotune: measure several schedules of each new product, and remember the best.

    Products are matrix products and convolutions. Choices are stored on disk for this kind of
    machine, so each is measured once; results are the same whichever schedule computes them.
    Programs of `nm.jit` measure a few schedules by themselves when a later process compiles them.

    >>> x = nm.ones((64, 64))
    >>> with nm.tune():
    ...     nm.eval(x @ x)
    """
    from numus.compiler.lower.autotune import tuned
    from numus.compiler.plan import clear_plans

    clear_plans()  # so that what was met before is met anew
    with tuned():
        yield


def set_num_threads(count: int) -> None:
    """Set the number of CPU threads that kernels run on; results do not depend on it."""
    count = as_int(count, "the number of threads", "set_num_threads")
    get("cpu").set_num_threads(checked_threads(count, "set_num_threads: the number of threads"))


def get_num_threads() -> int:
    """The number of CPU threads that kernels run on."""
    return int(get("cpu").get_num_threads())
