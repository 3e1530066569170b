"""LAPACK on CPUs and cuSOLVER on GPUs: when they pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numus import dtypes as dt
from numus.kernels.vendor.registry import Vendor, register

if TYPE_CHECKING:  # every start would pay for it
    from numus.runtime.lapack_routines import Routine

OPERATION = "lapack"


NEVER = 1 << 30


@dataclass(frozen=True)
class LapackTuning:
    """Orders from which on LAPACK is faster, of fewer matrices than there are cores and of many,
    and from which on it is not. Measured on a 2-core x86-64 (Cascade Lake; spectra of Hermitian
    matrices and singular values: Sapphire Rapids) with SciPy's OpenBLAS."""

    cholesky: tuple[int, int, int] = (NEVER, NEVER, NEVER)
    lu: tuple[int, int, int] = (NEVER, NEVER, NEVER)
    system: tuple[int, int, int] = (NEVER, NEVER, NEVER)
    solve: tuple[int, int, int] = (NEVER, NEVER, NEVER)
    qr: tuple[int, int, int] = (8, 65, 65)
    # of float64; of other dtypes as many bytes (of Hermitian matrices those of one part)
    eigh: tuple[int, int, int] = (1000, 1400, NEVER)
    svd: tuple[int, int, int] = (1500, 2000, NEVER)
    eig: tuple[int, int, int] = (1, 1, 24)
    schur: tuple[int, int, int] = (NEVER, NEVER, NEVER)
    complex_eig: tuple[int, int, int] = (1, 1, NEVER)
    complex_schur: tuple[int, int, int] = (1, 1, NEVER)
    qz: tuple[int, int, int] = (1, 1, NEVER)


TUNING = LapackTuning()


def _pays_on_cpu(r: Routine, target: Any) -> bool:
    dtype = dt.as_dtype(r.dtype)
    own = r.name in ("eig", "schur") and dtype.is_complex
    alone, many, end = getattr(TUNING, f"complex_{r.name}" if own else r.name)
    order: float = min(r.m, r.n)
    if r.name in ("eigh", "svd"):
        order *= (dt.real_of(dtype) if r.name == "eigh" else dtype).itemsize / 8
    return bool((alone if r.batch < target.num_cores else many) <= order < end)


def _lapack_supports(r: Routine, target: Any) -> bool:
    if "lapack" not in target.libraries:
        return False
    from numus.runtime.cpu import lapack  # imported late: it loads SciPy

    return lapack.is_supported(r)


def _start_lapack(runtime: Any, r: Routine) -> Any:
    from numus.runtime.cpu import lapack

    return lapack.start(runtime, r)


register(Vendor("lapack", OPERATION, _lapack_supports, _pays_on_cpu, _start_lapack))


_CHOLESKY = {"float32": NEVER, "complex64": NEVER, "float64": 512, "complex128": 512}
_LU = {"float32": 5000, "complex64": 65, "float64": 1200, "complex128": 65}


@dataclass(frozen=True)
class CusolverTuning:
    """Orders from which on cuSOLVER is taken, of up to `few` matrices and of more, which it has one
    by one: beyond those that native kernels hold in registers, or by dtype. On one H200, of
    float32, native kernels take 5.7 ms for Cholesky of 8192 (cuSOLVER 8.1), 11.5 ms for a system of
    4096 (12.4), 58 us for QR of 64 (260), and 1386 us for eigenvalues of 64 (679); of float64
    264 us for Cholesky of 512 (216)."""

    few: int = 4
    many: int = 512
    cholesky: Mapping[str, int] = field(default_factory=lambda: _CHOLESKY)
    lu: Mapping[str, int] = field(default_factory=lambda: _LU)
    system: Mapping[str, int] = field(default_factory=lambda: _LU)
    qr: int = 65
    eigh: int = 33
    svd: int = 33
    solve: int = 65
    few_columns: int = 4  # of right-hand sides, which native kernels substitute faster
    # QR of fewer columns, too, if no registers hold as many rows: 51 ms by reflectors of one block
    # for 4096 x 64 (0.4). R alone of matrices that are `qr_tall` times as tall as wide is native:
    # 3.8 ms for 16384 x 500 (9.8), with Q in float32 (4.3).
    qr_rows: int = 129
    qr_tall: int = 8
    order: int = 1


CUSOLVER_TUNING = CusolverTuning()


def _is_tall(r: Routine) -> bool:
    columns = min(r.m, r.n)
    return columns >= CUSOLVER_TUNING.qr and max(r.m, r.n) >= CUSOLVER_TUNING.qr_tall * columns


def _pays_on_gpu(r: Routine, target: Any) -> bool:
    t = CUSOLVER_TUNING
    if r.name == "solve" and r.columns <= t.few_columns and target.async_copy:
        return False
    order: int | Mapping[str, int] = getattr(t, r.name)
    if r.name == "qr":
        order = 1 if max(r.m, r.n) >= t.qr_rows else t.qr
        if _is_tall(r) and target.async_copy and (not r.option or r.dtype == "float32"):
            return False
    if not isinstance(order, int):
        has_panels = r.name == "cholesky" or target.max_cluster_size > 1
        order = order[r.dtype] if has_panels else t.qr
    alone = r.batch <= t.few or r.name == "order"
    return min(r.m, r.n) >= (order if alone else max(order, t.many))


def _cusolver_supports(r: Routine, target: Any) -> bool:
    if "cusolver" not in target.libraries:
        return False
    from numus.runtime.cuda import cublas, cusolver  # imported late: only with such a device

    known = cusolver.is_supported(r) and cusolver.library() is not None
    return known and cublas.library() is not None


def _start_cusolver(runtime: Any, r: Routine) -> Any:
    from numus.runtime.cuda.cusolver import Factorisation

    return Factorisation(runtime, r)


register(Vendor("cusolver", OPERATION, _cusolver_supports, _pays_on_gpu, _start_cusolver))


def workspace_nbytes(vendor: Vendor, r: Routine) -> int:
    """Bytes of memory that the threads of a CPU need each; on a GPU, launches bring their own."""
    if vendor.name != "lapack":
        return 0
    from numus.runtime.cpu import lapack

    return lapack.workspace_nbytes(r)
