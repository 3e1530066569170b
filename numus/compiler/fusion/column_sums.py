"""Column sums beside rows: reductions of both axes of a matrix in one pass, on GPUs.

A layer norm's gradient reduces the rows of a matrix, and its parameters' gradients the columns; a
bias's gradient sums the columns of what the norm has computed. One kernel reads the matrix once.
"""

from __future__ import annotations

from numus.compiler.fusion.group import FusionGroup, Partition, squeeze
from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph.value import Value
from numus.shapes import size_of
from numus.target import Target


def merge_column_sums(partition: Partition, target: Target) -> None:
    """Merge sums of columns into groups that reduce the rows of the same matrices."""
    if not (target.simt and target.vector_access_bytes and target.subgroup_size):
        return
    sums = [g for g in partition.groups if _sums_columns(g)]
    for group in sorted(sums, key=lambda g: g.position):
        hosts = [h for h in partition.by_space.get(group.space, ()) if _has_rows(h, target)]
        for host in sorted(hosts, key=lambda h: -h.position):
            if _reads_of(partition, host, group) and _runs_with(partition, host, group):
                members = [*host.members, *group.members]
                partition.merge(host, group)
                partition.ancestors[host].discard(host)
                host.members = members
                host.stored |= group.stored
                break


def _sums_columns(group: FusionGroup) -> bool:
    """Sums over all axes but the last, and what is computed of each."""
    last = len(group.space) - 1
    return (
        group.kind == "loop"
        and last > 0
        and group.axes == tuple(range(last))
        and group.members[0].kind == "reduce"
        and all(m.op == "reduce_sum" for m in group.members if m.kind == "reduce")
        and all(squeeze(m.shape) != group.space for m in group.members)
    )


def _has_rows(group: FusionGroup, target: Target) -> bool:
    """Rows that registers hold, several to a block."""
    if group.kind != "loop" or not group.axes:
        return False
    sums = column_sums_of(group)
    if sums is not None and len(sums.members) > TUNING.column_sums_max_members:
        return False
    columns, rows = group.space[-1], size_of(group.space[:-1])
    return (
        group.axes == (len(group.space) - 1,)
        and TUNING.column_sums_min_columns <= columns <= TUNING.column_sums_max_columns
        and rows >= TUNING.column_sums_min_rows * target.num_cores
    )


def _reads_of(partition: Partition, host: FusionGroup, group: FusionGroup) -> bool:
    """All elements that the sums read are read or computed by the rows."""
    known = partition.reads[host] | set(host.members)
    whole = size_of(group.space)
    return all(x in known or x.size < whole for x in partition.reads[group])


def _runs_with(partition: Partition, host: FusionGroup, group: FusionGroup) -> bool:
    """The sums wait for little that the rows do not wait for, as an optimiser's numbers."""
    ancestors = partition.ancestors
    others = ancestors[group] - ancestors[host] - {host}
    is_before = group in ancestors[host] or any(host in ancestors[x] for x in others)
    return not is_before and all(size_of(x.space) <= group.space[-1] for x in others)


def column_sums_of(group: FusionGroup) -> FusionGroup | None:
    """The sums of columns that were merged into a group, as one of their own; None: none."""
    if not group.axes or group.axes == tuple(range(len(group.space) - 1)):
        return None
    for i, m in enumerate(group.members):
        if m.kind == "reduce" and m.op == "reduce_sum":
            axes = FusionGroup(m, 0).axes
            if axes != group.axes:
                found = FusionGroup.of(group.members[i:], _stored(group, i, None), group.position)
                found.axes = axes
                return found
    return None


def rows_of(group: FusionGroup, columns: FusionGroup) -> FusionGroup:
    """The group without its sums of columns."""
    count = len(group.members) - len(columns.members)
    return FusionGroup.with_state(group.state(), group.members[:count], _stored(group, 0, count))


def _stored(group: FusionGroup, first: int, end: int | None) -> set[Value]:
    return group.stored & set(group.members[first:end])
