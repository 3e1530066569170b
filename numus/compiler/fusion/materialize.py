"""Which values are worth having in memory, besides those that must be there.

Some are known before anything is grouped: the last of what follows element by element from a
product, activations that products read, what views read in many places. Others show once values
have homes: what several kernels would compute again, and what was stored though it follows quickly
from others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from numus.compiler.fusion.group import EPILOGUE_KINDS, FusionGroup, Grouping, squeeze
from numus.compiler.graph.cost_model import HEAVY, MADE_AGAIN, SLOW
from numus.compiler.graph.strided_view import lying
from numus.compiler.graph.value import ATTENTION, GEMM_KINDS, Value, walk
from numus.compiler.lower.index_rules import is_inline
from numus.shapes import row_major, size_of
from numus.target import Target

# A value that views read at more places than this is stored: each place is a copy of its code.
MANY_PLACES = 8

# Operations that are rather done again than their result stored, by how many values they read.
QUICK = {1: 5, 2: 4}

LARGE = 128  # rows, columns and depth of a product whose operands are worth a kernel of their own

# A costly number that more kernels than this use is computed by one of its own.
FEW_USERS = 3

AGAIN_WORK = 6  # plain operations that one counts for which groups of threads rather do again
PLAIN_WORK = 12  # operations that cost more than a load,
GROUP_WORK = 32  # and where threads wait for memory anyway

Users = dict[Value, list[Value]]


class Materialization:
    """The values of a graph that go to memory. `leaves` are there; `roots` must come to be."""

    def __init__(
        self, order: Sequence[Value], roots: set[Value], leaves: set[Value], target: Target
    ) -> None:
        self.order, self.roots, self.leaves, self.target = order, roots, leaves, target
        self.laid_out: set[Value] = set()  # for units that multiply tiles
        self.sums: set[Value] = set()  # of products

    # -- before values are grouped ----------------------------------------------------------------

    def at_first(self) -> set[Value]:
        """What is stored whatever the groups come to be."""
        stored = {v for v in self.order if v in self.roots or not is_inline(v)} - self.leaves
        stored |= self._tails()
        in_memory = stored | self.leaves
        stored |= self._costly_operands(in_memory)
        return stored | self._read_in_many_places(stored, in_memory)

    def _tails(self) -> set[Value]:
        """What is stored instead of a product: the last elementwise value that all ways lead
        through from it.
        """
        users: Users = {}
        for v in self.order:
            if v not in self.leaves:
                for x in dict.fromkeys(v.inputs):
                    users.setdefault(x, []).append(v)
        found: set[Value] = set()
        for product in self.order:
            if product.kind in EPILOGUE_KINDS and product not in self.leaves:
                last = self._narrower(self._last_gate(product, users))
                if last is not product:
                    found.add(last)
        if not self.target.block_size:  # there, no product waits for another
            found |= self._sums_on_the_way(users)
        return found

    def _sums_on_the_way(self, users: Users) -> set[Value]:
        """What a sum of many products is after each of them, but for the last: the product's kernel
        adds to what was there, so that one value is kept, not one for each product.
        """
        parts = set[Value]()  # products, and sums of them
        for v in self.order:
            if v in self.leaves:
                continue
            if v.op == "add" and all(x in parts and x.shape == v.shape for x in v.inputs):
                self.sums.add(v)
            if v.kind in GEMM_KINDS or v in self.sums:
                parts.add(v)
        return {v for v in self.sums if v in users and all(u in self.sums for u in users[v])}

    def _narrower(self, gate: Value) -> Value:
        """The value itself, or what it only makes wider: its readers do that as they load."""
        while gate.op == "cast" and gate not in self.roots:
            source = gate.inputs[0]
            if source.dtype.itemsize >= gate.dtype.itemsize or not source.dtype.is_floating:
                break
            gate = source
        return gate

    def _last_gate(self, product: Value, users: Users) -> Value:
        """The last value on all ways on from a product, as far as they are elementwise."""
        gate = product
        ways = {product: len(users.get(product, ()))}  # users that no way has come to yet
        ahead = [(product.id, product)]
        while ahead:
            _, v = heapq.heappop(ahead)
            for x in dict.fromkeys(v.inputs):
                if x in ways:
                    ways[x] -= 1
                    if not ways[x]:
                        del ways[x]
            on = users.get(v, [])
            ways[v] = len(on)
            if len(ways) == 1:
                gate = v
            if v in self.roots or any(
                u.kind != "elementwise" or u.shape != product.shape for u in on
            ):
                break  # a way ends here: no later value is on all of them
            for u in on:
                if (u.id, u) not in ahead:
                    heapq.heappush(ahead, (u.id, u))
        return gate

    def _costly_operands(self, in_memory: set[Value]) -> set[Value]:
        """Activations that contractions read: stored once, as the tail of what computes them. What
        scatters read one after another is computed side by side, before.
        """
        found: set[Value] = set()
        for v in self.order:
            if v.kind not in (*GEMM_KINDS, *ATTENTION, "scatter") or v in self.leaves:
                continue
            tiles = v.kind == "contract" and self.target.wgmma and _in_tiles(v)
            for x in _packed(v):
                if tiles:
                    found |= _even_steps(x, in_memory)
                while x.kind == "view" and x not in in_memory:
                    x = x.inputs[0]
                inline = x.kind == "elementwise" and x not in in_memory
                if inline and tiles and x.size > 1:
                    self.laid_out.add(x)
                elif inline and _costly(x, in_memory):
                    found.add(x)
        return found | self.laid_out

    def _read_in_many_places(self, stored: set[Value], in_memory: set[Value]) -> set[Value]:
        """Values that views read at so many different places that copies of their code pile up."""
        found: set[Value] = set()
        never = self._as_large_as_scores(in_memory)
        places: dict[Value, set[object]] = {}  # by which index maps a value is read
        for v in reversed(self.order):
            if v in self.leaves:
                continue
            mine = places.pop(v, set())
            if v in stored or not mine:
                mine = {v}
            elif (
                len(mine) > MANY_PLACES
                and v.kind == "elementwise"
                and v.size > 1
                and v not in never
            ):
                found.add(v)
                mine = {v}
            for x in v.inputs:
                if v.kind == "elementwise" and x.shape == v.shape:
                    places.setdefault(x, set()).update(mine)
                else:
                    places.setdefault(x, set()).update((v, m) for m in mine)
        return found

    def _as_large_as_scores(self, in_memory: set[Value]) -> set[Value]:
        """What attention reads for each score (masks, dropout): it is computed there each time."""
        found: set[Value] = set()
        for v in self.order:
            if v.kind in ATTENTION and v not in self.leaves:
                scores = [x for x in v.inputs if x not in _packed(v)]
                whole = v.inputs[0].shape[0] * v.inputs[0].shape[1] * v.inputs[1].shape[1]
                inline = walk(scores, lambda x: x not in in_memory)
                found.update(x for x in inline if x.size >= whole)
        return found

    # -- when they are ----------------------------------------------------------------------------

    def computed_again(self, grouping: Grouping) -> set[Value]:
        """Costly expressions that several groups (or many points) would compute again."""
        in_memory, home = grouping.in_memory, grouping.home
        users: dict[Value, set[FusionGroup]] = {}
        # walk from consumers to producers, handing down who uses each inline value
        for v in reversed(self.order):
            homes = {home[v]} if v in home else users.get(v, set())
            for x in v.inputs:
                if x not in in_memory:
                    users.setdefault(x, set()).update(homes)
        out: set[Value] = set()
        never = self._as_large_as_scores(in_memory)
        for v in self.order:
            if v in in_memory or v.kind != "elementwise" or v.size == 0 or v in never:
                continue
            # a single number is computed by each of a few: that is no kernel more
            many = len(users.get(v, ())) > (1 if v.size > 1 else FEW_USERS)
            again = v.size > 1 and self._repeated(v, users.get(v, set()))
            if again or (
                many and _costly(v, in_memory, v.size > 1 and bool(self.target.block_size))
            ):
                out.add(v)
        # the topmost of a chain is enough
        covered = {x for w in out if w not in in_memory for x in w.inputs}
        return out - covered

    def _repeated(self, v: Value, users: set[FusionGroup]) -> bool:
        """Whether a costly value is broadcast along outer loops, and so computed many times."""
        slow = v.op in HEAVY or v.op in SLOW
        if self.target.block_size and slow and any(_varies_down(v, g) for g in users):
            return True
        if v.op not in HEAVY:
            return False
        return any(g.kind in GEMM_KINDS and size_of(g.space) > 4 * v.size for g in users) or any(
            g.kind == "loop" and size_of(g.space) >= 8 * v.size and _outer_repeat(v, g)
            for g in users
        )

    def quickly_made_again(self, grouping: Grouping) -> set[Value]:
        """Values that are stored for later though they follow in a step or two from others that are
        there as long: an activation and what it was applied to, a softmax and its exponentials.
        Not what units multiply: every product would lay it out anew. Nor what is a number of each
        line that is summed up, which every row of a group would make again.
        """
        kept = {v for g in grouping.groups for v in g.stored}
        when: dict[Value, int] = {}  # each could be computed, in steps from the beginning
        for v, reads in grouping.read_by.items():
            when[v] = 1 + max((when.get(r, 0) for r in reads), default=0)
        last = {v: max(when[u] for u in (v, *grouping.readers.get(v, ()))) for v in kept}
        there = set(grouping.in_memory)
        for v in sorted(kept - self.roots - self.laid_out, key=lambda v: v.id):
            if v.kind != "elementwise":
                continue
            readers = (grouping.home[u] for u in grouping.readers.get(v, ()))
            if self.target.block_size and any(_varies_down(v, group) for group in readers):
                continue
            inside = walk(v.inputs, lambda x: x not in there)
            large = [x for x in inside if 16 * x.size > v.size]
            sources = [x for x in large if x in there]
            inline = [v, *(x for x in large if x not in sources)]
            quick = all(x.op not in HEAVY and x.kind in ("elementwise", "view") for x in inline)
            work = sum(x.kind == "elementwise" for x in inline)
            held = all(x in self.leaves or x in kept for x in sources)
            if not (quick and held and work <= QUICK.get(len(sources), 0)):
                continue
            longer = sum(_bytes(x) * max(0, last[v] - last[x]) for x in sources if x in kept)
            if 2 * longer < _bytes(v) * (last[v] - when[v]):
                there.remove(v)
        return grouping.in_memory - there


def _bytes(v: Value) -> int:
    return v.size * v.dtype.itemsize


def _packed(v: Value) -> list[Value]:
    """The operands that a contraction or attention reads once, or once a task, to pack them."""
    if v.kind not in ATTENTION:
        return list(v.inputs)
    pairs = zip(v.params.names, v.inputs, strict=True)
    return [x for name, x in pairs if name not in ("bias", "keep")]


def _in_tiles(v: Value) -> bool:
    """Whether a product is one that units multiply in tiles: they want their operands in memory."""
    _, m, n = v.shape
    k = v.inputs[0].shape[2]
    return all(x.dtype.itemsize == 2 for x in v.inputs) and min(m, n, k) >= LARGE


def _even_steps(operand: Value, in_memory: set[Value]) -> set[Value]:
    """What has to be stored for an operand to lie in memory in even steps: none where it does,
    or the deepest of the views it is made by."""
    chain = [operand]
    while chain[-1].kind == "view" and chain[-1] not in in_memory:
        chain.append(chain[-1].inputs[0])
    source = chain.pop()
    if source not in in_memory and source.kind != "elementwise":  # which will be stored
        return set()
    for base in (source, *reversed(chain)):
        if lying(operand, {base: row_major(base.shape)}) is not None:
            return set() if base is source else {base}
    return set()


def _costly(v: Value, in_memory: set[Value], by_groups: bool = False) -> bool:
    """Whether computing v again costs more than a load. What is the same along a row is not
    computed at each of its points.
    """
    work = 0
    for x in walk([v], lambda x: x not in in_memory):
        if x in in_memory:
            work += 1
        elif 16 * x.size > v.size:
            if x.op in HEAVY or x.kind == "gather":
                if not by_groups or x.op not in MADE_AGAIN:
                    return True
                work += AGAIN_WORK
            work += x.kind == "elementwise"
    return work > (GROUP_WORK if by_groups else PLAIN_WORK)


def _varies_down(v: Value, group: FusionGroup) -> bool:
    """Whether a group that reduces along its first axes needs another element of v in every step,
    the same one in all rows: a number of each line that is summed up."""
    shape = squeeze(v.shape)
    return (
        group.kind == "loop"
        and set(range(len(shape))) <= set(group.axes)
        and shape == group.space[: len(shape)]
        and size_of(group.space) >= 64 * v.size
    )


def _outer_repeat(v: Value, g: FusionGroup) -> bool:
    """Whether v spans the innermost axis of a group but not the outer ones: it is computed anew for
    each step of those."""
    shape = squeeze(v.shape)
    return bool(shape) and bool(g.space) and shape[-1] == g.space[-1] and shape != g.space
