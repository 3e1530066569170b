"""Order statistics of one long axis: Floyd-Rivest selection by a sorted sample.

A sample of some thousand elements brackets the wanted ranks; one pass counts what lies below the
bracket, one more takes out what lies inside, which is a few percent and is sorted. Sorting all of
them would move every element several times.
"""

from __future__ import annotations

import math

import numpy as np

from numus.evaluation.evaluate import is_known
from numus.functions import api as nm
from numus.functions._base import wrap
from numus.functions.indexing.index_checks import upload
from numus.graph import has_active_hook
from numus.tensor import Tensor

SAMPLE_ELEMENTS = 1 << 14
MIN_ELEMENTS = 1 << 17  # shorter axes are sorted as quickly
_DEVIATIONS = 5  # standard deviations of the sample's ranks on each side of the bracket


def can_select(x: Tensor) -> bool:
    """True if the values of a long vector may be looked at while it is searched: it is neither
    traced nor differentiated."""
    node = x._node
    plain = not (node.tracked or node.abstract or has_active_hook())
    return plain and x.ndim == 1 and x.size >= MIN_ELEMENTS and is_known(node)


def order_statistics(x: Tensor, ranks: list[int]) -> Tensor:
    """The elements of these ranks of a vector without NaN; `can_select` holds of it."""
    drawn = _sample(x)
    groups = _neighbours(ranks)
    found = {rank: value for group in groups for rank, value in _select(x, drawn, group).items()}
    return nm.stack([found[rank] for rank in ranks])


def _neighbours(ranks: list[int]) -> list[list[int]]:
    """Ranks next to each other share a bracket."""
    groups: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if groups and rank - groups[-1][-1] <= 1:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return groups


def _sample(x: Tensor) -> Tensor:
    """A sorted sample: one element of each of many stretches, at a random place in it."""
    stretch = x.size // SAMPLE_ELEMENTS
    within = np.random.default_rng(x.size).integers(0, stretch, SAMPLE_ELEMENTS)
    index = np.arange(SAMPLE_ELEMENTS) * stretch + within
    return nm.sort(x[wrap(upload(index, x._node))])


def _select(x: Tensor, drawn: Tensor, ranks: list[int]) -> dict[int, Tensor]:
    """The elements of neighbouring ranks."""
    first, last = ranks[0], ranks[-1]
    margin = math.ceil(_DEVIATIONS * math.sqrt(SAMPLE_ELEMENTS) / 2)
    low_at = math.floor(first / x.size * SAMPLE_ELEMENTS) - margin
    high_at = math.ceil(last / x.size * SAMPLE_ELEMENTS) + margin
    inside = _at_least(x, drawn, low_at) & _at_most(x, drawn, high_at)
    below = ~_at_least(x, drawn, low_at)
    skipped, held = (int(nm.count_nonzero(mask)) for mask in (below, inside))
    if not skipped <= first <= last < skipped + held or held > x.size // 4:
        ordered, skipped = nm.sort(x), 0  # many equal elements, or an unlucky sample
    else:
        ordered = nm.sort(nm.masked_select(x, inside))
    return {rank: ordered[rank - skipped] for rank in ranks}


def _at_least(x: Tensor, drawn: Tensor, at: int) -> Tensor:
    return x >= drawn[at] if at >= 0 else nm.ones_like(x, dtype="bool")


def _at_most(x: Tensor, drawn: Tensor, at: int) -> Tensor:
    return x <= drawn[at] if at < SAMPLE_ELEMENTS else nm.ones_like(x, dtype="bool")
