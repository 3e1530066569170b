"""The problem that scatter schedules solve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE
from numus.compiler.lower.emitter import Emitter, Index
from numus.compiler.lower.schedule import Problem
from numus.ir import const
from numus.shapes import Shape, row_major

COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}  # mode -> operation


@dataclass(frozen=True)
class ScatterProblem(Problem):
    """Updates to rows of a base: inputs are the base, updates, and an index array per axis."""

    @property
    def axes(self) -> Shape:
        axes: Shape = self.val.params[0]
        return axes

    @property
    def mode(self) -> str:
        return str(self.val.params[1])

    @property
    def other_axes(self) -> list[int]:
        return [i for i in range(len(self.val.shape)) if i not in self.axes]

    @property
    def index_shape(self) -> Shape:
        return self.val.inputs[2].shape

    @property
    def count(self) -> int:
        """Updates."""
        return math.prod(self.index_shape)


def load_element(e: Emitter, val: Value, at: Index) -> Any:
    """An element of the result, as it is now."""
    address = e.address(val, at, row_major(val.shape))
    buffer = e.buffer(val, "write")
    if not val.dtype.is_complex:
        return ir.load(buffer, address)
    twice = ir.mul(address, const(2))
    return ir.load(buffer, twice), ir.load(buffer, ir.add(twice, ONE))
