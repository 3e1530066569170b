"""CPU targets: instruction-set features and cache sizes, as LLVM and the OS report them."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LlvmTarget:
    """A CPU to compile for. `features` is LLVM's list, as in "+avx2,+fma,-avx512f"."""

    triple: str
    cpu: str
    features: str
    l2_bytes: int = 1 << 20
    l3_bytes: int = 0  # of the cache that cores share, for each of them; 0: none, or unknown

    @functools.cached_property
    def enabled(self) -> frozenset[str]:
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))

    @functools.cached_property
    def arch(self) -> str:
        """ "x86", "arm" (64-bit), or "other"."""
        head = self.triple.partition("-")[0]
        if head in ("x86_64", "amd64", "i686"):
            return "x86"
        return "arm" if head in ("aarch64", "arm64") else "other"

    @functools.cached_property
    def vector_bytes(self) -> int:
        """The width of a vector register."""
        if self.arch == "x86":
            # the 512-bit forms of every integer operation came with BW and DQ, masks with VL
            if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= self.enabled:
                return 64
            if "avx" in self.enabled:
                return 32
        return 16

    @functools.cached_property
    def vector_registers(self) -> int:
        if self.arch == "x86":
            return 32 if self.vector_bytes == 64 else 16
        return 32

    @functools.cached_property
    def masked_store_min_bytes(self) -> int:
        """Smallest element of which masked loads and stores are single instructions."""
        if self.arch == "x86" and self.vector_bytes > 16:
            return 1 if self.vector_bytes == 64 else 4
        return 1 << 10

    @functools.cached_property
    def compress_min_bytes(self) -> int:
        """Smallest element of which the lanes of a mask are moved together by an instruction."""
        if self.vector_bytes == 64:
            return 1 if "avx512vbmi2" in self.enabled else 4
        return 1 << 10

    @functools.cached_property
    def has_int64_conversion(self) -> bool:
        """Vector conversion between int64 and float64 in one instruction."""
        return self.arch == "arm" or self.vector_bytes == 64

    @functools.cached_property
    def nontemporal_stores(self) -> bool:
        """Non-temporal stores pay off: Arm cores detect streaming writes by themselves."""
        return self.arch == "x86"

    @functools.cached_property
    def nontemporal_min_bytes(self) -> int:
        """Bytes that a thread stores, from which on it does so around the caches: those of its L2.
        Cores of Skylake's generation keep up with memory either way, and results that L3 holds
        are there for the next kernel. (On two cores of a Cascade Lake, x * 2 of 4 MB takes 0.19 ms
        through the caches and 0.70 around them, of 16 MB 1.3 and 3.3, of 64 MB 6.7 and 6.9.)"""
        return max(self.l2_bytes, self.l3_bytes) if self.cpu in _SKYLAKE else self.l2_bytes

    @functools.cached_property
    def streams_lines(self) -> bool:
        """Single lines that are stored around the caches pay off: each has a fill buffer until it
        is in memory, and cores of Skylake's generation have ten to twelve. (On Cascade Lake 128^3
        points take 6.4 ms so, 5.4 through the caches; on Emerald Rapids 100,000 rows of 64 take
        4.1 ms so, 5.4 through the caches.)"""
        return self.nontemporal_stores and self.cpu not in _SKYLAKE

    @functools.cached_property
    def prefetches_results(self) -> bool:
        """Prefetches of the lines that are stored next pay off. (On two cores of a Cascade Lake a
        copy of 8 MB takes 0.70 ms with them and 1.27 without, of 64 MB 5.5 and 6.6; around the
        caches 6.9. Where results are cached they cost nothing.)"""
        return self.cpu in _SKYLAKE

    @functools.cached_property
    def gathers(self) -> bool:
        """Gathers take less time than loads one by one."""
        return self.cpu not in _SLOW_GATHERS

    has_float8_conversion = False
    has_bf16_conversion = False  # a shift or an addition: an instruction would gain little

    @functools.cached_property
    def has_f16_conversion(self) -> bool:
        """Hardware conversion between float16 and float32."""
        return self.arch == "arm" or "f16c" in self.enabled

    @functools.cached_property
    def byte_dot(self) -> str:
        """How `dot4` is computed: "vnni", "pmadd" (pairs of products), "usdot", "sdot", or "" for
        products of single bytes."""
        if self.arch == "arm":
            return next((how for how, f in _ARM_DOTS.items() if f in self.enabled), "")
        if {"avx512vnni", "avx512vl"} <= self.enabled or "avxvnni" in self.enabled:
            return "vnni"
        pairs = {16: "ssse3", 32: "avx2", 64: "avx512bw"}[self.vector_bytes]
        return "pmadd" if self.arch == "x86" and pairs in self.enabled else ""


_ARM_DOTS = {"usdot": "i8mm", "sdot": "dotprod"}

# Microarchitecture levels that `NUMUS_CPU` names: LLVM's CPU and its features.
_V2 = "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"
_V3 = _V2 + ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_LEVELS = {
    "x86-64-v2": ("x86-64-v2", _V2),
    "x86-64-v3": ("x86-64-v3", _V3),
    "x86-64-v4": ("x86-64-v4", _V3 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"),
    "armv8-a": ("generic", "+neon"),
}


_SKYLAKE = frozenset("skylake skylake-avx512 cascadelake cooperlake cannonlake".split())
# CPUs whose microcode makes gathers wait (Gather Data Sampling, Intel 2023: Skylake to Ice Lake):
# 35 cycles for each element, against 2 of loads one by one. A virtual machine is not told.
_SLOW_GATHERS = _SKYLAKE | {"icelake-client", "icelake-server", "tigerlake", "rocketlake"}


@dataclass(frozen=True)
class _Override:
    """A CPU described by the environment, for tests and for code that must run elsewhere."""

    level: str = ""
    l1: int = 0
    l2: int = 0
    ways: int = 0


@functools.cache
def _override() -> _Override:
    """`NUMUS_CPU`, as in "x86-64-v3,l1=32K,l2=256K,ways=8"; every part may be left out."""
    given = os.environ.get("NUMUS_CPU", "")
    parts = [p.strip() for p in given.split(",") if p.strip()]
    level = parts.pop(0) if parts and "=" not in parts[0] else ""
    numbers = dict(p.partition("=")[::2] for p in parts)
    try:
        sizes = {name: _bytes(text) for name, text in numbers.items()}
        if (level and level not in _LEVELS) or not sizes.keys() <= {"l1", "l2", "ways"}:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"NUMUS_CPU={given!r} must be one of {', '.join(_LEVELS)}, then l1=, l2= and ways=, "
            'all optional, as in "x86-64-v3,l1=32K,l2=256K"'
        ) from None
    return _Override(level, **sizes)


@functools.cache
def host() -> LlvmTarget:
    """The CPU this process runs on, or the one that `NUMUS_CPU` names."""
    import llvmlite.binding as llvm

    if _override().level:
        cpu, features = _LEVELS[_override().level]
        return LlvmTarget(llvm.get_process_triple(), cpu, features, cache_sizes()[1])
    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on some systems: the baseline of the architecture
        features = ""
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    if cpu in _SLOW_GATHERS:
        features += ",+prefer-no-gather"
    share = shared_cache_size() // (os.cpu_count() or 1)
    return LlvmTarget(triple, cpu, features, cache_sizes()[1], share)


def cache_sizes() -> tuple[int, int]:
    """Bytes of a core's L1 data cache and L2 cache; a conservative guess where unknown."""
    sizes = {1: 32 << 10, 2: 512 << 10}
    with contextlib.suppress(OSError, ValueError, KeyError):
        if sys.platform == "darwin":
            for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize")):
                sizes[level] = int(subprocess.check_output(["sysctl", "-n", name]))
        sizes.update({level: _bytes(_cache(level, "size")) for level in sizes})
    return _override().l1 or sizes[1], _override().l2 or sizes[2]


def shared_cache_size() -> int:
    """Bytes of the L3 cache; 0 where there is none, or the L2 is described otherwise."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return 0 if _override().l2 else _bytes(_cache(3, "size"))
    return 0


def cache_ways() -> int:
    """Associativity of a core's L1 data cache; 8 where unknown."""
    if _override().ways:
        return _override().ways
    with contextlib.suppress(OSError, ValueError, KeyError):
        return max(1, int(_cache(1, "ways_of_associativity")))
    return 8


def _cache(level: int, attribute: str) -> str:
    """An attribute of a core's data cache, as Linux reports it."""
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        own, kind = ((entry / name).read_text().strip() for name in ("level", "type"))
        if own == str(level) and kind != "Instruction":
            return (entry / attribute).read_text().strip()
    raise KeyError(level)


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
