"""Sub-warp scan of short rows: a power-of-two number of lanes per row, by butterfly shuffles.

A lane loads vectors of contiguous elements into registers. Vector totals are scanned by XOR
shuffles: after each, a lane knows the total of twice as many lanes and, in the upper half, its
exclusive prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, RowIndex, ScanProblem
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Candidate
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import Element, combine
from numus.kernels.scan.gpu_block import TileScan

ACCESS_BYTES = 16  # of the widest load
WARP = 32


@dataclass(frozen=True)
class SubwarpTuning:
    """Measured on one H200."""

    items_per_lane: int = 8  # elements that are worth a lane
    max_words_per_lane: int = 32  # registers for elements
    words_in_flight: int = 8  # scanned together, so that the latency of shuffles overlaps


TUNING = SubwarpTuning()


def _supports(p: ScanProblem) -> bool:
    lanes = _lanes_per_row(p.length)
    return (
        p.target.subgroup_size > 0
        and p.op != "logsumexp"  # a combine too large to unroll
        and p.length <= WARP * TUNING.max_words_per_lane // _words(p.val)
        and p.rows * lanes >= p.target.num_cores * p.target.block_size
    )


def _lower(p: ScanProblem) -> Kernels:
    """A few lanes per row, several rows per warp."""
    e = Emitter(p.layouts, block_size=p.target.block_size)
    width = _vector_width(p.val, p.layouts)
    g = ir.var("g")
    rows = _SubwarpRows(p, e, g, _lanes_per_row(p.length), width)
    body = [rows.loop(False)]
    if width > 1:
        offset = ir.address(e.buffer(p.source)) & const(width * p.source.dtype.itemsize - 1)
        aligned = offset.eq(0)
        body = [ir.If(aligned, [rows.loop(True)]), ir.If(~aligned, body)]
    grid = -(-p.rows // rows.rows_per_block)
    return [e.grid_kernel(f"scan_{p.op}_subwarp", g, body, grid, (p.val.op,))]


SUBWARP_SCAN = Candidate("sub-warp per row", _lower, _supports)


def _words(val: Value) -> int:
    """Registers of an element."""
    real = dt.compute_dtype(dt.real_of(val.dtype))
    return max(1, real.itemsize // 4) * (2 if val.dtype.is_complex else 1)


def _lanes_per_row(length: int) -> int:
    return min(WARP, 1 << (-(-length // TUNING.items_per_lane) - 1).bit_length())


def _vector_width(val: Value, layouts: Layouts) -> int:
    """Elements of a vector load that is aligned in every row."""
    _, axis, _ = val.params
    source = val.inputs[0]
    strides = layouts.get(source)
    has_inner = any(n != 1 for n in val.shape[axis + 1 :])
    if strides is None or strides[axis] != 1 or has_inner or val.dtype.is_complex:
        return 1
    steps = [val.shape[axis]]
    steps += [s for i, s in enumerate(strides) if i != axis and val.shape[i] != 1]
    width = ACCESS_BYTES // max(source.dtype.itemsize, val.dtype.itemsize)
    while any(s % width for s in steps):
        width //= 2
    return width


@dataclass(frozen=True, slots=True)
class _SubwarpRows:
    p: ScanProblem
    e: Emitter
    g: Expr
    lanes: int  # of a row
    width: int  # elements of a vector

    @property
    def rows_per_block(self) -> int:
        return self.p.target.block_size // self.lanes

    @property
    def vectors(self) -> int:
        return -(-self.p.length // (self.lanes * self.width))

    def loop(self, aligned: bool) -> Stmt:
        """The loop over a block's threads; `aligned`: vectors are single loads."""
        e, val, op, size = self.e, self.p.val, self.p.op, self.p.length
        reverse = val.params[2]
        threads = self.p.target.block_size
        scan = TileScan(threads, op, val.dtype)
        thread = ir.var(f"lane{int(aligned)}")
        count = e.dim(val.size // size)
        in_block, sublane = divmod(thread, const(self.lanes))
        number = ir.add(ir.mul(self.g, const(self.rows_per_block)), in_block)
        row, lane, exists = ir.var("row"), ir.var("lane"), ir.var("exists", dt.bool_)
        e.extents[row] = count
        out: list[Stmt] = [
            ir.Let(exists, number < count),
            ir.Let(lane, sublane),
            ir.Let(row, ir.minimum(number, ir.sub(count, ONE))),  # shuffles need every lane
        ]
        index, length = self.p.index(e, row), e.dim(size)
        starts: list[tuple[Expr, Expr | None]] = []  # of vectors, and a mask where some are missing
        for v in range(self.vectors):
            own = ir.mul(ir.add(lane, const(v * self.lanes)), const(self.width))
            mask = None if (v + 1) * self.lanes * self.width <= size else own < length
            first: Expr = ir.var(f"first{v}")
            if mask is not None:
                own = ir.minimum(own, ir.sub(length, const(self.width)))
            if reverse:
                own = ir.sub(ir.sub(length, const(self.width)), own)
            out.append(ir.Let(first, own))
            starts.append((first, mask))
        loaded: list[list[Element]] = []
        for v, (first, _) in enumerate(starts):
            lets, vector = self._load(scan, index, first, aligned, v)
            out += lets
            loaded.append(vector[::-1] if reverse else vector)
        carry: Element = []
        in_flight = max(1, TUNING.words_in_flight // (self.width * _words(val)))
        for start in range(0, self.vectors, in_flight):
            batch = range(start, min(start + in_flight, self.vectors))
            state = []
            for v in batch:
                lets, prefixes = self._scan_vector(scan, loaded[v], starts[v][1], v)
                out += lets
                lets, before, total = self._scan_lanes(scan, lane, prefixes[-1], v)
                out += lets
                state.append((prefixes, before, total))
            for v, (prefixes, before, total) in zip(batch, state, strict=True):
                first, mask = starts[v]
                lets, ahead = ir.bind(combine(op, carry, before) if carry else before, f"ahead{v}")
                out += lets
                results = [combine(op, ahead, x) for x in prefixes]
                stores: list[Stmt] = []
                for u, result in enumerate(results[::-1] if reverse else results):
                    joined: Any = scan.join(result)
                    value = joined if scan.complex else joined.cast(val.dtype)
                    stores += e.store(val, index(ir.add(first, const(u))), value)
                out.append(ir.If(exists if mask is None else exists & mask, stores))
                if v + 1 < self.vectors:
                    lets, carry = ir.bind(
                        combine(op, carry, total) if carry else total, f"carry{v}"
                    )
                    out += lets
        return ir.For(thread, ZERO, const(threads), "lanes", out)

    def _load(
        self, scan: TileScan, index: RowIndex, first: Expr, aligned: bool, v: int
    ) -> tuple[list[Stmt], list[Element]]:
        """A vector's elements in memory order."""
        source = self.p.source
        out: list[Stmt] = []
        vector: list[Element] = []
        for u in range(self.width):
            value = self.e.value(source, index(ir.add(first, const(u))))
            if aligned:
                name = ir.var(f"x{v}_{u}", source.dtype)
                out.append(ir.Let(name, value, vector=0 if u else self.width))
                vector.append(scan.split(name))
            else:
                lets, names = ir.bind(scan.split(value), f"x{v}_{u}")
                out += lets
                vector.append(names)
        return out, vector

    def _scan_vector(
        self, scan: TileScan, vector: list[Element], mask: Expr | None, v: int
    ) -> tuple[list[Stmt], list[Element]]:
        """The prefixes of a vector; identities where it is masked off."""
        out: list[Stmt] = []
        prefixes: list[Element] = []
        for u, x in enumerate(vector):
            if mask is not None:
                pairs = zip(x, scan.identity, strict=True)
                x = [ir.select(mask, own, neutral) for own, neutral in pairs]
            lets, names = ir.bind(
                combine(scan.op, prefixes[-1], x) if prefixes else x, f"sum{v}_{u}"
            )
            out += lets
            prefixes.append(names)
        return out, prefixes

    def _scan_lanes(
        self, scan: TileScan, lane: Expr, own: Element, v: int
    ) -> tuple[list[Stmt], Element, Element]:
        """The exclusive prefix of a lane's vector, and the total over the row's lanes."""
        out: list[Stmt] = []
        before, total = list(scan.identity), own
        step = 1
        while step < self.lanes:
            lets, other = ir.bind([ir.lanes_xor(x, step) for x in total], f"other{v}_{step}")
            out += lets
            upper = (lane & const(step)).ne(0)
            pairs = zip(combine(scan.op, other, before), before, strict=True)
            lets, before = ir.bind([ir.select(upper, x, y) for x, y in pairs], f"before{v}_{step}")
            out += lets
            lets, total = ir.bind(combine(scan.op, total, other), f"all{v}_{step}")
            out += lets
            step *= 2
        return out, before, total
