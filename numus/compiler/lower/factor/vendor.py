"""Routines of vendors' libraries: operands contiguous in memory, a task per matrix of the batch."""

from __future__ import annotations

from dataclasses import replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Kernels, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.schedule import Problem
from numus.errors import DeviceError
from numus.kernels.vendor.lapack import OPERATION, workspace_nbytes
from numus.kernels.vendor.registry import supporting_vendor
from numus.runtime.lapack_routines import described
from numus.shapes import row_major


def lower_routine(p: Problem) -> Kernels:
    val = p.val
    name, option = val.params
    problem = described(name, option, *val.inputs)
    triangular = _strided(val.inputs[0], p) if name == "solve" and not p.target.simt else None
    if triangular is not None:
        problem = replace(problem, layout=triangular[1])
    vendor = supporting_vendor(OPERATION, problem, p.target)
    if vendor is None:
        raise DeviceError(
            f"linalg: no library has {name!r} of {val.inputs[0].dtype.name} on {p.target.name}; "
            "call the function anew where it runs"
        )
    steps: Kernels = []

    def contiguous(x: Value) -> Value:
        view = strided_view(x, p.layouts)
        if view is not None and view.offset == 0 and view.strides == row_major(x.shape):
            return view.base
        made = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
        steps.extend(
            lower_loops(FusionGroup.of_stored(made, p.group.position), p.layouts, p.target)
        )
        return made

    values = [*map(contiguous, val.inputs[triangular is not None :]), val]
    if triangular is not None:
        values.insert(0, triangular[0])
    access = ["read"] * len(val.inputs) + ["write"]
    buffers = [
        ir.Buffer(f"b{i}", dt.real_of(v.dtype), how)
        for i, (v, how) in enumerate(zip(values, access, strict=True))
    ]
    nbytes = workspace_nbytes(vendor, problem)
    scratch = [nbytes] if nbytes else []
    buffers += [ir.Buffer("work", dt.uint8, "scratch", ir.const(n)) for n in scratch]
    notes = (f"{vendor.name} {name}",)
    kernel = ir.Kernel(vendor.name, tuple(buffers), (), [], notes, vendor=vendor, problem=problem)
    grid = 1 if p.target.simt else problem.batch
    return [*steps, LoweredKernel(kernel, values, [], grid, scratch)]


def _strided(x: Value, p: Problem) -> tuple[Value, tuple[int, int, int, bool]] | None:
    """The value in whose memory matrices are row-major or column-major, and their layout there."""
    view = strided_view(x, p.layouts)
    if view is None or view.offset < 0 or view.strides[0] < 0:
        return None
    (_, rows, columns), (matrix, row, column) = x.shape, view.strides
    if column == 1 and row >= columns:
        return view.base, (view.offset, matrix, row, False)
    if row == 1 and column >= rows:
        return view.base, (view.offset, matrix, column, True)
    return None
