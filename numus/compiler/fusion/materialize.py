"""Materialisation: values worth storing besides roots, and stored values worth recomputing.

Some are known before fusion: the last elementwise value of a GEMM's epilogue, activations that
GEMMs read, values that views read through many index maps. Others show after it: values that
several kernels would recompute, and stored values that follow cheaply from others in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from numus.compiler.fusion.group import EPILOGUE_KINDS, FusionGroup, Partition, squeeze
from numus.compiler.fusion.long_chains import LongChains
from numus.compiler.fusion.nested import nested_reductions
from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph import cost_model
from numus.compiler.graph.cost_model import EXPENSIVE_OPS, nbytes
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import ATTENTION, GEMM_KINDS, Layouts, Value, walk
from numus.compiler.lower.index_rules import is_inline
from numus.shapes import row_major, size_of
from numus.target import Target

SIZE_RATIO = 16  # operands smaller than 1/n of a value cost nothing

Users = dict[Value, list[Value]]


class Materialization:
    """The values of a graph that go to memory. Leaves, whose `strides` are given, are there;
    `roots` must be stored."""

    def __init__(
        self, order: Sequence[Value], roots: set[Value], strides: Layouts, target: Target
    ) -> None:
        self.order, self.roots, self.leaves, self.target = order, roots, set(strides), target
        self.strides = strides
        self.row_products: set[Value] = set()  # products with one vector, on GPUs,
        self.between: set[Value] = set()  # and what their kernels compute of the vector
        self.memory_operands: set[Value] = set()  # that kernels take from memory alone
        self.picked: set[Value] = set()  # elements of rows that are overwritten
        self.gemm_sums: set[Value] = set()
        self.piece: dict[Value, int] = {}  # of long expressions, which are cut into several kernels

    # -- before fusion ----------------------------------------------------------------------------

    def initial(self) -> set[Value]:
        """Values stored however the graph is fused."""
        stored = {v for v in self.order if v in self.roots or not is_inline(v)} - self.leaves
        stored -= nested_reductions(self.order, self.roots, self.leaves, self.target)
        stored |= self._epilogue_results()
        if self.target.simt:
            from numus.compiler.fusion.row_products import RowProducts  # late: for GPUs only

            given = (self.order, stored, self.roots, self.strides, self.target)
            found = RowProducts.of(*given)
            self.row_products, self.between = found.products, found.between
            stored -= found.statistics
        in_memory = stored | self.leaves
        stored |= self._expensive_operands(in_memory)
        self.picked = self._picked_elements(stored)
        stored |= self.picked
        stored |= self._read_through_many_maps(stored, in_memory)
        stored -= self.between
        chains = LongChains(self.order, stored | self.leaves)
        self.piece = chains.piece
        return stored | (chains.stored - self.between)

    def _epilogue_results(self) -> set[Value]:
        """Values stored instead of GEMMs: the last elementwise post-dominator of each."""
        users: Users = {}
        for v in self.order:
            if v not in self.leaves:
                for x in dict.fromkeys(v.inputs):
                    users.setdefault(x, []).append(v)
        found: set[Value] = set()
        for gemm in self.order:
            if gemm.kind in EPILOGUE_KINDS and gemm not in self.leaves:
                last = self._before_widening(self._last_post_dominator(gemm, users))
                if last is not gemm:
                    found.add(last)
        if not self.target.block_size:  # GPUs run GEMMs of a sum concurrently
            found |= self._running_gemm_sums(users)
        return found

    def _running_gemm_sums(self, users: Users) -> set[Value]:
        """Partial sums of many GEMMs: each GEMM accumulates into the last, so that one value is
        live, not one for each."""
        terms = set[Value]()  # GEMMs, and sums of them
        for v in self.order:
            if v in self.leaves:
                continue
            if v.op == "add" and all(x in terms and x.shape == v.shape for x in v.inputs):
                self.gemm_sums.add(v)
            if v.kind in GEMM_KINDS or v in self.gemm_sums:
                terms.add(v)
        sums = self.gemm_sums
        return {v for v in sums if v in users and all(u in sums for u in users[v])}

    def _before_widening(self, v: Value) -> Value:
        """The operand of casts to wider dtypes: readers widen as they load."""
        while v.op == "cast" and v not in self.roots:
            source = v.inputs[0]
            if source.dtype.itemsize >= v.dtype.itemsize or not source.dtype.is_floating:
                break
            v = source
        return v

    def _last_post_dominator(self, gemm: Value, users: Users) -> Value:
        """The last value on all elementwise paths from a GEMM."""
        found = gemm
        open_paths = {gemm: len(users.get(gemm, ()))}  # users that were not reached yet
        ahead = [(gemm.id, gemm)]
        while ahead:
            _, v = heapq.heappop(ahead)
            for x in dict.fromkeys(v.inputs):
                if x in open_paths:
                    open_paths[x] -= 1
                    if not open_paths[x]:
                        del open_paths[x]
            following = users.get(v, [])
            open_paths[v] = len(following)
            if len(open_paths) == 1 and v.kind != "view":
                found = v
            if v in self.roots or not all(self._is_epilogue(u, gemm) for u in following):
                break  # a path ends here: no later value is on all of them
            for u in following:
                if (u.id, u) not in ahead:
                    heapq.heappush(ahead, (u.id, u))
        return found

    def _is_epilogue(self, v: Value, gemm: Value) -> bool:
        """The kernel of a GEMM may compute a value of its results. Products with one vector are
        often given another axis before something is added to them."""
        if v.kind == "elementwise" and v.shape == gemm.shape:
            return True
        is_product = self.target.simt and gemm.kind in ("contract", "packed_gemv")
        is_vector = is_product and squeeze(gemm.shape) == (gemm.size,)
        if not is_vector or (v.kind != "elementwise" and v.op != "reshape"):
            return False
        return squeeze(v.shape) == squeeze(gemm.shape)

    def _expensive_operands(self, in_memory: set[Value]) -> set[Value]:
        """Activations that GEMMs read: stored once, in the epilogue that computes them. Operands
        of serial scatters are computed in parallel, before; parallel ones read indices once."""
        found: set[Value] = set()
        for v in self.order:
            packed = v.kind == "packed_gemv" and self.target.simt and v not in self.leaves
            if packed and v.inputs[0] not in self.between:
                found |= _stored_for_strides(v.inputs[0], in_memory)
                self._store_vector(v.inputs[0], in_memory)
            if v.kind == "scaled" and v not in self.leaves:
                for x in v.inputs:
                    found |= _stored_for_strides(x, in_memory)
                    self._store_vector(x, in_memory)
            if (
                v.kind in ("blocks", "bytes", "planes") or v.op == "block_values"
            ) and v not in self.leaves:  # every task reads all
                found.update(x for x in v.inputs if x not in in_memory)
                self._store_vector(v.inputs[0], in_memory)  # before it is put into panels
            if v.kind == "packed" and not self.target.simt and v not in self.leaves:
                self._store_vector(v.inputs[0], in_memory)  # whose bytes are read as words
            if v.op in ("csr_matmul", "csr_dotted") and v not in self.leaves:
                found |= self._sparse_operand(v, in_memory)
            if v.kind not in (*GEMM_KINDS, *ATTENTION, "scatter") or v in self.leaves:
                continue
            wgmma = v.kind == "contract" and self.target.wgmma and _is_wgmma_sized(v)
            reads_indices = v.kind == "scatter" and self.target.simt
            if reads_indices and v.inputs[2].size <= TUNING.few_updates:
                continue  # each element of an update is computed once
            streamed = _streamed_operands(v) if self.target.simt and v.kind in ATTENTION else []
            for x in v.inputs[:2] if reads_indices else _packed_operands(v):
                copied = wgmma or x in streamed
                if wgmma and (view := _stored_for_strides(x, in_memory)):
                    found |= view  # with what is computed of its source, if anything
                    continue
                while x.kind == "view" and x not in in_memory:
                    x = x.inputs[0]
                inline = x.kind == "elementwise" and x not in in_memory
                if inline and copied and x.size > 1:
                    self.memory_operands.add(x)
                elif inline and _costs_more_than_load(x, in_memory):
                    found.add(x)
        return found | self.memory_operands

    def _picked_elements(self, stored: set[Value]) -> set[Value]:
        """Elements that one-hot masks pick of large temporaries, on GPUs: once they are stored, a
        kernel that reads all elements may write its results over them."""
        found: set[Value] = set()
        for v in self.order if self.target.block_size else ():
            if v.op == "onehot_gather" and v not in self.leaves:
                x = v.inputs[0]
                while x not in stored and (x.kind == "view" or x.op == "cast"):
                    x = x.inputs[0]
                if x in stored - self.roots and x.size >= TUNING.picked_row_elements * v.size:
                    found.add(v)
        return found

    def _sparse_operand(self, product: Value, in_memory: set[Value]) -> set[Value]:
        """What a product with compressed rows reads, several times on average. Threads of GPUs load
        vectors of columns from memory alone."""
        _, indices, _, x = product.inputs[:4]
        if indices.size < TUNING.sparse_reads * x.shape[1]:
            return set()
        views: set[Value] = set()
        if self.target.simt and x.shape[2:] > (1,):
            views = _stored_for_strides(x, in_memory)
            self._store_vector(x, in_memory)
            return views
        while x.kind == "view" and x not in in_memory:
            x = x.inputs[0]
        inline = x.kind == "elementwise" and x not in in_memory
        return {x} if inline and _costs_more_than_load(x, in_memory) else set()

    def _store_vector(self, x: Value, in_memory: set[Value]) -> None:
        """Keep an operand that every warp of a kernel reads in memory."""
        while x.kind == "view" and x not in in_memory:
            x = x.inputs[0]
        if x.kind == "elementwise" and x not in in_memory:
            self.memory_operands.add(x)

    def _read_through_many_maps(self, stored: set[Value], in_memory: set[Value]) -> set[Value]:
        """Values that views read through so many index maps that copies of their code pile up."""
        found: set[Value] = set()
        never = self._score_sized_operands(in_memory)
        maps: dict[Value, set[object]] = {}
        for v in reversed(self.order):
            if v in self.leaves:
                continue
            own = maps.pop(v, set())
            if v in stored or not own:
                own = {v}
            elif (
                len(own) > TUNING.max_index_maps
                and v.kind == "elementwise"
                and v.size > 1
                and v not in never
                and self._before_widening(v) not in in_memory
            ):
                found.add(self._before_widening(v))
                own = {v}
            for x in v.inputs:
                if v.kind == "elementwise" and x.shape == v.shape:
                    maps.setdefault(x, set()).update(own)
                else:
                    maps.setdefault(x, set()).update((v, m) for m in own)
        return found

    def _score_sized_operands(self, in_memory: set[Value]) -> set[Value]:
        """Operands of attention with an element for each score (masks, dropout): never stored."""
        found: set[Value] = set()
        for v in self.order:
            if v.kind in ATTENTION and v not in self.leaves:
                operands = [x for x in v.inputs if x not in _packed_operands(v)]
                scores = v.inputs[0].shape[0] * v.inputs[0].shape[1] * v.inputs[1].shape[1]
                inline = walk(operands, lambda x: x not in in_memory)
                found.update(x for x in inline if x.size >= scores)
        return found

    # -- after fusion -----------------------------------------------------------------------------

    def shared(self, partition: Partition) -> set[Value]:
        """Expensive expressions that several groups (or many points) would recompute."""
        in_memory, group_of = partition.in_memory, partition.group_of
        users: dict[Value, set[FusionGroup]] = {}
        for v in reversed(self.order):
            groups = {group_of[v]} if v in group_of else users.get(v, set())
            for x in v.inputs:
                if x not in in_memory:
                    users.setdefault(x, set()).update(groups)
        out: set[Value] = set()
        never = self._score_sized_operands(in_memory)
        for v in self.order:
            if v in in_memory or v.kind != "elementwise" or v.size == 0 or v in never:
                continue
            # a few kernels recompute a scalar: storing it would be one more
            is_shared = len(users.get(v, ())) > (1 if v.size > 1 else TUNING.scalar_max_users)
            simt = v.size > 1 and bool(self.target.block_size)
            large = nbytes(v) >= TUNING.cpu_recomputed_min_bytes
            if (v.size > 1 and self._repeated_along_loops(v, users.get(v, set()))) or (
                is_shared and _costs_more_than_load(v, in_memory, simt, large)
            ):
                out.add(v)
        # the last of a chain is enough
        covered = {x for w in out if w not in in_memory for x in w.inputs}
        vectors = self._slow_vectors(partition, users) if self.target.block_size else set()
        return (out - covered | vectors) - self.between

    def _slow_vectors(
        self, partition: Partition, users: dict[Value, set[FusionGroup]]
    ) -> set[Value]:
        """Values of divisions and roots that are broadcast to many elements, as the deviations of
        channels are: every thread of a GPU would compute them again."""
        in_memory, group_of = partition.in_memory, partition.group_of
        ratio, broadcast = TUNING.slow_vector_repeats, set[Value]()
        for u in self.order:
            for x in () if u in self.leaves else u.inputs:
                while x.kind == "view" and x not in in_memory:
                    x = x.inputs[0]
                if u.size >= max(ratio * x.size, TUNING.slow_vector_min_elements):
                    broadcast.add(x)
        found: set[Value] = set()
        for v in broadcast - in_memory:
            if v.kind != "elementwise" or v.size == 1:
                continue
            inline = list(walk([v], lambda x: x not in in_memory))
            own = {group_of[x] for x in inline if x in group_of}
            if _is_slow_vector(v, set(inline) - in_memory, users.get(v, set()) - own):
                found.add(v)
        return found

    def _repeated_along_loops(self, v: Value, users: set[FusionGroup]) -> bool:
        """An expensive value is broadcast along outer loops, and so recomputed many times."""
        slow = _is_slow(v)
        if self.target.block_size and slow and any(_varies_along_columns(v, g) for g in users):
            return True
        if v.op not in EXPENSIVE_OPS:  # divisions by a vector of lanes are none of few rows
            return (slow and not self.target.block_size) and any(
                g.kind == "loop"
                and size_of(g.space) >= TUNING.slow_repeats * v.size
                and _spans_inner_axis_only(v, g)
                for g in users
            )
        return any(g.kind in GEMM_KINDS and size_of(g.space) > 4 * v.size for g in users) or any(
            g.kind == "loop" and size_of(g.space) >= 8 * v.size and _spans_inner_axis_only(v, g)
            for g in users
        )

    def recomputed(self, partition: Partition) -> set[Value]:
        """Stored values that follow in a few operations from others which are live as long: an
        activation and its input, a softmax and its exponentials.

        Not operands of wgmma, which every GEMM would lay out anew, nor values that vary along the
        reduced axis of a column reduction, which every block would recompute.
        """
        materialized = {v for g in partition.groups for v in g.stored}
        depth: dict[Value, int] = {}  # kernels from the inputs
        for v, reads in partition.operands.items():
            depth[v] = 1 + max((depth.get(r, 0) for r in reads), default=0)
        last = {v: max(depth[u] for u in (v, *partition.users.get(v, ()))) for v in materialized}
        available = set(partition.in_memory)
        for v in sorted(materialized - self.roots - self.memory_operands, key=lambda v: v.id):
            if v.kind != "elementwise":
                continue
            readers = [partition.group_of[u] for u in partition.users.get(v, ())]
            operands = list(walk(v.inputs, lambda x: x not in available))
            if self.target.block_size and (
                any(_varies_along_columns(v, g) for g in readers)
                or _is_slow_vector(v, {v, *(set(operands) - available)}, readers)
            ):
                continue
            large = [x for x in operands if SIZE_RATIO * x.size > v.size]
            sources = [x for x in large if x in available]
            inline = [v, *(x for x in large if x not in sources)]
            cheap = all(
                x.op not in EXPENSIVE_OPS and x.kind in ("elementwise", "view") for x in inline
            )
            ops = sum(x.kind == "elementwise" for x in inline)
            stored = all(x in self.leaves or x in materialized for x in sources)
            if not (cheap and stored and ops <= TUNING.recompute_max_ops.get(len(sources), 0)):
                continue
            longer = sum(
                nbytes(x) * max(0, last[v] - last[x]) for x in sources if x in materialized
            )
            if 2 * longer < nbytes(v) * (last[v] - depth[v]):
                available.remove(v)
        return partition.in_memory - available


def _is_slow(v: Value) -> bool:
    """Of several instructions."""
    return v.op in EXPENSIVE_OPS or v.op in cost_model.MULTI_INSTRUCTION_OPS


def _is_slow_vector(v: Value, inline: Iterable[Value], readers: Iterable[FusionGroup]) -> bool:
    """Each element of v takes several instructions, and is read very often."""
    least = TUNING.slow_vector_repeats * v.size
    return any(_is_slow(x) and x.size > 1 for x in inline) and any(
        size_of(g.space) >= max(least, TUNING.slow_vector_min_elements) for g in readers
    )


def _packed_operands(v: Value) -> list[Value]:
    """The operands that a GEMM or attention reads once, or once a task, to pack them."""
    if v.kind not in ATTENTION:
        return list(v.inputs)
    pairs = zip(v.params.names, v.inputs, strict=True)
    return [x for name, x in pairs if name not in ("bias", "keep")]


def _streamed_operands(v: Value) -> list[Value]:
    """The operands of attention that several thread blocks of a GPU read, tile by tile: rotated
    queries and keys are computed once, and then copied asynchronously."""
    named = dict(zip(v.params.names, v.inputs, strict=True))
    names, rows = "kv", named["q"].shape[1]
    if v.op == "attention_grad":
        names, rows = "qkvg", max(rows, named["k"].shape[1])
    return [named[x] for x in names if x in named] if rows > TUNING.attention_tile_rows else []


def _is_wgmma_sized(v: Value) -> bool:
    """A GEMM for wgmma, whose operands must be in memory."""
    _, m, n = v.shape
    k = v.inputs[0].shape[2]
    narrow = all(x.dtype.itemsize <= 2 and x.dtype.kind != "bool" for x in v.inputs)
    return narrow and min(m, n, k) >= TUNING.wgmma_min_extent


def _stored_for_strides(operand: Value, in_memory: set[Value]) -> set[Value]:
    """The innermost view to store so that an operand has strides; empty where it has."""
    chain = [operand]
    while chain[-1].kind == "view" and chain[-1] not in in_memory:
        chain.append(chain[-1].inputs[0])
    source = chain.pop()
    if source not in in_memory and source.kind != "elementwise":  # which will be stored
        return set()
    for base in (source, *reversed(chain)):
        if strided_view(operand, {base: row_major(base.shape)}) is not None:
            return set() if base is source else {base}
    return set()


def _costs_more_than_load(
    v: Value, in_memory: set[Value], simt: bool = False, large: bool = False
) -> bool:
    """Recomputing v costs more than a load, of a `large` one from memory. Operands constant along
    rows count for nothing."""
    ops = 0
    for x in walk([v], lambda x: x not in in_memory):
        if x in in_memory:
            ops += 1
        elif SIZE_RATIO * x.size > v.size:
            if x.op in EXPENSIVE_OPS or x.kind == "gather":
                if not _is_quickly_recomputed(x, simt, large):
                    return True
                ops += TUNING.recomputed_op_cost
            ops += x.kind == "elementwise"
    return ops > (TUNING.gpu_load_cost if simt else TUNING.load_cost)


def _is_quickly_recomputed(x: Value, simt: bool, large: bool) -> bool:
    """An expensive operation takes less time than a store and a load: on CPUs, of memory."""
    if simt:
        return x.op in cost_model.GPU_RECOMPUTED_OPS
    return large and x.op in cost_model.CPU_RECOMPUTED_OPS and x.dtype.itemsize <= 4


def _varies_along_columns(v: Value, group: FusionGroup) -> bool:
    """A column reduction needs another element of v in every step, the same one in all rows."""
    shape = squeeze(v.shape)
    return (
        group.kind == "loop"
        and set(range(len(shape))) <= set(group.axes)
        and shape == group.space[: len(shape)]
        and size_of(group.space) >= 64 * v.size
    )


def _spans_inner_axis_only(v: Value, g: FusionGroup) -> bool:
    """v spans the innermost axis of a group but not the outer ones, along which it repeats."""
    shape = squeeze(v.shape)
    return bool(shape) and bool(g.space) and shape[-1] == g.space[-1] and shape != g.space
