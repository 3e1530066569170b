"""Products of a matrix and a few vectors, where lanes are threads: which are such, and how they
read."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.cpu import in_pieces
from numus.compiler.lower.matmul.gpu_operands import along, finish
from numus.compiler.lower.matmul.gpu_vectors import operand
from numus.compiler.lower.matmul.mma_sync import fits_warps, unit_dtype
from numus.compiler.lower.matmul.wgmma import fits_tiles
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.matmul.gpu import gemv as gemv_kernel
from numus.kernels.matmul.gpu import gemv_mma_sync as units
from numus.kernels.matmul.gpu.problem import GroupWork
from numus.kernels.matmul.gpu.vector_loads import ACCESS, Operand
from numus.shapes import Shape
from numus.target import Target

LINE = 512  # bytes along k that a warp reads at a time: of less, most of its threads have nothing
LEAST = 64  # lines of the matrix, and depth, below which there is nothing to wait for


def fits_thin(product: Value, layouts: dict[Value, Shape], target: Target) -> bool:
    """Whether one side has few lines, and threads of the target exchange what they have. A single
    vector and a matrix that lies along k are rows that are added up (`loops/`)."""
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    if not (target.subgroup_size and target.vector_access_bytes) or product.dtype is dt.bool_:
        return False
    if max(m, n, k) < LEAST or product.dtype.is_complex:
        return False
    if by_units(product, target):
        return True
    if fits_tiles(product, layouts, target) or fits_warps(product, target):
        return False
    most = units.LEAST - 1 if _for_units(product, target) else gemv_kernel.FEW
    if min(m, n) > most:
        return False
    matrix = product.inputs[_matrix(product) - 1]
    return not _along(product, layouts) or (min(m, n) > 1 and k * matrix.dtype.itemsize >= LINE)


def by_units(product: Value, target: Target) -> bool:
    """Whether units multiply the vectors, of which there are more than a few."""
    _, m, n = product.shape
    few = units.LEAST <= min(m, n) <= units.MOST
    large = max(m, n) >= LEAST and 2 * product.inputs[0].shape[2] >= LINE
    return few and large and _for_units(product, target)


def _for_units(product: Value, target: Target) -> bool:
    """Whether there are units for such a product of 16-bit floats."""
    half = unit_dtype(product)
    if half is None or half.itemsize != 2:
        return False
    return half.name in target.mma


def _along(product: Value, layouts: dict[Value, Shape]) -> bool:
    """Whether neighbours of the matrix lie along k."""
    line = _matrix(product)
    return along(product.inputs[line - 1], layouts, 3 - line)


def _matrix(product: Value) -> int:
    """Which operand the matrix is: 1, the left one, whose lines are along axis 1; or 2."""
    _, m, n = product.shape
    return 1 if m > n else 2


def lower_thin(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """The matrix is read once; pieces where there are too few groups for all units."""
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    if by_units(product, target):
        plan = _unit_schedule(product, layouts, target)
        pieces, lower = units.pieces_of(target, plan, batch, max(m, n), k), _unit_dots
    else:
        schedule = _schedule(product, layouts, target)
        pieces, lower = gemv_kernel.pieces_of(target, schedule, batch, max(m, n), k), _dots
    while pieces > 1 and k % (units.RUN * pieces):  # equal pieces can be read in runs
        pieces -= 1
    if pieces > 1:
        return in_pieces(group, layouts, target, pieces, lower)
    return lower(group, layouts, target)


def _schedule(product: Value, layouts: dict[Value, Shape], target: Target) -> gemv_kernel.Schedule:
    batch, m, n = product.shape
    matrix = product.inputs[_matrix(product) - 1]
    k = product.inputs[0].shape[2]
    by_k = _along(product, layouts)
    return gemv_kernel.choose(target, matrix.dtype.itemsize, by_k, batch, max(m, n), min(m, n), k)


def _unit_schedule(product: Value, layouts: dict[Value, Shape], target: Target) -> units.Schedule:
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    return units.choose(target, _along(product, layouts), batch, max(m, n), min(m, n), k)


class _Thin:
    """A product of a matrix and vectors, as kernels read and store it."""

    def __init__(
        self, group: FusionGroup, layouts: dict[Value, Shape], threads: int, strip: int
    ) -> None:
        self.group, self.product = group, group.members[0]
        self.layouts = group.input_layouts(layouts)
        self.line = _matrix(self.product)
        self.batch, m, n = self.product.shape
        self.k = self.product.inputs[0].shape[2]
        self.e = Emitter(self.layouts, block_size=threads)
        self.groups = -(-max(m, n) // strip)
        few, many, depth = (self.e.dim(x) for x in (min(m, n), max(m, n), self.k))
        self.sizes = gemv_kernel.Sizes(few, many, depth, self.e.scalar_arg(self.groups))

    def side(self, at: int, dtype: DType, most: int = ACCESS) -> Operand:
        """An operand whose lines are along axis `at`, in runs of so many at most."""
        x = self.product.inputs[at - 1]
        return operand(self.e, x, at, self.layouts, dtype, self.batch > 1, most)

    def store(self, t: Expr, vector: Expr, i: Expr, value: Expr) -> list[Stmt]:
        at = (i, vector) if self.line == 1 else (vector, i)
        return finish(self.e, self.group, t, *at, value)

    def step(
        self, name: str, g: Expr, kernel: tuple[list[Stmt], list[ir.Buffer]]
    ) -> list[LoweredKernel]:
        body, self.e.scratch = kernel
        return [self.e.grid_kernel(name, g, body, self.batch * self.groups, self.group.notes)]


def _dots(group: FusionGroup, layouts: dict[Value, Shape], target: Target) -> list[LoweredKernel]:
    product = group.members[0]
    schedule = _schedule(product, layouts, target)
    thin = _Thin(group, layouts, schedule.threads, schedule.strip)
    dtype = dt.compute_dtype(product.dtype)
    matrix = thin.side(thin.line, dtype, ACCESS if schedule.along else schedule.lines)
    vectors = thin.side(3 - thin.line, dtype)
    if not schedule.along and matrix.run < schedule.lines:
        matrix.place = None  # runs are read whole, or not at all
    light = len(group.members) == 1
    g = ir.var("g")
    work = GroupWork(schedule, thin.sizes, dtype, matrix, vectors, thin.store, light)
    return thin.step("group_dots", g, gemv_kernel.dots(work, g))


def _unit_dots(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    product = group.members[0]
    schedule = _unit_schedule(product, layouts, target)
    thin = _Thin(group, layouts, schedule.threads, schedule.lines)
    dtype = product.inputs[0].dtype
    matrix, vectors = thin.side(thin.line, dtype), thin.side(3 - thin.line, dtype)
    if matrix.run < units.RUN or (not schedule.along and thin.k % units.QUAD):
        matrix.place = None
    light = len(group.members) == 1
    g = ir.var("g")
    work = GroupWork(schedule, thin.sizes, dtype, matrix, vectors, thin.store, light)
    return thin.step("warp_dots", g, units.dots(work, g))
