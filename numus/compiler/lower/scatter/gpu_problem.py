"""The problem that GPU scatter schedules solve: destinations of some columns each."""

from __future__ import annotations

import math

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ZERO, delinearize
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.scatter.problem import ScatterProblem
from numus.ir import Expr, const, select

MAX_COMPARED = 8  # updates that every element looks at
MIN_TABLE_COLUMNS = 16  # worth a kernel that searches once per destination; measured on one H200


class GpuScatterProblem(ScatterProblem):
    @property
    def destination_count(self) -> int:
        """Rows of the result: index tuples."""
        return math.prod(self.val.shape[a] for a in self.axes)

    @property
    def columns(self) -> int:
        """Elements of a destination."""
        return math.prod(self.val.shape[k] for k in self.other_axes)

    @property
    def compares(self) -> bool:
        """Updates are so few that they need no order."""
        return 0 < self.count <= MAX_COMPARED

    def index(self, e: Emitter, destination: Expr, column: Expr) -> tuple[Expr, ...]:
        """The index of a destination's element in the result."""
        shape, axes, rest = self.val.shape, self.axes, self.other_axes
        at_axes = delinearize(e, destination, [shape[a] for a in axes])
        at_rest = delinearize(e, column, [shape[a] for a in rest])
        at = dict(zip((*axes, *rest), (*at_axes, *at_rest), strict=True))
        return tuple(at[k] for k in range(len(shape)))


def linear_destination(e: Emitter, problem: GpuScatterProblem, at: tuple[Expr, ...]) -> Expr:
    """The number of the destination of update `at`; past the end where it is out of bounds."""
    val = problem.val
    number: Expr = ZERO
    in_bounds: Expr = const(True, dt.bool_)
    for indices, axis in zip(val.inputs[2:], problem.axes, strict=True):
        index = e.value(indices, at).cast(dt.int64)
        extent = e.dim(val.shape[axis])
        in_bounds = in_bounds & (index >= 0) & (index < extent)
        number = ir.add(ir.mul(number, extent), index)
    return select(in_bounds, number, e.dim(problem.destination_count))
