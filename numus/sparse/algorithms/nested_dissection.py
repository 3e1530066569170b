"""Nested dissection (George 1973) by multilevel bisection (Hendrickson & Leland 1995, Karypis &
Kumar 1998): a graph is coarsened by matchings, the coarsest one is cut in two, and the vertices
between the halves are refined on the way back, by moves as of Fiduccia & Mattheyses (1982).

Halves are ordered before what separates them; small parts by minimum degree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numus.codegen.cpu.sequential import INDEX64, Array
from numus.runtime.cpu.sequential import sequential
from numus.sparse.algorithms.minimum_degree import approximate_minimum_degree

_LEAF = 200  # vertices of a part that is ordered by minimum degree
_COARSEST = 80
_LARGEST_SHARE = 0.6  # of the weight, in one half
_PATIENCE = 60  # moves without improvement before a pass ends
_PASSES = 8
_STARTS = 3  # cuts of the coarsest graph, of which the best is taken


@sequential
def match_vertices(
    n: int, pointers: INDEX64, indices: INDEX64, edges: INDEX64, weight: INDEX64, most: int,
    into: INDEX64,
) -> int:  # fmt: skip
    """Pairs along heavy edges, the lighter vertex of equal ones; the number of coarse vertices, and
    that of each vertex."""
    for i in range(n):
        into[i] = -1
    count = 0
    for i in range(n):
        if into[i] >= 0:
            continue
        best = -1
        heavy = 0
        for e in range(pointers[i], pointers[i + 1]):
            j = indices[e]
            if into[j] >= 0 or weight[i] + weight[j] > most:
                continue
            if edges[e] > heavy or (edges[e] == heavy and weight[j] < weight[best]):
                heavy = edges[e]
                best = j
        into[i] = count
        if best >= 0:
            into[best] = count
        count += 1
    return count


@sequential
def coarse_graph(
    n: int, pointers: INDEX64, indices: INDEX64, edges: INDEX64, weight: INDEX64, count: int,
    into: INDEX64, first: INDEX64, second: INDEX64, place: INDEX64, new_pointers: INDEX64,
    new_indices: INDEX64, new_edges: INDEX64, new_weight: INDEX64,
) -> int:  # fmt: skip
    """The graph of pairs: edges between the same two are added up; how many are left."""
    for c in range(count):
        first[c] = -1
        second[c] = -1
        place[c] = -1
        new_weight[c] = 0
    for i in range(n):
        c = into[i]
        new_weight[c] += weight[i]
        if first[c] < 0:
            first[c] = i
        else:
            second[c] = i
    at = 0
    new_pointers[0] = 0
    for c in range(count):
        begin = at
        for which in range(2):
            i = first[c] if which == 0 else second[c]
            if i < 0:
                continue
            for e in range(pointers[i], pointers[i + 1]):
                d = into[indices[e]]
                if d == c:
                    continue
                if place[d] >= begin:
                    new_edges[place[d]] += edges[e]
                else:
                    place[d] = at
                    new_indices[at] = d
                    new_edges[at] = edges[e]
                    at += 1
        new_pointers[c + 1] = at
    return at


@sequential
def breadth_first(
    n: int, root: int, pointers: INDEX64, indices: INDEX64, seen: INDEX64, queue: INDEX64
) -> int:
    """Vertices in the order of their distance, other components after; the last that was reached
    from the root."""
    for i in range(n):
        seen[i] = 0
    seen[root] = 1
    queue[0] = root
    head = 0
    tail = 1
    last = root
    ended = False
    start = 0
    while head < n:
        if head == tail:
            ended = True
            while seen[start] != 0:
                start += 1
            seen[start] = 1
            queue[tail] = start
            tail += 1
        i = queue[head]
        head += 1
        if not ended:
            last = i
        for e in range(pointers[i], pointers[i + 1]):
            j = indices[e]
            if seen[j] == 0:
                seen[j] = 1
                queue[tail] = j
                tail += 1
    return last


@sequential
def grow_half(
    n: int, root: int, total: int, pointers: INDEX64, indices: INDEX64, weight: INDEX64,
    seen: INDEX64, queue: INDEX64, side: INDEX64,
) -> None:  # fmt: skip
    """Side 0 is what is near a vertex, to half of the weight; its border is the separator, side
    2."""
    breadth_first(n, root, pointers, indices, seen, queue)
    now = 0
    for k in range(n):
        i = queue[k]
        side[i] = 0 if 2 * now < total else 1
        now += weight[i]
    for i in range(n):
        if side[i] == 0:
            for e in range(pointers[i], pointers[i + 1]):
                if side[indices[e]] == 1:
                    side[i] = 2


@sequential
def turn(
    v: int, new: int, pointers: INDEX64, indices: INDEX64, weight: INDEX64, side: INDEX64,
    near: INDEX64, total: INDEX64, members: INDEX64, where: INDEX64, count: int,
) -> int:  # fmt: skip
    """Move a vertex to another side; the number of those in the separator. near[3 v + s] is the
    weight of its neighbours on side s."""
    old = side[v]
    side[v] = new
    total[old] -= weight[v]
    total[new] += weight[v]
    if old == 2:
        count -= 1
        last = members[count]
        members[where[v]] = last
        where[last] = where[v]
    if new == 2:
        members[count] = v
        where[v] = count
        count += 1
    for e in range(pointers[v], pointers[v + 1]):
        near[3 * indices[e] + old] -= weight[v]
        near[3 * indices[e] + new] += weight[v]
    return count


@sequential
def refine_separator(
    n: int, pointers: INDEX64, indices: INDEX64, weight: INDEX64, largest: int, side: INDEX64,
    near: INDEX64, total: INDEX64, members: INDEX64, where: INDEX64, locked: INDEX64,
    moved: INDEX64, before: INDEX64,
) -> int:  # fmt: skip
    """Moves out of the separator that make it lighter, or will; its weight. Vertices that the move
    leaves next to the other side come in."""
    count = 0
    for s in range(3):
        total[s] = 0
    for i in range(n):
        total[side[i]] += weight[i]
        locked[i] = 0
        if side[i] == 2:
            members[count] = i
            where[i] = count
            count += 1
        for s in range(3):
            near[3 * i + s] = 0
        for e in range(pointers[i], pointers[i + 1]):
            near[3 * i + side[indices[e]]] += weight[indices[e]]
    for sweep in range(1, _PASSES + 1):
        best = total[2]
        skew = abs(total[0] - total[1])
        length = 0
        kept = 0
        since = 0
        while since < _PATIENCE and length + n < 4 * n:
            chosen = -1
            to = 0
            most = -n * 1000000
            for k in range(count):
                v = members[k]
                if locked[v] == sweep:
                    continue
                for s in range(2):
                    gain = weight[v] - near[3 * v + 1 - s]
                    if total[s] + weight[v] > largest:
                        continue
                    if gain > most or (gain == most and total[s] < total[to]):
                        most = gain
                        chosen = v
                        to = s
            if chosen < 0:
                break
            locked[chosen] = sweep
            moved[length] = chosen
            before[length] = 2
            length += 1
            count = turn(
                chosen, to, pointers, indices, weight, side, near, total, members, where, count
            )
            for e in range(pointers[chosen], pointers[chosen + 1]):
                u = indices[e]
                if side[u] == 1 - to:
                    moved[length] = u
                    before[length] = 1 - to
                    length += 1
                    count = turn(
                        u, 2, pointers, indices, weight, side, near, total, members, where, count
                    )
            own = abs(total[0] - total[1])
            if total[2] < best or (total[2] == best and own < skew):
                best = total[2]
                skew = own
                kept = length
                since = 0
            else:
                since += 1
        while length > kept:  # take back what did not help
            length -= 1
            count = turn(
                moved[length], before[length], pointers, indices, weight, side, near, total,
                members, where, count,
            )  # fmt: skip
        if kept == 0:
            break
    return total[2]


@sequential
def subgraph(
    count: int, chosen: INDEX64, number: INDEX64, pointers: INDEX64, indices: INDEX64,
    new_pointers: INDEX64, new_indices: INDEX64,
) -> int:  # fmt: skip
    """The edges among some vertices; `number` is -1 everywhere, before and after."""
    for k in range(count):
        number[chosen[k]] = k
    at = 0
    new_pointers[0] = 0
    for k in range(count):
        for e in range(pointers[chosen[k]], pointers[chosen[k] + 1]):
            if number[indices[e]] >= 0:
                new_indices[at] = number[indices[e]]
                at += 1
        new_pointers[k + 1] = at
    for k in range(count):
        number[chosen[k]] = -1
    return at


@dataclass(frozen=True)
class _Graph:
    pointers: Array
    indices: Array
    edges: Array
    weight: Array

    @property
    def n(self) -> int:
        return int(self.weight.size)

    def coarser(self, most: int) -> tuple[_Graph, Array] | None:
        """None where hardly any vertices match."""
        n = self.n
        into, first, second, place, pointers, weight = (np.empty(n + 1, np.int64) for _ in range(6))
        given = (n, self.pointers, self.indices, self.edges, self.weight)
        count = match_vertices(*given, most, into)
        if count > 0.95 * n:
            return None
        indices, edges = np.empty_like(self.indices), np.empty_like(self.indices)
        end = coarse_graph(
            *(*given, count, into, first, second, place, pointers, indices, edges, weight)
        )
        small = (pointers[: count + 1], indices[:end], edges[:end], weight[:count])
        return _Graph(*(x.copy() for x in small)), into[:n]

    def refined(self, side: Array) -> int:
        n, total = self.n, np.empty(3, np.int64)
        members, where, locked = (np.empty(n, np.int64) for _ in range(3))
        moved, before = np.empty(5 * n, np.int64), np.empty(5 * n, np.int64)
        largest = int(_LARGEST_SHARE * int(self.weight.sum())) + int(self.weight.max(initial=0))
        return refine_separator(
            *(n, self.pointers, self.indices, self.weight, largest, side),
            *(np.empty(3 * n, np.int64), total, members, where, locked, moved, before),
        )

    def cut(self) -> Array:
        """The best of some halves around vertices far out, refined."""
        n = self.n
        seen, queue = np.empty(n, np.int64), np.empty(n, np.int64)
        best, found = None, np.zeros(n, np.int64)
        total = int(self.weight.sum())
        root = 0
        for k in range(_STARTS):
            root = breadth_first(n, root, self.pointers, self.indices, seen, queue)
            side = np.empty(n, np.int64)
            grow_half(n, root, total, self.pointers, self.indices, self.weight, seen, queue, side)
            size = self.refined(side)
            if best is None or size < best:
                best, found = size, side
            if k >= 1:
                root = (k * n) // _STARTS
        return found


def bisected(pointers: Array, indices: Array) -> Array:
    """0 or 1 for vertices of the halves, 2 for those between them."""
    n = pointers.size - 1
    graph = _Graph(pointers, indices, np.ones(indices.size, np.int64), np.ones(n, np.int64))
    levels: list[tuple[_Graph, Array]] = []
    while graph.n > _COARSEST:
        smaller = graph.coarser(max(2, 3 * n // _COARSEST))
        if smaller is None:
            break
        levels.append((graph, smaller[1]))
        graph = smaller[0]
    side = graph.cut()
    for finer, into in reversed(levels):
        side = side[into].copy()
        finer.refined(side)
    return side


def nested_dissection(n: int, pointers: Array, indices: Array) -> Array:
    """The order in which rows of a symmetric pattern without diagonal are eliminated."""
    pointers, indices = pointers.astype(np.int64), indices.astype(np.int64)
    order = np.empty(n, np.int64)
    number = np.full(n, -1, np.int64)
    waiting = [(np.arange(n), 0)]  # vertices, and where they go
    while waiting:
        chosen, at = waiting.pop()
        count = chosen.size
        if count == 0:
            continue
        room = int((pointers[chosen + 1] - pointers[chosen]).sum())
        starts, ends = np.empty(count + 1, np.int64), np.empty(room, np.int64)
        size = subgraph(count, chosen, number, pointers, indices, starts, ends)
        ends = ends[:size]
        halves = None
        if count > _LEAF:
            side = bisected(starts, ends)
            parts = [chosen[side == s] for s in range(3)]
            if parts[0].size and parts[1].size and parts[2].size < count // 2:
                halves = parts
        if halves is None:
            inner = approximate_minimum_degree(count, starts, ends)
            order[at : at + count] = chosen[inner]
            continue
        left, right, between = halves
        waiting.append((left, at))
        waiting.append((right, at + left.size))
        order[at + left.size + right.size : at + count] = between
    return order
