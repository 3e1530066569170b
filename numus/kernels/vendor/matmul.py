"""Matrix products by vendors' libraries: what is asked of one, and when it pays.

A vendor's product reads plain matrices in memory and writes one. Whatever numus's own product would
have fused (operands that are expressions, the epilogue) is a kernel of its own then, which moves
bytes: `Product.extra` of them. The library has to make up for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus.kernels.vendor.registry import Vendor, register

BIASED = "contract and bias"  # an operation of its own: a library may know products alone


@dataclass(frozen=True)
class Matrix:
    """How an operand lies in its buffer, in elements: batches `step` apart, lines `line` apart.
    Lines are its rows, or its columns where it is `turned`."""

    offset: int
    step: int
    line: int
    turned: bool


@dataclass(frozen=True)
class Product:
    """batch × (m, k) times batch × (k, n). The buffers are the left operand's, the right one's,
    that of the bias if there is one, and the result's, which lies row by row. The bias is one
    number for each column, of the result's dtype, added before the sums are rounded."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str  # of both operands
    result: str
    left: Matrix
    right: Matrix
    extra: int  # bytes that are moved because the product is done by itself
    tail: bool = False  # whether something follows that numus's own product would have done
    rounds: bool = False  # whether float32 may be rounded to TF32
    bias: bool = False
    copies: bool = False  # whether an operand is laid out first

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


# For products of each dtype: how quick numus's own are beside cuBLAS's, large ones, small ones, and
# with something fused; and how many operations a device does in the time in which it moves a byte
# (measured on Hopper: docs/results/cuda.md).
_OWN: dict[str, tuple[float, float, float, float]] = {
    "bfloat16": (0.88, 0.65, 0.69, 180.0),
    "float16": (0.88, 0.65, 0.69, 180.0),
    "float32": (0.86, 0.75, 0.80, 12.0),
    "tf32": (0.79, 0.42, 0.42, 90.0),
    "float64": (0.77, 0.70, 0.77, 15.0),
    "float8_e4m3fn": (0.71, 0.60, 0.60, 300.0),
    "complex64": (0.77, 0.65, 0.65, 12.0),
    "complex128": (0.52, 0.50, 0.50, 15.0),
}
_READ_SINGLY = 0.55  # the same where numus reads an operand element by element
_LARGE = 2048  # rows, columns and depth of products that keep the whole device busy for long


_HALVES = ("bfloat16", "float16")
_RUN = 8  # of these: cuBLAS's quick kernels copy so many at a time, from everywhere to everywhere
_PACKED = 1280  # rows and columns from which on numus lays operands out in runs where they are not
_TILED = 64  # rows and columns with which its tiles are well filled
_SHALLOW, _FULL = 8, 32  # depth, and rows and columns: bound by writing the result
_FEW, _MATRIX = 16, 1 << 22  # rows, and numbers of the other operand: bound by reading that
_LINE = 128  # depth with which all threads of a warp have something to read


def _own_are_quicker(p: Product) -> bool:
    """Products that numus does in less time whatever follows (docs/results/cuda.md)."""
    least, matrix = min(p.m, p.n), max(p.m, p.n) * p.k
    if p.batch == 1 and least == 1:  # a matrix times a vector
        along = p.right.turned if p.m == 1 else not p.left.turned
        small = along and p.dtype in ("float32", "float64")
        known = p.dtype in ("float32", "float64", *_HALVES) and not p.rounds
        return known and (small or matrix >= _MATRIX)
    if p.k <= _SHALLOW and least >= _FULL and p.dtype in ("float32", *_HALVES):
        return True
    if p.dtype == "float32" and not p.rounds:
        return p.batch == 1 and least <= _FEW and matrix >= _MATRIX and p.k >= _LINE
    if p.dtype not in _HALVES:
        return False
    if p.k == 1:
        return True
    read = p.left.line % _RUN == 0 and p.right.line % _RUN == 0
    if read and p.n % _RUN == 0:
        return False
    return p.k >= _TILED and least >= (_TILED if read else _PACKED)


def quicker(product: Product, target: Any) -> bool:
    """Whether the library makes up for the bytes it can't save."""
    if _own_are_quicker(product):
        return False
    name = "tf32" if product.rounds else product.dtype
    large, small, fused, balance = _OWN.get(name, (1.0, 1.0, 1.0, 1.0))
    alone = large if min(product.m, product.n, product.k) > _LARGE else small
    own = fused * alone / large if product.tail else alone
    if product.copies and product.dtype not in _HALVES:
        own = min(own, _READ_SINGLY)
    saved = product.flops * (1 / own - 1)  # in the library's own operations
    return saved > product.extra * balance


def _takes(product: Product, target: Any) -> bool:
    if "cublaslt" not in target.libraries:
        return False
    from numus.runtime.cuda import cublaslt  # imported late: it is for those who have such a device

    known = cublaslt.is_supported(product, target) and cublaslt.library() is not None
    return known and cublaslt.has_algorithm(product)


def _start(runtime: Any, product: Product) -> Any:
    from numus.runtime.cuda.cublaslt import Matmul

    return Matmul(runtime, product)


def _takes_vector(product: Product, target: Any) -> bool:
    if "cublas" not in target.libraries:
        return False
    from numus.runtime.cuda import cublas

    return cublas.is_supported(product) and cublas.library() is not None


def _start_vector(runtime: Any, product: Product) -> Any:
    from numus.runtime.cuda.cublas import Gemv

    return Gemv(runtime, product)


register(Vendor("cublaslt", "contract", _takes, quicker, _start))
register(Vendor("cublaslt", BIASED, _takes, quicker, _start))
register(Vendor("cublas", "contract", _takes_vector, quicker, _start_vector))  # is asked first
