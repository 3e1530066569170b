"""cuBLAS and cuBLASLt matmuls: the problem that libraries are given, and when they pay.

A library reads matrices in memory and writes one. What numus would have fused (operands that are
expressions, the epilogue) becomes kernels of their own, which move `extra_bytes`: the library has
to make up for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus.kernels.vendor.registry import Vendor, register

MATMUL_BIAS = "contract and bias"  # an operation of its own: not every library has it


@dataclass(frozen=True)
class StridedMatrix:
    """An operand in its buffer, in elements; column-major where it is `transposed`."""

    offset: int
    batch_stride: int
    ld: int
    transposed: bool


@dataclass(frozen=True)
class GemmProblem:
    """batch × (m, k) times batch × (k, n). Buffers are those of A, of B, of the bias if there is
    one, and of the row-major result. The bias has an element per column, of the result's dtype,
    which is added before rounding."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str  # of both operands
    result: str
    a: StridedMatrix
    b: StridedMatrix
    extra_bytes: int  # moved because nothing is fused
    has_epilogue: bool = False  # that numus's own kernel would have fused
    tf32: bool = False  # float32 may be rounded to TF32
    bias: bool = False
    copies_operand: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class RelativeSpeed:
    """numus's speed, as a fraction of cuBLAS's, and the device's balance."""

    large: float
    small: float
    with_epilogue: float
    flops_per_byte: float


@dataclass(frozen=True, slots=True)
class VendorTuning:
    """Measured on one H200 (docs/results/cuda.md)."""

    expression_speed: float = 0.55  # of numus where an operand is loaded element by element
    large_extent: int = 2048  # of m, n and k: the whole device is busy for long
    vector: int = 8  # 16-bit elements of an aligned row: cuBLAS's fast kernels need them
    repack_extent: int = 1280  # of m and n, from which on numus repacks unaligned operands
    tile_extent: int = 64  # of m, n and k that fill numus's tiles
    small_k: int = 8  # bound by writing the result,
    small_k_extent: int = 32  # with m and n of this
    skinny_rows: int = 16  # bound by reading the matrix,
    matrix_elements: int = 1 << 22  # if it has so many,
    warp_k: int = 128  # and k to occupy a warp


SPEEDS = {
    "bfloat16": RelativeSpeed(0.88, 0.65, 0.69, 180.0),
    "float16": RelativeSpeed(0.88, 0.65, 0.69, 180.0),
    "float32": RelativeSpeed(0.86, 0.75, 0.80, 12.0),
    "tf32": RelativeSpeed(0.79, 0.42, 0.42, 90.0),
    "float64": RelativeSpeed(0.77, 0.70, 0.77, 15.0),
    "float8_e4m3fn": RelativeSpeed(0.71, 0.60, 0.60, 300.0),
    "complex64": RelativeSpeed(0.77, 0.65, 0.65, 12.0),
    "complex128": RelativeSpeed(0.52, 0.50, 0.50, 15.0),
}
TUNING = VendorTuning()
_FLOAT16 = ("bfloat16", "float16")


def _native_is_faster(p: GemmProblem) -> bool:
    """numus's own kernel wins whatever follows."""
    t, min_side, matrix = TUNING, min(p.m, p.n), max(p.m, p.n) * p.k
    if p.batch == 1 and min_side == 1:  # GEMV
        k_major = p.b.transposed if p.m == 1 else not p.a.transposed
        known = p.dtype in ("float32", "float64", *_FLOAT16) and not p.tf32
        return known and (k_major or matrix >= t.matrix_elements)
    if p.k <= t.small_k and min_side >= t.small_k_extent and p.dtype in ("float32", *_FLOAT16):
        return True
    if p.dtype == "float32" and not p.tf32:
        skinny = p.batch == 1 and min_side <= t.skinny_rows
        return skinny and matrix >= t.matrix_elements and p.k >= t.warp_k
    if p.dtype not in _FLOAT16:
        return False
    if p.k == 1:
        return True
    aligned = p.a.ld % t.vector == 0 and p.b.ld % t.vector == 0
    if aligned and p.n % t.vector == 0:
        return False
    return p.k >= t.tile_extent and min_side >= (t.tile_extent if aligned else t.repack_extent)


def is_faster(problem: GemmProblem, target: Any) -> bool:
    """The library makes up for the bytes it cannot save."""
    p = problem
    if _native_is_faster(p):
        return False
    speed = SPEEDS.get("tf32" if p.tf32 else p.dtype, RelativeSpeed(1.0, 1.0, 1.0, 1.0))
    alone = speed.large if min(p.m, p.n, p.k) > TUNING.large_extent else speed.small
    native = speed.with_epilogue * alone / speed.large if p.has_epilogue else alone
    if p.copies_operand and p.dtype not in _FLOAT16:
        native = min(native, TUNING.expression_speed)
    saved_flops = p.flops * (1 / native - 1)
    return saved_flops > p.extra_bytes * speed.flops_per_byte


def _cublaslt_supports(problem: GemmProblem, target: Any) -> bool:
    if "cublaslt" not in target.libraries:
        return False
    from numus.runtime.cuda import cublaslt  # imported late: only with such a device

    known = cublaslt.is_supported(problem, target) and cublaslt.library() is not None
    return known and cublaslt.has_algorithm(problem)


def _start_cublaslt(runtime: Any, problem: GemmProblem) -> Any:
    from numus.runtime.cuda.cublaslt import Matmul

    return Matmul(runtime, problem)


def _cublas_supports(problem: GemmProblem, target: Any) -> bool:
    if "cublas" not in target.libraries:
        return False
    from numus.runtime.cuda import cublas

    return cublas.is_supported(problem) and cublas.library() is not None


def _start_cublas(runtime: Any, problem: GemmProblem) -> Any:
    from numus.runtime.cuda.cublas import Gemv

    return Gemv(runtime, problem)


register(Vendor("cublaslt", "contract", _cublaslt_supports, is_faster, _start_cublaslt))
register(Vendor("cublaslt", MATMUL_BIAS, _cublaslt_supports, is_faster, _start_cublaslt))
register(Vendor("cublas", "contract", _cublas_supports, is_faster, _start_cublas))  # asked first
