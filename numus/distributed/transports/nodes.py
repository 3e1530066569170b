"""Nodes: which ranks share a machine, whose links are faster than the network's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np


def node_names(hosts: Sequence[str]) -> list[str]:
    """The node of each rank: its machine, or as many ranks in each as NUMUS_RANKS_PER_NODE says.

    >>> node_names(["a", "a", "b", "b"])
    ['a', 'a', 'b', 'b']
    """
    count = os.environ.get("NUMUS_RANKS_PER_NODE", "")
    if count.isdecimal() and int(count) > 0:
        return [str(rank // int(count)) for rank in range(len(hosts))]
    return list(hosts)


def grid(nodes: Sequence[str]) -> np.ndarray[Any, Any] | None:
    """Ranks of a group by node and place; None unless there are several nodes of several ranks,
    the same number in each.

    >>> grid(["a", "b", "a", "b"]).tolist()
    [[0, 2], [1, 3]]
    """
    members: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    counts = {len(found) for found in members.values()}
    if len(members) < 2 or len(counts) > 1 or counts == {1}:
        return None
    return np.array(list(members.values()))
