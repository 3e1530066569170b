"""Operands, sizes and epilogue of GPU matmuls: layouts in memory, and the loaders of kernels.

Axis 1 is m of A, axis 2 is n of B: `axis` says which operand it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph import strided_view
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.problem import MatmulProblem, store_epilogue
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.kernels.matmul.gpu import problem as kernel
from numus.kernels.matmul.gpu.epilogue_vectors import STORE_VECTOR
from numus.kernels.matmul.gpu.mainloop import SplitKSizes, StagedOperand
from numus.kernels.matmul.gpu.problem import Operand, OperandT, SizesT, TileT, VectorOperand
from numus.kernels.matmul.gpu.wgmma import swizzle_m
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)

Layouts = dict[Value, Shape]

MAX_COPY_LD = 1 << 31  # elements: asynchronous copies compute offsets in 32 bits


def gemm_call(
    e: Emitter, group: FusionGroup, tile: TileT, sizes: SizesT, dtype: DType, ab: Iterable[OperandT]
) -> kernel.GemmCall[TileT, SizesT, OperandT]:
    a, b = ab

    def epilogue(*at_and_value: Expr) -> list[ir.Stmt]:
        *at, value = at_and_value
        return store_epilogue(e, group, at, value.cast(group.members[0].dtype))

    alone, aligned = len(group.members) == 1, aligned_dims(e)
    return kernel.GemmCall(tile, sizes, dtype, a, b, epilogue, alone, aligned)


def aligned_dims(e: Emitter) -> Callable[[ir.Expr], bool]:
    """Whether a launch argument is a size or stride of whole vectors."""

    def is_aligned(argument: ir.Expr) -> bool:
        return any(found is argument and n % STORE_VECTOR == 0 for n, found in e.dims)

    return is_aligned


def split_k_sizes(
    e: Emitter, problem: MatmulProblem, tile: tuple[int, int], tile_k: int, split_k: int
) -> tuple[SplitKSizes, int]:
    """Launch arguments, and the number of blocks."""
    p = problem
    return tile_sizes(e, p.target, (p.batch, p.m, p.n, p.k), tile, tile_k, split_k)


def tile_sizes(
    e: Emitter,
    target: Target,
    shape: tuple[int, int, int, int],
    tile: tuple[int, int],
    tile_k: int,
    split_k: int = 1,
    sharing: int = 1,
) -> tuple[SplitKSizes, int]:
    """Those of a GEMM of batch, m, n and k, in clusters of `sharing` blocks."""
    batch, m, n, k = shape
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    k_tiles = -(-k // tile_k)
    band = swizzle_m(target, tile[1], tiles_m, sharing)
    counts = (tiles_m, tiles_n, band, split_k, -(-k_tiles // split_k))
    sizes = SplitKSizes(*(e.dim(x) for x in (m, n, k)), *(e.scalar_arg(x) for x in counts))
    if split_k == 1:
        sizes.split_k = const(1)
    return sizes, batch * split_k * tiles_m * tiles_n


def contiguous_along(x: Value, layouts: Layouts, axis: int, other: int | None = None) -> bool:
    """Most of an operand's loads are contiguous along this axis, rather than along the other one
    (of a batched matrix: its second)."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
    e.value(x, tuple(names))
    loads = accesses(e)
    other_name = names[3 - axis if other is None else other]
    return unit_stride_count(loads, names[axis]) >= unit_stride_count(loads, other_name)


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """An operand in memory; strides in elements."""

    k_major: bool
    ld: int
    batch_stride: int

    def is_vector_aligned(self, dtype: DType) -> bool:
        """Rows begin at multiples of 16 bytes, if the buffer does."""
        vector = 16 // dtype.itemsize
        return not self.ld % vector and not self.batch_stride % vector


def matrix_layout(x: Value, layouts: Layouts, axis: int) -> MatrixLayout | None:
    """None of an expression, a view with an offset, or one with no unit stride."""
    found = strided_view.strided_view(x, layouts)
    if found is None or found.offset:
        return None
    batch, *strides = (0 if n == 1 else s for n, s in zip(x.shape, found.strides, strict=True))
    k, mn = strides[2 - axis], strides[axis - 1]
    if k == 1:
        return MatrixLayout(True, mn, batch)
    return MatrixLayout(False, k, batch) if mn == 1 else None


def layouts(problem: MatmulProblem) -> list[MatrixLayout | None]:
    """Of A and B."""
    known = problem.input_layouts
    return [matrix_layout(x, known, axis) for axis, x in enumerate(problem.matmul.inputs, 1)]


def is_async_copyable(layout: MatrixLayout | None, target: Target) -> bool:
    return layout is not None and target.async_copy and abs(layout.ld) < MAX_COPY_LD


class _Reader:
    """An operand's elements and addresses as functions of (batch, mn, k)."""

    def __init__(self, e: Emitter, x: Value, axis: int, dtype: DType | None = None) -> None:
        self.e, self.x, self.axis, self.dtype = e, x, axis, dtype
        self.extent = e.dim(x.shape[axis])

    def element(self, batch: Expr, mn: Expr, k: Expr, mask: Expr | None = None) -> Expr:
        index = (mn, k) if self.axis == 1 else (k, mn)
        batch = batch if self.x.shape[0] > 1 else ZERO
        value: Expr = self.e.value(self.x, (batch, *index), mask)
        return value

    def read(self, batch: Expr, mn: Expr, k: Expr, mask: Expr | None = None) -> Expr:
        value = self.element(batch, mn, k, mask)
        return value if self.dtype is None else value.cast(self.dtype)

    def address(self, batch: Expr, mn: Expr, k: Expr) -> tuple[ir.Buffer, Expr]:
        found = self.element(batch, mn, k)
        return found.attr, found.args[0]

    def aligned(self, nbytes: int) -> Expr:
        buffer, _ = self.address(ZERO, ZERO, ZERO)
        return (ir.address(buffer) & const(nbytes - 1)).eq(0)


def register_operand(e: Emitter, x: Value, axis: int, dtype: DType) -> Operand:
    """An operand that goes through registers to shared memory, in the dtype of the computation."""
    reader = _Reader(e, x, axis, dtype)
    return Operand(reader.read, reader.extent, contiguous_along(x, e.layouts, 3 - axis))


def staged_operand(
    e: Emitter, x: Value, axis: int, target: Target, mn_major: bool
) -> StagedOperand:
    """An operand staged in shared memory in its own order, or always `mn_major`: copied
    asynchronously from memory if possible, else evaluated."""
    reader = _Reader(e, x, axis)
    layout = matrix_layout(x, e.layouts, axis)
    aligned = layout is not None and layout.is_vector_aligned(x.dtype)
    k_major = contiguous_along(x, e.layouts, 3 - axis) if layout is None else layout.k_major
    copyable = is_async_copyable(layout, target)
    if x.dtype.itemsize < 4:  # the elements of a word are contiguous along k
        copyable = copyable and k_major and aligned
        k_major = True
    smem_k_major = k_major and not mn_major
    if layout is None or not copyable:
        return StagedOperand(reader.read, reader.extent, smem_k_major, None, const(False, dt.bool_))
    condition = reader.aligned(16) & const(aligned, dt.bool_)
    at = (reader.read, reader.extent, smem_k_major, reader.address, condition, e.dim(layout.ld))
    return StagedOperand(*at, transposed=k_major and mn_major)


def vector_operand(e: Emitter, x: Value, axis: int, dtype: DType, max_vector: int) -> VectorOperand:
    """An operand that threads load into registers, as vectors of up to `max_vector` elements."""
    reader = _Reader(e, x, axis, dtype)
    layout = matrix_layout(x, e.layouts, axis)
    k_major = contiguous_along(x, e.layouts, 3 - axis) if layout is None else layout.k_major
    elements = VectorOperand(reader.read, reader.extent, k_major, dtype)
    if layout is None or x.dtype.kind == "bool":
        return elements
    vector = min(max_vector, kernel.MAX_ACCESS_BYTES // x.dtype.itemsize)
    row = x.shape[3 - axis] if k_major else x.shape[axis]
    while vector > 1 and (layout.ld % vector or layout.batch_stride % vector or row % vector):
        vector //= 2
    if vector == 1:
        return elements
    aligned = reader.aligned(vector * x.dtype.itemsize)
    return replace(elements, address=reader.address, vector=vector, aligned=aligned)
