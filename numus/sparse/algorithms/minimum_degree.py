"""Approximate minimum degree ordering on a quotient graph (Amestoy, Davis & Duff 1996).

A node is a variable or, once it is eliminated, an element: the clique of its neighbours. Lists are
in `graph`: of a variable its elements first, then its variables; of an element its variables.
"""

from __future__ import annotations

import math

import numpy as np

from numus.codegen.cpu.sequential import INDEX64, Array
from numus.runtime.cpu.sequential import sequential

_ELBOW_ROOM = 1.3  # of lists, before they are compacted
_DENSE = 10.0  # nodes of more than this many times √n neighbours come last


@sequential
def compact(n: int, start: INDEX64, length: INDEX64, graph: INDEX64, free: int) -> int:
    """Live lists moved to the front: the first entry of each is its node's mark meanwhile."""
    for i in range(n):
        at = start[i]
        if at >= 0 and length[i] > 0:
            start[i] = graph[at]
            graph[at] = -i - 2
    to = 0
    at = 0
    while at < free:
        node = -graph[at] - 2
        at += 1
        if node >= 0:
            graph[to] = start[node]
            start[node] = to
            to += 1
            for _ in range(length[node] - 1):
                graph[to] = graph[at]
                to += 1
                at += 1
    return to


@sequential
def unlink(i: int, head: INDEX64, after: INDEX64, before: INDEX64, degree: INDEX64) -> None:
    """Take a variable out of the list of its degree."""
    if after[i] != -1:
        before[after[i]] = before[i]
    if before[i] != -1:
        after[before[i]] = after[i]
    else:
        head[degree[i]] = after[i]


@sequential
def link(i: int, d: int, head: INDEX64, after: INDEX64, before: INDEX64) -> None:
    after[i] = head[d]
    before[i] = -1
    if head[d] != -1:
        before[head[d]] = i
    head[d] = i


@sequential
def eliminate(
    n: int, dense: int, size: int, free: int, start: INDEX64, length: INDEX64, graph: INDEX64,
    elements: INDEX64, weight: INDEX64, degree: INDEX64, head: INDEX64, after: INDEX64,
    before: INDEX64, mark: INDEX64, bucket: INDEX64, rank: INDEX64, into: INDEX64,
) -> None:  # fmt: skip
    """rank[i]: when variable i was eliminated as a pivot, -1 where it went with node into[i].

    `elements[i]`: how many elements its list begins with, -2 for an element, -1 for what is gone.
    `weight[i]`: variables that are alike and stand for one; negative while i is in the new element.
    """
    for i in range(n):
        head[i] = -1
        bucket[i] = -1
        mark[i] = 1
        elements[i] = 0
        weight[i] = 1
        rank[i] = -1
        into[i] = -1
        degree[i] = length[i]
    done = 0
    count = 0
    for i in range(n):
        if length[i] == 0 or length[i] > dense:
            if length[i] == 0:
                rank[i] = count
                count += 1
            elements[i] = -1  # dense ones have no rank, and go last
            weight[i] = 0
            start[i] = -1
            done += 1
        else:
            link(i, degree[i], head, after, before)
    tag = 2
    least = 0
    largest = 0
    while done < n:
        while head[least] == -1:
            least += 1
        me = head[least]
        unlink(me, head, after, before, degree)
        pivot = weight[me]
        done += pivot
        rank[me] = count
        count += 1
        if elements[me] > 0 and free + least >= size:
            free = compact(n, start, length, graph, free)
        # the variables of the new element, from those of its elements and its own
        total = 0
        weight[me] = -pivot
        own = start[me]
        in_place = elements[me] == 0
        first = own if in_place else free
        last = first
        for k in range(elements[me] + 1):
            if k == elements[me]:
                e = me
                at = own + elements[me]
                many = length[me] - elements[me]
            else:
                e = graph[own + k]
                at = start[e]
                many = length[e]
            for q in range(at, at + many):
                i = graph[q]
                if weight[i] > 0:
                    total += weight[i]
                    weight[i] = -weight[i]
                    graph[last] = i
                    last += 1
                    unlink(i, head, after, before, degree)
            if e != me:
                into[e] = me
                start[e] = -1
                mark[e] = 0
        if not in_place:
            free = last
        degree[me] = total
        start[me] = first
        length[me] = last - first
        elements[me] = -2
        # |Le \ Lme| of the elements around
        for q in range(first, last):
            i = graph[q]
            own_weight = -weight[i]
            for p in range(start[i], start[i] + elements[i]):
                e = graph[p]
                if mark[e] >= tag:
                    mark[e] -= own_weight
                elif mark[e] != 0:
                    mark[e] = degree[e] + tag - own_weight
        # degrees, and lists without what the new element covers
        for q in range(first, last):
            i = graph[q]
            begin = start[i]
            middle = begin + elements[i]
            end = begin + length[i]
            to = begin
            key = 0
            d = 0
            for p in range(begin, middle):
                e = graph[p]
                if mark[e] != 0:
                    outside = mark[e] - tag
                    if outside > 0:
                        d += outside
                        graph[to] = e
                        to += 1
                        key += e
                    else:
                        into[e] = me
                        start[e] = -1
                        mark[e] = 0
            kept = to - begin
            elements[i] = kept + 1
            vertex = to
            for p in range(middle, end):
                j = graph[p]
                if weight[j] > 0:
                    d += weight[j]
                    graph[to] = j
                    to += 1
                    key += j
            if d == 0:  # its neighbours are the element's: eliminated with it
                into[i] = me
                start[i] = -1
                own_weight = -weight[i]
                total -= own_weight
                pivot += own_weight
                done += own_weight
                weight[i] = 0
                elements[i] = -1
            else:
                degree[i] = min(degree[i], d)
                graph[to] = graph[vertex]  # room for the new element, in front
                graph[vertex] = graph[begin]
                graph[begin] = me
                length[i] = to - begin + 1
                key = key % n
                after[i] = bucket[key]
                bucket[key] = i
                before[i] = key
        degree[me] = total
        largest = max(largest, total)
        tag = tag + largest + 1
        # variables of equal lists become one
        for q in range(first, last):
            i = graph[q]
            if weight[i] >= 0:
                continue
            key = before[i]
            i = bucket[key]
            bucket[key] = -1
            while i != -1 and after[i] != -1:
                many = length[i]
                for p in range(start[i] + 1, start[i] + many):
                    mark[graph[p]] = tag
                previous = i
                j = after[i]
                while j != -1:
                    same = length[j] == many and elements[j] == elements[i]
                    p = start[j] + 1
                    stop = start[j] + many
                    while same and p < stop:
                        same = mark[graph[p]] == tag
                        p += 1
                    if same:
                        into[j] = i
                        weight[i] += weight[j]
                        weight[j] = 0
                        elements[j] = -1
                        start[j] = -1
                        j = after[j]
                        after[previous] = j
                    else:
                        previous = j
                        j = after[j]
                i = after[i]
                tag += 1
        # back into the lists of degrees
        to = first
        for q in range(first, last):
            i = graph[q]
            own_weight = -weight[i]
            if own_weight <= 0:
                continue
            weight[i] = own_weight
            d = min(degree[i] + total - own_weight, n - done - own_weight)
            d = max(d, 0)
            link(i, d, head, after, before)
            least = min(least, d)
            degree[i] = d
            graph[to] = i
            to += 1
        weight[me] = pivot
        length[me] = to - first
        if length[me] == 0:
            start[me] = -1
            mark[me] = 0
        if not in_place:
            free = to


def approximate_minimum_degree(n: int, pointers: Array, indices: Array) -> Array:
    """The order in which rows of a symmetric pattern without diagonal are eliminated."""
    nnz = int(pointers[-1])
    size = int(nnz * _ELBOW_ROOM) + 8 * n + 64
    graph = np.empty(size, np.int64)
    graph[:nnz] = indices
    start = pointers[:-1].astype(np.int64)
    length = np.diff(pointers).astype(np.int64)
    dense = max(16, int(_DENSE * math.sqrt(n)))
    elements, weight, degree, head, after, before, mark, bucket, rank, into = (
        np.empty(n + 1, np.int64) for _ in range(10)
    )
    eliminate(
        *(n, min(dense, n), size, nnz, start, length, graph, elements, weight, degree, head),
        *(after, before, mark, bucket, rank, into),
    )
    rank, into = rank[:n], into[:n]
    absorbed = np.flatnonzero(rank < 0)
    while absorbed.size:  # follow to what was a pivot; dense ones have nowhere to go
        target = into[absorbed]
        absorbed, target = absorbed[target >= 0], target[target >= 0]
        known = rank[target] >= 0
        rank[absorbed[known]] = rank[target[known]]
        into[absorbed[~known]] = into[target[~known]]
        absorbed = absorbed[~known]
    rank[rank < 0] = n
    return np.argsort(rank, kind="stable")
