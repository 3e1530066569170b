"""Which values are computed in which kernel.

Every value that has to be in memory starts as a group of its own; groups then merge, consumers into
producers, wherever one kernel can serve both:
    a map over the same space, reading its producer element for element;
    a further stage over the same rows (softmax, layer norm and their gradients become one kernel);
    a sibling that reads the same input over the same space (mean and variance in one pass);
    the elementwise tail of a contraction (bias, activation, residual) or of a scan;
    the parts of attention (its result and its sums; the cotangents of its operands).
What a merged group uses only within itself never reaches memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Index, is_inline
from numus.compiler.local import PRODUCTS, Val, walk
from numus.compiler.lying import lying
from numus.compiler.views import source_of
from numus.compiler.work import ATTENTION
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major, size_of

# Rows are merged over several stages only where they can run side by side or are short.
ENOUGH_ROWS = 16
SHORT_ROW = 1 << 16

# A value that views read at more places than this is stored: each place is a copy of its code.
MANY_PLACES = 8

# Operations that are rather done again than their result stored, by how many values they read.
QUICK = {1: 5, 2: 4}

MANY_MEMBERS = 64  # more than this a group does not take in

# Values that a kernel of a group has at most where they share no more than a few numbers, and how
# large maps are of which that holds.
SIBLINGS, LARGE_MAP = 6, 1 << 16

# Kinds whose kernels compute elementwise values that follow from their results.
TAILED = (*PRODUCTS, "scan")

LARGE = 128  # rows, columns and depth of a product whose operands are worth a kernel of their own

# A costly number that more kernels than this use is computed by one of its own.
FEW_USERS = 3

HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv ndtr lgamma digamma trigamma sigmoid pow atan2 hypot cbrt mod "
    "floor_divide threefry normal".split()
)


SLOW = frozenset("div sqrt rsqrt".split())  # that are more than one instruction of a thread


def squeeze(shape: Shape) -> Shape:
    """The shape without its axes of extent 1."""
    return tuple(n for n in shape if n != 1)


def place(shape: Shape, variables: Sequence[ir.Expr]) -> Index:
    """An index of `shape` whose axes longer than 1 take the variables in order."""
    left = iter(variables)
    return tuple(ir.const(0) if n == 1 else next(left) for n in shape)


# Of these, the ones that a device of many threads computes again sooner than it stores and loads
# them: each counts as so many plain operations.
MADE_AGAIN = frozenset("exp exp2 expm1 log log2 log1p tanh sigmoid erf".split())
AGAIN_WORK = 6

PLAIN_WORK = 12  # operations that cost more than a load,
GROUP_WORK = 32  # and where threads wait for memory anyway


class Group:
    """Values computed by one kernel (or one hand-written schedule).

    Loops run over `space` (squeezed); `axes` are the places in it that reductions run over.
    """

    __slots__ = ("axes", "frugal", "kind", "members", "position", "space", "stored")

    def __init__(self, val: Val, position: int) -> None:
        self.members = [val]
        self.position = position
        self.stored: set[Val] = set()
        self.frugal = False  # whether its kernels are to do with less memory
        self.axes: Shape = ()
        if val.kind == "reduce":
            self.kind = "loop"
            shape = val.inputs[0].shape
            self.space = squeeze(shape)
            self.axes = _squeezed_axes(shape, val.params)
        elif is_inline(val) or val.op == "copy":
            self.kind = "loop"
            self.space = squeeze(val.shape)
        else:
            self.kind = val.kind
            self.space = squeeze(val.shape)

    @property
    def outer(self) -> Shape:
        """The space without the axes that are reduced."""
        return tuple(n for i, n in enumerate(self.space) if i not in self.axes)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.space} over {self.axes}: {self.members}>"


def _squeezed_axes(shape: Shape, axes: Shape) -> Shape:
    places = [i for i, n in enumerate(shape) if n != 1]
    return tuple(places.index(a) for a in axes if shape[a] != 1)


def level(group: Group, val: Val) -> str:
    """Where a member of a loop group is computed: "reduce", at every point ("full"), or per row."""
    if val.kind == "reduce":
        return "reduce"
    return "full" if squeeze(val.shape) == group.space or not group.axes else "outer"


def _varies_down(v: Val, group: Group) -> bool:
    """Whether a group that reduces along its first axis needs another element of v in every step,
    the same one in all rows: a number of each line that is summed up."""
    return (
        group.kind == "loop"
        and 0 in group.axes
        and squeeze(v.shape) == group.space[:1]
        and size_of(group.space) >= 64 * v.size
    )


def leaves_of(val: Val, in_memory: set[Val]) -> set[Val]:
    """The values in memory that an expression reads."""
    return {x for x in walk(val.inputs, lambda x: x not in in_memory) if x in in_memory}


def _bytes(v: Val) -> int:
    return v.size * v.dtype.itemsize


def _packed(v: Val) -> list[Val]:
    """The operands that a contraction or attention reads once, or once a task, to pack them."""
    if v.kind not in ATTENTION:
        return list(v.inputs)
    pairs = zip(v.params.names, v.inputs, strict=True)
    return [x for name, x in pairs if name not in ("bias", "keep")]


def _in_tiles(v: Val) -> bool:
    """Whether a product is one that units multiply in tiles: they want their operands in memory."""
    _, m, n = v.shape
    k = v.inputs[0].shape[2]
    return all(x.dtype.itemsize == 2 for x in v.inputs) and min(m, n, k) >= LARGE


class Fuser:
    """Groups the values of a graph. `leaves` are in memory already; `roots` must come to be."""

    def __init__(
        self, values: Sequence[Val], roots: Sequence[Val], leaves: set[Val], facts: Facts
    ) -> None:
        self.facts = facts
        self.roots = set(roots)
        self.leaves = leaves
        needed = walk(roots, lambda v: v not in leaves)
        self.order = sorted(needed, key=lambda v: v.id)
        self.in_memory: set[Val] = set()
        self.laid_out: set[Val] = set()  # for units that multiply tiles
        self.groups: list[Group] = []
        self.sums: set[Val] = set()  # of products
        self._known_aligned: dict[Any, bool] = {}

    def run(self) -> list[Group]:
        """The groups in an order in which they can run."""
        stored = {v for v in self.order if v in self.roots or not is_inline(v)} - self.leaves
        stored |= self._tails()
        stored |= self._costly_operands(stored)
        stored |= self._read_in_many_places(stored)
        stored = self._settled(stored, set())
        again = self._quickly_made_again()
        if again:
            self._settled(stored - again, again)
        return self._ordered()

    def _settled(self, stored: set[Val], never: set[Val]) -> set[Val]:
        """Group until nothing more is worth storing: what is stored then."""
        while True:
            self._group(stored)
            shared = self._worth_storing(stored) - never
            if not shared:
                self._mark_stored()
                return stored
            stored = stored | shared

    # -- merging ----------------------------------------------------------------------------------

    def _group(self, stored: set[Val]) -> None:
        self.in_memory = stored | self.leaves
        self.anywhere = {x: (0,) * len(x.shape) for x in self.in_memory}  # layouts for probing
        self.home: dict[Val, Group] = {}
        self.groups = []
        self.reads: dict[Group, set[Val]] = {}
        self.needs: dict[Group, set[Group]] = {}
        self.by_space: dict[Shape, list[Group]] = {}
        self.read_by = {v: leaves_of(v, self.in_memory) for v in self.order if v in stored}
        self.readers: dict[Val, list[Val]] = {}
        for v, reads in self.read_by.items():
            for r in reads:
                self.readers.setdefault(r, []).append(v)
        for v, reads in self.read_by.items():
            group = Group(v, v.id)
            self._unite(group, v, reads)
            needs = {self.home[r] for r in reads if r in self.home}
            for n in list(needs):
                needs |= self.needs[n]
            target = self._target(group, v, reads, needs)
            if target is not None:
                target.members.append(v)
                target.position = max(target.position, v.id)
                if v.kind == "reduce" and not target.axes:
                    target.axes = group.axes
                self.home[v] = target
                self.reads[target] |= reads
                needs.discard(target)
                self.needs[target] |= needs
                for other in self.groups:  # what needed the target now needs these too
                    if target in self.needs[other]:
                        self.needs[other] |= needs
            else:
                self.home[v] = group
                self.groups.append(group)
                self.reads[group] = reads
                self.needs[group] = needs
                if group.kind == "loop" or group.kind in TAILED:
                    self.by_space.setdefault(group.space, []).append(group)

    def _target(self, group: Group, v: Val, reads: set[Val], needs: set[Group]) -> Group | None:
        if v.kind in ATTENTION:
            return self._companion(v, reads)
        if self.facts.group and v.kind in ("view", "concat") and v.size:
            placed = self._placed(v)
            if placed is not None:
                return placed
        if group.kind != "loop" or v.size == 0 or size_of(group.space) == 0:
            return None
        producers = {self.home[r] for r in reads if r in self.home}
        candidates = sorted(producers, key=lambda g: -g.position)
        if v in self.sums:  # a product comes before a sum of others
            candidates.sort(key=lambda g: len(g.members) > 1)
        shared = [
            g
            for g in self.by_space.get(group.space, ())[-8:]
            if g not in producers and self._akin(g, group, reads)
        ]
        for target in [*candidates, *reversed(shared)]:
            if (
                self._may_join(target, group, v, producers)
                and not self._delays(target, v, needs)
                and self._aligned(target, group, v)
            ):
                return target
        return None

    def _akin(self, target: Group, group: Group, reads: set[Val]) -> bool:
        """Whether a group reads something that another reads too. Where threads keep what they work
        on in registers, a few numbers in common do not make one kernel of many large maps."""
        common = self.reads[target] & reads
        if not self.facts.group or size_of(group.space) < LARGE_MAP:
            return bool(common)
        return any(x.size > 1 for x in common) or (bool(common) and len(target.members) < SIBLINGS)

    def _unite(self, group: Group, v: Val, reads: set[Val]) -> None:
        """Make one of row programs over the same rows that know nothing of each other, where v is
        the next stage of both.
        """
        if group.kind != "loop" or v.size == 0:
            return
        producers = {self.home[r] for r in reads if r in self.home}
        rows = [g for g in producers if g.axes and g.space == group.space]
        rows = [g for g in rows if g.kind == "loop" and self._rows_fit(g)]
        if len(rows) < 2:
            return
        first, *others = sorted(rows, key=lambda g: g.position)
        for other in others:
            if (
                other.axes == first.axes
                and self._independent(first, other)
                and len(first.members) + len(other.members) <= MANY_MEMBERS
                and all(self._may_join(g, group, v, {g}) for g in (first, other))
                and all(self._aligned(g, group, v) for g in (first, other))
            ):
                self._absorb(first, other)

    def _independent(self, a: Group, b: Group) -> bool:
        """Whether neither of two groups waits for the other, not even through a third."""
        return a not in self.needs[b] and b not in self.needs[a]

    def _absorb(self, into: Group, other: Group) -> None:
        into.members = sorted([*into.members, *other.members], key=lambda m: m.id)
        into.position = max(into.position, other.position)
        for m in other.members:
            self.home[m] = into
        self.reads[into] |= self.reads.pop(other)
        needs = self.needs[into] | self.needs.pop(other)
        self.needs[into] = needs
        self.groups.remove(other)
        self.by_space[other.space].remove(other)
        for g in self.groups:
            if other in self.needs[g] or into in self.needs[g]:
                self.needs[g] = (self.needs[g] - {other}) | {into} | needs

    def _delays(self, target: Group, v: Val, needs: set[Group]) -> bool:
        """Whether a group would have to wait for larger ones if v joined it, though others can do
        with what it has already: such as those larger ones' own next stages.
        """
        size = size_of(target.space)
        if all(n is target or n in self.needs[target] or size_of(n.space) <= size for n in needs):
            return False
        readers = {r for m in target.members for r in self.readers.get(m, ())}
        readers -= {v, *target.members}
        return any(v not in self.read_by[r] for r in readers)

    def _companion(self, v: Val, reads: set[Val]) -> Group | None:
        """The group whose kernel computes this part of attention along with its own."""
        needs = {self.home[r] for r in reads if r in self.home}
        for g in reversed(self.groups):
            first = g.members[0]
            if g.kind != v.kind or first.params.causal != v.params.causal:
                continue
            if any(g in self.needs[n] for n in needs if n is not g):
                continue
            if v.op == "attention_grad":
                fits = first.inputs == v.inputs
            else:
                fits = first.op == "attention_lse" and first in v.inputs and len(g.members) == 1
            if fits:
                return g
        return None

    def _placed(self, v: Val) -> Group | None:
        """The group of attention whose kernels store this as well as, or instead of, what it is a
        view or a concatenation of (`placing.py`)."""
        sources = [source_of(x)[0] for x in (v.inputs if v.op == "concat" else (v,))]
        homes = {self.home.get(x) for x in sources}
        if len(homes) != 1 or len(set(sources)) < len(sources):
            return None
        (found,) = homes
        return found if found is not None and found.kind in ATTENTION else None

    def _may_join(self, target: Group, group: Group, v: Val, producers: set[Group]) -> bool:
        if (target.kind != "loop" and target.kind not in TAILED) or size_of(target.space) == 0:
            return False
        # nothing the newcomer needs may itself wait for the target
        for p in producers:
            if p is not target and target in self.needs[p]:
                return False
        if len(target.members) > MANY_MEMBERS:
            return False
        if target.kind in TAILED:
            return v.kind != "reduce" and group.space == target.space and v.op != "copy"
        if v.kind == "reduce":
            if group.space != target.space:
                return False
            if any(m.kind == "reduce" for m in target.members):
                if group.axes != target.axes:
                    return False
                return self._rows_fit(group) or not self._depends(v, target)
            # a reduction over a map that is also stored: fine where rows are the parallel unit
            return True
        if target.axes:
            if group.space == target.space:
                return self._rows_fit(target) or not self._depends(v, target)
            return group.space == target.outer
        return group.space == target.space

    def _rows_fit(self, group: Group) -> bool:
        rows = size_of(group.outer)
        return rows >= ENOUGH_ROWS or size_of(group.space) <= rows * SHORT_ROW

    def _depends(self, v: Val, target: Group) -> bool:
        """Whether v reads a reduction of the target (directly or through other members)."""
        inside = set(target.members)
        read = walk(v.inputs, lambda x: x in inside or x not in self.in_memory)
        return any(x in inside and x.kind == "reduce" for x in read)

    def _aligned(self, target: Group, group: Group, v: Val) -> bool:
        """Whether v reads the target's members only at the point (or row) it is computed for."""
        # the same is asked whenever values are grouped anew
        axes = target.axes, group.axes
        key = (v, frozenset(self.read_by[v]), tuple(target.members), axes)
        found = self._known_aligned.get(key)
        if found is None:
            found = self._known_aligned[key] = self._is_aligned(target, group, v)
        return found

    def _is_aligned(self, target: Group, group: Group, v: Val) -> bool:
        probe = Emitter(self.anywhere)
        names = [ir.var(f"p{i}") for i in range(len(target.space))]
        for name, n in zip(names, target.space, strict=True):
            probe.extents[name] = probe.number(n)
        axes = target.axes or group.axes
        rows = [x for i, x in enumerate(names) if i not in axes]
        good = True
        at_full = group.space == target.space

        def watch(m: Val, expected: Index) -> None:
            def known(index: Index) -> object:
                nonlocal good
                if index != expected:
                    good = False
                if not m.dtype.is_complex:
                    return ir.scalar(f"m{m.id}", m.dtype)
                return tuple(ir.scalar(f"m{m.id}{p}", dt.real_of(m.dtype)) for p in "ri")

            probe.known[m] = known

        for m in target.members:
            if m.kind == "reduce":
                watch(m, place(m.shape, rows))
            elif target.kind in TAILED or squeeze(m.shape) == target.space:
                watch(m, place(m.shape, names))
            else:
                watch(m, place(m.shape, rows))
        if not at_full and any(
            m.kind != "reduce" and squeeze(m.shape) == target.space and target.axes
            for m in target.members
            if m in leaves_of(v, self.in_memory)
        ):
            return False
        source = v.inputs[0] if v.kind == "reduce" or v.op == "copy" else v
        index = place(source.shape, names if at_full else rows)
        saved = probe.layouts.pop(v, None)
        try:
            if source is not v and source in probe.known:
                probe.known[source](index)
            else:
                probe.value(source, index)
        except TypeError:
            return False
        finally:
            if saved is not None:
                probe.layouts[v] = saved
        return good

    def _tails(self) -> set[Val]:
        """What is stored instead of a product: the last elementwise value that all ways lead
        through from it.
        """
        users: dict[Val, list[Val]] = {}
        for v in self.order:
            if v not in self.leaves:
                for x in dict.fromkeys(v.inputs):
                    users.setdefault(x, []).append(v)
        found: set[Val] = set()
        for product in self.order:
            if product.kind in TAILED and product not in self.leaves:
                last = self._narrower(self._last_gate(product, users))
                if last is not product:
                    found.add(last)
        if not self.facts.group:  # there, no product waits for another
            found |= self._sums_on_the_way(users)
        return found

    def _sums_on_the_way(self, users: dict[Val, list[Val]]) -> set[Val]:
        """What a sum of many products is after each of them, but for the last: the product's kernel
        adds to what was there, so that one value is kept, not one for each product.
        """
        parts = set[Val]()  # products, and sums of them
        for v in self.order:
            if v in self.leaves:
                continue
            if v.op == "add" and all(x in parts and x.shape == v.shape for x in v.inputs):
                self.sums.add(v)
            if v.kind in PRODUCTS or v in self.sums:
                parts.add(v)
        return {v for v in self.sums if v in users and all(u in self.sums for u in users[v])}

    def _narrower(self, gate: Val) -> Val:
        """The value itself, or what it only makes wider: its readers do that as they load."""
        while gate.op == "cast" and gate not in self.roots:
            source = gate.inputs[0]
            if source.dtype.itemsize >= gate.dtype.itemsize or not source.dtype.is_floating:
                break
            gate = source
        return gate

    def _last_gate(self, product: Val, users: dict[Val, list[Val]]) -> Val:
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

    def _costly_operands(self, stored: set[Val]) -> set[Val]:
        """Activations that contractions read: stored once, as the tail of what computes them. What
        scatters read one after another is computed side by side, before.
        """
        self.in_memory = stored | self.leaves
        found: set[Val] = set()
        for v in self.order:
            if v.kind not in (*PRODUCTS, *ATTENTION, "scatter") or v in self.leaves:
                continue
            tiles = v.kind == "contract" and "tiles" in self.facts.features and _in_tiles(v)
            for x in _packed(v):
                if tiles:
                    found |= self._laid_out(x)
                while x.kind == "view" and x not in self.in_memory:
                    x = x.inputs[0]
                inline = x.kind == "elementwise" and x not in self.in_memory
                if inline and tiles and x.size > 1:
                    self.laid_out.add(x)
                elif inline and self._costly(x):
                    found.add(x)
        return found | self.laid_out

    def _laid_out(self, operand: Val) -> set[Val]:
        """What has to be stored for an operand to lie in memory in even steps: none where it does,
        or the deepest of the views it is made by."""
        chain = [operand]
        while chain[-1].kind == "view" and chain[-1] not in self.in_memory:
            chain.append(chain[-1].inputs[0])
        source = chain.pop()
        if source not in self.in_memory and source.kind != "elementwise":  # which will be stored
            return set()
        for base in (source, *reversed(chain)):
            if lying(operand, {base: row_major(base.shape)}) is not None:
                return set() if base is source else {base}
        return set()

    def _read_in_many_places(self, stored: set[Val]) -> set[Val]:
        """Values that views read at so many different places that copies of their code pile up."""
        found: set[Val] = set()
        never = self._as_large_as_scores()
        places: dict[Val, set[object]] = {}  # by which index maps a value is read
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

    # -- what to store ----------------------------------------------------------------------------

    def _worth_storing(self, stored: set[Val]) -> set[Val]:
        """Costly expressions that several groups (or many points) would compute again."""
        users: dict[Val, set[Group]] = {}
        # walk from consumers to producers, handing down who uses each inline value
        for v in reversed(self.order):
            homes = {self.home[v]} if v in self.home else users.get(v, set())
            for x in v.inputs:
                if x not in self.in_memory:
                    users.setdefault(x, set()).update(homes)
        out: set[Val] = set()
        never = self._as_large_as_scores()
        for v in self.order:
            if v in self.in_memory or v.kind != "elementwise" or v.size == 0 or v in never:
                continue
            # a single number is computed by each of a few: that is no kernel more
            many = len(users.get(v, ())) > (1 if v.size > 1 else FEW_USERS)
            again = v.size > 1 and self._repeated(v, users.get(v, set()))
            if again or (many and self._costly(v, v.size > 1 and bool(self.facts.group))):
                out.add(v)
        # the topmost of a chain is enough
        covered = {x for w in out if w not in self.in_memory for x in w.inputs}
        return out - covered

    def _quickly_made_again(self) -> set[Val]:
        """Values that are stored for later though they follow in a step or two from others that are
        there as long: an activation and what it was applied to, a softmax and its exponentials.
        Not what units multiply: every product would lay it out anew.
        """
        kept = {v for g in self.groups for v in g.stored}
        when: dict[Val, int] = {}  # each could be computed, in steps from the beginning
        for v, reads in self.read_by.items():
            when[v] = 1 + max((when.get(r, 0) for r in reads), default=0)
        last = {v: max(when[u] for u in (v, *self.readers.get(v, ()))) for v in kept}
        there = set(self.in_memory)
        for v in sorted(kept - self.roots - self.laid_out, key=lambda v: v.id):
            if v.kind != "elementwise":
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
        return self.in_memory - there

    def _as_large_as_scores(self) -> set[Val]:
        """What attention reads for each score (masks, dropout): it is computed there each time."""
        found: set[Val] = set()
        for v in self.order:
            if v.kind in ATTENTION and v not in self.leaves:
                scores = [x for x in v.inputs if x not in _packed(v)]
                whole = v.inputs[0].shape[0] * v.inputs[0].shape[1] * v.inputs[1].shape[1]
                inline = walk(scores, lambda x: x not in self.in_memory)
                found.update(x for x in inline if x.size >= whole)
        return found

    def _costly(self, v: Val, by_groups: bool = False) -> bool:
        """Whether computing v again costs more than a load. What is the same along a row is not
        computed at each of its points.
        """
        work = 0
        for x in walk([v], lambda x: x not in self.in_memory):
            if x in self.in_memory:
                work += 1
            elif 16 * x.size > v.size:
                if x.op in HEAVY or x.kind == "gather":
                    if not by_groups or x.op not in MADE_AGAIN:
                        return True
                    work += AGAIN_WORK
                work += x.kind == "elementwise"
        return work > (GROUP_WORK if by_groups else PLAIN_WORK)

    def _repeated(self, v: Val, users: set[Group]) -> bool:
        """Whether a costly value is broadcast along outer loops, and so computed many times."""
        slow = v.op in HEAVY or v.op in SLOW
        if self.facts.group and slow and any(_varies_down(v, g) for g in users):
            return True
        if v.op not in HEAVY:
            return False
        return any(g.kind in PRODUCTS and size_of(g.space) > 4 * v.size for g in users) or any(
            g.kind == "loop" and size_of(g.space) >= 8 * v.size and self._outer_repeat(v, g)
            for g in users
        )

    def _outer_repeat(self, v: Val, g: Group) -> bool:
        # a value that spans the innermost axis but not the outer ones is recomputed per outer step
        shape = squeeze(v.shape)
        return bool(shape) and bool(g.space) and shape[-1] == g.space[-1] and shape != g.space

    def _mark_stored(self) -> None:
        for group in self.groups:
            group.stored = set()
            for m in group.members:
                if m in self.roots or m.op == "attention_lse":  # which a gradient asks for
                    group.stored.add(m)
        for group in self.groups:
            for r in self.reads[group]:
                home = self.home.get(r)
                if home is not None and home is not group:
                    home.stored.add(r)

    def _ordered(self) -> list[Group]:
        out: list[Group] = []
        done: set[Group] = set()
        waiting = sorted(self.groups, key=lambda g: g.position)
        while waiting:
            rest = []
            for g in waiting:
                direct = {self.home[r] for r in self.reads[g] if r in self.home} - {g}
                if direct <= done:
                    out.append(g)
                    done.add(g)
                else:
                    rest.append(g)
            if len(rest) == len(waiting):
                raise AssertionError("groups wait for each other")
            waiting = rest
        return out
