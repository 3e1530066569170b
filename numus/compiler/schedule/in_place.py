"""Which inputs of a kernel may be overwritten by its results.

A result may take the memory of an input where every element is read only to compute the very
element that takes its place: then the read comes first, whatever order the machine prefers. That is
so in maps over contiguous memory, as updates of parameters are, and in what follows a product.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel

WORTH_SHARING = 1 << 16  # bytes


def takeovers(
    step: LoweredKernel, stored: set[Value], held: set[Value]
) -> list[tuple[Value, Value]]:
    """Pairs of temporaries of which a kernel may write the first over the second. What is `held` is
    none; what is `stored` is the outcome of its group.
    """
    pairs = list(zip(step.kernel.buffers, step.buffers, strict=False))  # scratch comes after them
    large = [
        (at, buffer.access, v)
        for at, (buffer, v) in enumerate(pairs)
        if v not in held and v.size * v.dtype.itemsize >= WORTH_SHARING
    ]
    targets = [(at, v) for at, access, v in large if access == "write"]
    sources = [(at, v) for at, access, v in large if access == "read"]
    if not any(s.size == v.size for _, v in targets for _, s in sources):
        return []
    places = Places(step.kernel)
    once = step.kernel.name in ("contraction", "convolution")
    return [
        (v, s)
        for target, v in targets
        for source, s in sources
        if s.size == v.size and places.may_overwrite(source, target, once and v in stored)
    ]


class Places:
    """Where a kernel reads and writes its buffers, found in one walk."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.stores: dict[ir.Buffer, list[ir.Store]] = {}
        self.loads: dict[ir.Buffer, set[ir.Expr]] = {}
        self.steering: set[ir.Buffer] = set()  # read by loops, conditions and registers
        self.lanes: set[ir.Expr] = set()  # variables of loops over elements, each met once
        self.names: dict[ir.Expr, ir.Expr] = {}  # what `Let` calls values
        values: set[ir.Expr] = set()
        others: set[ir.Expr] = set()
        for s in ir.statements(kernel.body):
            if isinstance(s, ir.For) and s.kind == "lanes":
                self.lanes.add(s.var)
            if isinstance(s, ir.Store):
                self.stores.setdefault(s.buffer, []).append(s)
            if isinstance(s, ir.Let):
                self.names[s.var] = s.value
            if isinstance(s, (ir.Let, ir.Store)):
                for e in ir.post_order(ir.expressions_of(s), values):
                    if e.op == "load":
                        self.loads.setdefault(e.attr, set()).add(e)
            else:
                found = ir.post_order(ir.expressions_of(s), others)
                self.steering.update(e.attr for e in found if e.op == "load")
        self._feeding: dict[ir.Store, list[ir.Expr]] = {}

    def may_overwrite(self, source: int, target: int, once: bool = False) -> bool:
        """Whether the buffer at `target` may be the one at `source`. `once`: this kernel is known
        to store each element of its results a single time, as the tiles of a product do.
        """
        read, written = self.kernel.buffers[source], self.kernel.buffers[target]
        if read.dtype is not written.dtype or self.kernel.block_size or read in self.steering:
            return False
        stores, loads = self.stores.get(written), self.loads.get(read)
        if not stores or not loads:
            return False
        if not once and not (len(stores) == 1 and self._is_map(stores[0])):
            return False
        used = [(e, s) for s in stores for e in self._loads_of(s) if e.attr is read]
        return all(e.args[0] is s.index for e, s in used) and loads <= {e for e, _ in used}

    def _is_map(self, store: ir.Store) -> bool:
        """Whether the kernel is a map and this its result: one place for each lane of a block."""
        return store.index in self.lanes and _nesting(self.kernel.body) == ["grid", "lanes"]

    def _loads_of(self, store: ir.Store) -> list[ir.Expr]:
        """The loads that what is stored is computed from, through the names that `Let` gives."""
        found = self._feeding.get(store)
        if found is None:
            found = self._feeding[store] = []
            seen: set[ir.Expr] = set()
            roots = [store.value]
            while roots:
                for e in ir.post_order([roots.pop()], seen):
                    if e.op == "load":
                        found.append(e)
                    elif e in self.names:
                        roots.append(self.names[e])
        return found


def _nesting(body: list[ir.Stmt]) -> list[str]:
    """The kinds of the loops of a kernel that has one inside the other and nothing else."""
    loops = [s for s in body if isinstance(s, (ir.For, ir.If))]
    if not loops:
        return []
    if len(loops) > 1 or not isinstance(loops[0], ir.For):
        return ["several"]
    return [loops[0].kind, *_nesting(loops[0].body)]
