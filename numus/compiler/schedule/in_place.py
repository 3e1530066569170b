"""In-place results: buffers of inputs that die in a kernel and may hold its outputs.

An output may alias an input where every element is read only to compute the element that replaces
it. That holds for elementwise kernels over contiguous memory, for kernels of rows in registers, and
for the epilogues of kernels that store each element once (`Kernel.stores_once`).
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.compiler.graph.cost_model import nbytes
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.schedule.tuning import TUNING


def in_place_pairs(
    step: LoweredKernel,
    stored: set[Value],
    external: set[Value],
    accesses_of: Callable[[ir.Kernel], BufferAccesses],
) -> list[tuple[Value, Value]]:
    """Pairs (output, input) of temporaries that may share memory. `external` values live outside of
    the arena; `stored` are the results of the kernel's group."""
    pairs = list(zip(step.kernel.buffers, step.buffers, strict=False))  # scratch comes after them
    large = [
        (at, buffer.access, v)
        for at, (buffer, v) in enumerate(pairs)
        if v not in external and nbytes(v) >= TUNING.in_place_min_bytes
    ]
    outputs = [(at, v) for at, access, v in large if access == "write"]
    inputs = [(at, v) for at, access, v in large if access == "read"]
    if not any(x.size == v.size for _, v in outputs for _, x in inputs):
        return []
    accesses = accesses_of(step.kernel)
    once = step.kernel.stores_once
    return [
        (v, x)
        for target, v in outputs
        for source, x in inputs
        if x.size == v.size and accesses.may_overwrite(source, target, once and v in stored)
    ]


class BufferAccesses:
    """Loads and stores of a kernel's buffers, collected in one traversal."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.stores: dict[ir.Buffer, list[ir.Store]] = {}
        self.loads: dict[ir.Buffer, set[ir.Expr]] = {}
        self.control: set[ir.Buffer] = set()  # read by loop bounds, conditions and registers
        self.lanes: set[ir.Expr] = set()  # variables of loops over elements
        self.lets: dict[ir.Expr, ir.Expr] = {}
        values: set[ir.Expr] = set()
        others: set[ir.Expr] = set()
        for s in ir.statements(kernel.body):
            if isinstance(s, ir.For) and s.kind == "lanes":
                self.lanes.add(s.var)
            if isinstance(s, ir.Store):
                self.stores.setdefault(s.buffer, []).append(s)
            if isinstance(s, ir.Let):
                self.lets[s.var] = s.value
            if isinstance(s, (ir.Let, ir.Store)):
                for e in ir.post_order(ir.expressions_of(s), values):
                    if e.op == "load":
                        self.loads.setdefault(e.attr, set()).add(e)
            else:
                found = ir.post_order(ir.expressions_of(s), others)
                self.control.update(e.attr for e in found if e.op == "load")
        self._operand_loads: dict[ir.Store, list[ir.Expr]] = {}

    def may_overwrite(self, source: int, target: int, stores_once: bool = False) -> bool:
        """The buffer at `target` may be the one at `source`. `stores_once`: the schedule stores
        each element of its results a single time."""
        read, written = self.kernel.buffers[source], self.kernel.buffers[target]
        if read.dtype is not written.dtype:
            return False
        if self._keeps_rows(read, written):
            return True
        if read in self.control:
            return False
        if self.kernel.block_size:
            stores_once = False  # but by threads that wait for each other
        stores, loads = self.stores.get(written), self.loads.get(read)
        if not stores or not loads:
            return False
        if not stores_once and not (len(stores) == 1 and self._is_elementwise(stores[0])):
            return False
        used = [(e, s) for s in stores for e in self._loads_of(s) if e.attr is read]
        return all(e.args[0] is s.index for e, s in used) and loads <= {e for e, _ in used}

    def _keeps_rows(self, read: ir.Buffer, written: ir.Buffer) -> bool:
        """Each block has a row in registers (`For.resident`): each thread writes the elements that
        it alone has read, of both buffers at the same indices."""
        body, stores = self.kernel.body, self.stores.get(written, [])
        grid = next((s for s in body if isinstance(s, ir.For)), None)
        inner = list(ir.statements(body))
        loops = [s for s in inner if isinstance(s, ir.For) and s.resident]
        if grid is None or len(stores) != 1 or len({(s.unroll, s.width) for s in loops}) != 1:
            return False
        if any(isinstance(s, ir.AsyncCopy) for s in inner):
            return False
        found: set[ir.Expr] = set()
        stored = False
        for loop in loops:
            own = {e for e in ir.loads(loop.body) if e.attr is read}
            if not all(_is_in_row(e.args[0], grid.var, loop) for e in own):
                return False
            found |= own
            if stores[0] in loop.body:
                stored = _is_in_row(stores[0].index, grid.var, loop)
        everywhere = {e for e in ir.loads(body) if e.attr is read}
        return stored and bool(found) and everywhere <= found

    def _is_elementwise(self, store: ir.Store) -> bool:
        if _nesting(self.kernel.body) != ["grid", "lanes"]:
            return False
        if store.index in self.lanes:
            return True
        # or a block's first element, a constant distance from that of the block before, and a lane
        whole, parts = self.kernel.body[0], store.index.args
        assert isinstance(whole, ir.For)
        starts = [x for x in parts if x not in self.lanes]
        return (
            store.index.op == "add"
            and len(starts) == 1
            and starts[0].op == "mul"
            and starts[0].args[0] is whole.var
            and starts[0].args[1].op in ("const", "scalar")
        )

    def _loads_of(self, store: ir.Store) -> list[ir.Expr]:
        """Loads that the stored value depends on, through `Let`s."""
        found = self._operand_loads.get(store)
        if found is None:
            found = self._operand_loads[store] = []
            seen: set[ir.Expr] = set()
            roots = [store.value]
            while roots:
                for e in ir.post_order([roots.pop()], seen):
                    if e.op == "load":
                        found.append(e)
                    elif e in self.lets:
                        roots.append(self.lets[e])
        return found


def _is_in_row(index: ir.Expr, row: ir.Expr, loop: ir.For) -> bool:
    """The element of a row that the loop over it is at; expressions are compared by structure, for
    those of a kernel from disk are of no build."""
    if index.op != "add" or loop.var not in index.args:
        return False
    (first,) = (x for x in index.args if x is not loop.var)
    return first.op == "mul" and set(first.args) == {row, loop.stop}


def _nesting(body: list[ir.Stmt]) -> list[str]:
    """The kinds of perfectly nested loops."""
    loops = [s for s in body if isinstance(s, (ir.For, ir.If))]
    if not loops:
        return []
    if len(loops) > 1 or not isinstance(loops[0], ir.For):
        return ["several"]
    return [loops[0].kind, *_nesting(loops[0].body)]
