"""Right-looking LU of large matrices on GPUs: a kernel per panel, and one for all that is right of
it; at the end, rows of L move to where later panels left them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.factor.panels import panel_block, panel_grid, panel_memory
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.kernels.factor.panels import MAX_WIDTH, holds_panels, panel_width
from numus.kernels.factor.program import ONE, ZERO, Matrix, Number, Program, Read
from numus.kernels.factor.registers.lu_panel import PanelElimination, PanelGrid
from numus.kernels.factor.registers.lu_update import (
    GRID,
    HEIGHT,
    TAIL,
    WIDTH,
    PanelUpdate,
    Places,
    Step,
    UpperRows,
)

ROWS_MOVED = 64  # by a block, at the end
RESIDENT_BLOCKS = {4: 2, 8: 2, 16: 1}  # of updates on a multiprocessor, by bytes of a number


def runs_by_panels(p: Problem) -> bool:
    return p.val.op == "lu" and holds_panels(p.target, p.val.inputs[0].shape[1], p.val.dtype)


def lower_by_panels(p: Problem) -> Kernels:
    return _Factorisation(p).lower()


@dataclass(frozen=True)
class _Panel:
    """The first column, and how many there are."""

    number: int
    start: int
    width: int


class _Kernel:
    """A kernel under construction, whose sizes are arguments of their own: `numbers`, by name."""

    def __init__(self, p: Problem, numbers: dict[str, int], threads: int) -> None:
        self.val = p.val
        self.emitter = Emitter(p.layouts, block_size=threads)
        self.program = Program(dt.real_of(p.val.dtype), 2 if p.val.dtype.is_complex else 1, True)
        self.sizes = {name: self.emitter.scalar_arg(n) for name, n in numbers.items()}
        self.number = ir.var("g")

    def matrix(self, value: Value, start: Expr, pitch: Expr, access: str = "write") -> Matrix:
        p = self.program
        return Matrix(p, self.emitter.buffer(value, access), p.let(start), pitch)

    def scratch(self, name: str, rows: int, pitch: int) -> Matrix:
        p = self.program
        made = ir.Buffer(name, p.real, "scratch", const(rows * pitch * p.components))
        self.emitter.scratch.append(made)
        return Matrix(p, made, ZERO, const(pitch))


class _Factorisation:
    def __init__(self, p: Problem) -> None:
        self.p, self.val = p, p.val
        self.batch, self.m, self.n = p.val.inputs[0].shape
        self.width = panel_width(p.target, self.m, MAX_WIDTH, p.val.dtype)
        self.pitch = self.width + TAIL
        ends = range(0, min(self.m, self.n), self.width)
        last = min(self.m, self.n)
        self.steps = [_Panel(i, x, min(self.width, last - x)) for i, x in enumerate(ends)]
        real, size = dt.real_of(p.val.dtype), 2 if p.val.dtype.is_complex else 1

        def memory(count: int, dtype: DType) -> Value:
            return Value.fresh("workspace", "barrier", (), None, (count,), dtype)

        # what is left of the matrix, before a step and after it
        self.work = memory(2 * self.batch * self.m * self.n * size, real)
        count = len(self.steps)
        self.panels = memory(self.batch * count * self.m * self.pitch * size, real)
        self.places = memory(self.batch * count * self.m, dt.int32)
        self.final = memory(self.batch * self.m, dt.int32)
        self.made: dict[object, LoweredKernel] = {}

    def lower(self) -> Kernels:
        kernels: Kernels = []
        for panel in self.steps:
            kernels.append(self._panel(panel))
            if panel.start + panel.width < self.n:
                kernels.append(self._upper(panel))
            kernels.append(self._update(panel))
        return [*kernels, self._move_rows()]

    # -- kernels of a step ------------------------------------------------------------------------

    def _again(
        self, key: object, numbers: dict[str, int], grid: int, make: Callable[[], LoweredKernel]
    ) -> LoweredKernel:
        """A kernel, made once; others differ from it in their numbers alone."""
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = make()
            return found
        first = len(found.scalars) - len(numbers) - 1
        scalars = [*found.scalars[:first], *numbers.values(), grid]
        return replace(found, scalars=scalars, grid=grid)

    def _numbers(self, panel: _Panel) -> dict[str, int]:
        """Of a step, in elements."""
        size = self.batch * self.m * self.n
        after = panel.start + panel.width
        return {
            "start": panel.start,
            "width": panel.width,
            "rows": self.m - after,
            "columns": self.n - after,
            "row_tiles": max(1, -(-(self.m - after) // HEIGHT)),
            "column_tiles": max(1, -(-(self.n - after) // WIDTH)),
            "m": self.m,
            "n": self.n,
            "steps": len(self.steps),
            "number": panel.number,
            "is_last": int(panel.number == len(self.steps) - 1),
            "from": panel.number % 2 * size,
            "to": (panel.number + 1) % 2 * size,
        }

    def _source(self, k: _Kernel, matrix: Expr, is_first: bool) -> Read:
        """Elements of what is left of the matrix before a step."""
        x, s = self.val.inputs[0], k.sizes
        if not is_first:
            start = ir.add(s["from"], ir.mul(matrix, ir.mul(s["m"], s["n"])))
            left = k.matrix(self.work, start, s["n"])
            return lambda i, j: left[i, j]

        def element(i: Expr, j: Expr) -> Number:
            found = k.emitter.value(x, (matrix, i, j))
            return found if x.dtype.is_complex else (found,)

        return element

    def _panel_memory(self, k: _Kernel, matrix: Expr, number: Expr) -> Matrix:
        s = k.sizes
        first = ir.mul(ir.add(ir.mul(matrix, s["steps"]), number), s["m"])
        return k.matrix(self.panels, ir.mul(first, const(self.pitch)), const(self.pitch))

    def _panel(self, panel: _Panel) -> LoweredKernel:
        rows = self.m - panel.start
        grid = panel_grid(self.p.target, self.batch, rows, self.width, self.val.dtype)
        assert grid is not None
        numbers, is_first = self._numbers(panel), panel.number == 0
        key = ("panel", is_first, grid)
        return self._again(
            key, numbers, self.batch * grid.ctas, lambda: self._made_panel(grid, numbers, is_first)
        )

    def _made_panel(
        self, grid: PanelGrid, numbers: dict[str, int], is_first: bool
    ) -> LoweredKernel:
        k = _Kernel(self.p, numbers, grid.threads)
        p, s = k.program, k.sizes
        matrix, rank = panel_block(k.emitter, p, grid, k.number)
        a, start = self._source(k, matrix, is_first), s["start"]
        extents = p.let(ir.sub(s["m"], start)), s["width"]
        found = PanelElimination(p, grid, rank, extents, panel_memory(k.emitter, p, grid))
        found.load(lambda i, j: a(ir.add(start, i), ir.add(start, j)))
        out = self._panel_memory(k, matrix, s["number"])
        found.eliminate()
        found.write(out, const(self.width))
        blocks = self.batch * grid.ctas
        return k.emitter.grid_kernel("lu_panel", k.number, p.body, blocks, (self.val.op,))

    def _update(self, panel: _Panel) -> LoweredKernel:
        numbers = self._numbers(panel)
        is_first = panel.number == 0
        grid = self.batch * numbers["row_tiles"] * numbers["column_tiles"]
        make = lambda: self._made_update(numbers, grid, is_first)  # noqa: E731
        return self._again(("update", is_first), numbers, grid, make)

    def _upper(self, panel: _Panel) -> LoweredKernel:
        numbers, is_first = self._numbers(panel), panel.number == 0
        grid = self.batch * numbers["column_tiles"]
        make = lambda: self._made_upper(numbers, grid, is_first)  # noqa: E731
        return self._again(("upper", is_first), numbers, grid, make)

    def _made_upper(self, numbers: dict[str, int], grid: int, is_first: bool) -> LoweredKernel:
        k = _Kernel(self.p, numbers, GRID.threads)
        k.emitter.resident_blocks = 1
        p, s, limit = k.program, k.sizes, self.width
        matrix, j = (p.let(f(k.number, s["column_tiles"])) for f in (ir.idiv, ir.irem))
        step, element, out = self._right_of_panel(k, matrix, is_first)
        panel = self._panel_memory(k, matrix, s["number"])
        shared = k.scratch("upper", limit, WIDTH), k.scratch("corner", limit, limit)
        UpperRows(p, step, panel, limit).run(j, element, out, *shared)
        return k.emitter.grid_kernel("lu_upper", k.number, p.body, grid, (self.val.op,))

    def _right_of_panel(
        self, k: _Kernel, matrix: Expr, is_first: bool
    ) -> tuple[Step, Read, Matrix]:
        """What is right of a panel, and the result."""
        s, is_last = k.sizes, k.sizes["is_last"].eq(ONE)
        step = Step(s["start"], s["width"], s["rows"], s["columns"], s["n"], is_last)
        a, pitch = self._source(k, matrix, is_first), ir.add(s["n"], const(2))
        out = k.matrix(self.val, ir.mul(ir.mul(matrix, s["m"]), pitch), pitch)
        return step, lambda x, y: a(ir.add(step.start, x), ir.add(step.after, y)), out

    def _made_update(self, numbers: dict[str, int], grid: int, is_first: bool) -> LoweredKernel:
        k = _Kernel(self.p, numbers, GRID.threads)
        k.emitter.resident_blocks = RESIDENT_BLOCKS[self.val.dtype.itemsize]
        p, s, limit = k.program, k.sizes, self.width
        tiles = p.let(ir.mul(s["row_tiles"], s["column_tiles"]))
        matrix, tile = p.let(ir.idiv(k.number, tiles)), p.let(ir.irem(k.number, tiles))
        i, j = p.let(ir.idiv(tile, s["column_tiles"])), p.let(ir.irem(tile, s["column_tiles"]))
        step, element, out = self._right_of_panel(k, matrix, is_first)
        origin = ir.add(s["to"], ir.mul(matrix, ir.mul(s["m"], s["n"])))
        corner = ir.add(ir.mul(step.start, s["n"]), step.after)
        to = k.matrix(self.work, ir.add(origin, corner), s["n"])
        rows = ir.mul(matrix, s["m"])
        step_rows = p.let(ir.mul(ir.add(ir.mul(matrix, s["steps"]), s["number"]), s["m"]))
        after = p.let(ir.add(step_rows, step.start))
        before = None if is_first else p.let(ir.sub(after, s["m"]))
        buffers = (k.emitter.buffer(x, "write") for x in (self.places, self.final))
        places = Places(next(buffers), before, after, next(buffers), p.let(rows))
        panel = self._panel_memory(k, matrix, s["number"])
        shared = k.scratch("left", HEIGHT, limit + TAIL), k.scratch("upper", limit, WIDTH)
        PanelUpdate(p, step, panel, limit, shared).run(i, j, element, to, out, places)
        return k.emitter.grid_kernel("lu_update", k.number, p.body, grid, (self.val.op,))

    # -- the end ----------------------------------------------------------------------------------

    def _move_rows(self) -> LoweredKernel:
        """Rows of all panels to the result."""
        tiles = -(-self.m // ROWS_MOVED)
        numbers = {"m": self.m, "n": self.n, "steps": len(self.steps), "tiles": tiles}
        k = _Kernel(self.p, numbers, self.p.target.block_size)
        p, s = k.program, k.sizes
        first, tile = p.let(ir.idiv(k.number, s["tiles"])), p.let(ir.irem(k.number, s["tiles"]))
        matrix, step = p.let(ir.idiv(first, s["steps"])), p.let(ir.irem(first, s["steps"]))
        panel = self._panel_memory(k, matrix, step)
        out_pitch = ir.add(s["n"], const(2))
        out = k.matrix(self.val, ir.mul(ir.mul(matrix, s["m"]), out_pitch), out_pitch)
        places, final = (k.emitter.buffer(x) for x in (self.places, self.final))
        start = p.let(ir.mul(step, const(self.width)))
        count = p.let(ir.minimum(const(self.width), ir.sub(ir.minimum(s["m"], s["n"]), start)))
        left = p.let(ir.sub(ir.sub(s["m"], start), ir.mul(tile, const(ROWS_MOVED))))
        rows = p.let(ir.maximum(ir.minimum(const(ROWS_MOVED), left), ZERO))
        at = p.let(ir.add(ir.mul(first, s["m"]), start))
        with p.lanes(ZERO, p.let(ir.mul(rows, const(self.width)))) as e:
            x, c = p.let(ir.idiv(e, const(self.width))), p.let(ir.irem(e, const(self.width)))
            row = p.let(ir.add(ir.mul(tile, const(ROWS_MOVED)), x))
            number = p.let(ir.load(places, ir.add(at, row)).cast(ir.INDEX))
            place = ir.load(final, ir.add(ir.mul(matrix, s["m"]), number)).cast(ir.INDEX)
            with p.when(p.let(c < count)):
                out[p.let(place), ir.add(start, c)] = panel[row, c]
        grid = self.batch * len(self.steps) * tiles
        return k.emitter.grid_kernel("lu_rows", k.number, p.body, grid, (self.val.op,))
