"""LAPACK on CPUs: when it pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus.kernels.vendor.registry import Vendor, register
from numus.runtime.lapack_routines import Routine

OPERATION = "lapack"


@dataclass(frozen=True)
class LapackTuning:
    """Orders from which on a library is faster than numus, by routine: of one matrix, and of many.
    Measured on a 2-core x86-64 (Sapphire Rapids) with SciPy's OpenBLAS, and on one H200."""

    never: int = 1 << 30


TUNING = LapackTuning()
_CPU = {
    **{"cholesky": (192, 192), "lu": (128, 192), "qr": (64, 128), "solve": (128, 192)},
    **{"eigh": (32, 96), "svd": (32, 96), "eig": (1, 1), "schur": (1, 1), "qz": (1, 1)},
}


def _pays_on_cpu(r: Routine, target: Any) -> bool:
    alone, many = _CPU[r.name]
    return min(r.m, r.n) >= (alone if r.batch < target.num_cores else many)


def _lapack_supports(r: Routine, target: Any) -> bool:
    if "lapack" not in target.libraries:
        return False
    from numus.runtime.cpu import lapack  # imported late: it loads SciPy

    return lapack.is_supported(r)


def _start_lapack(runtime: Any, r: Routine) -> Any:
    from numus.runtime.cpu import lapack

    return lapack.start(runtime, r)


register(Vendor("lapack", OPERATION, _lapack_supports, _pays_on_cpu, _start_lapack))


def workspace_nbytes(vendor: Vendor, r: Routine) -> int:
    """Bytes of memory that the threads of a CPU need each; on a GPU, launches bring their own."""
    if vendor.name != "lapack":
        return 0
    from numus.runtime.cpu import lapack

    return lapack.workspace_nbytes(r)
