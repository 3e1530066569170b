"""Initial states of filtering in both directions (Gustafsson 1996).

A signal filtered forwards and then backwards, or in the other order, gives the same result for the
right initial states of the two filters. With the responses O of a filter to its initial states, R
for reversal and F for filtering from rest, these states are the least-squares solution of

    (R F R O - O) forward + (R O - F R O) backward = F R F R x - R F R F x
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.tensor import Tensor

Filter = Callable[[Tensor, Tensor | None], Tensor]  # of rows, from their states or from rest


def _reversed(y: Tensor) -> Tensor:
    return nm.flip(y, axis=-1)


def _responses(run: Filter, order: int, n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """O and F R O, a row per state."""
    states = nm.eye(order, dtype=like.dtype, device=like.device)
    found = run(nm.zeros((order, n), dtype=like.dtype, device=like.device), states)
    return found, run(_reversed(found), None)


def _both_ends(start: Tensor, end: Tensor, n: int) -> Tensor:
    """Responses that the first n samples, or the last n, see alone."""
    return nm.concat(
        [nm.pad(start, ((0, 0), (0, n))), nm.pad(end, ((0, 0), (n, 0)))],
        axis=0,
    )


def _solved(equations: Tensor, effects: Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of the differences that states can make up for, and the effects of the
    states that do: equations are close to singular, these products of theirs are not."""
    u, s, vh = nm.linalg.svd(equations, full_matrices=False)
    usable = s > nm.finfo(s.dtype).eps * s[0]
    inverse = nm.where(usable, 1 / nm.where(usable, s, 1), 0)
    return nm.conj(vh).mT, (nm.conj(u).mT * inverse[:, None]) @ effects


def filtered(run: Filter, order: int, x: Tensor, irlen: int | None, like: Any) -> Tensor:
    """Rows filtered forwards and backwards. States reach `irlen` samples far, or all; responses to
    them are computed in the dtype and on the device of `like`."""
    n = x.shape[-1]
    forwards = _reversed(run(_reversed(run(x, None)), None))
    backwards = run(_reversed(run(_reversed(x), None)), None)
    difference = backwards - forwards
    reach = n if irlen is None or n <= 2 * irlen else irlen
    own, twice = _responses(run, order, reach, like)
    if reach == n:
        equations = nm.concat([_reversed(twice) - own, _reversed(own) - twice], axis=0)
        effects = nm.concat([_reversed(twice), _reversed(own)], axis=0)
    else:
        equations = _both_ends(_reversed(twice) - own, _reversed(own) - twice, reach)
        effects = _both_ends(_reversed(twice), _reversed(own), reach)
        ends = difference[..., :reach], difference[..., n - reach :]
        difference = nm.concat(ends, axis=-1)
    basis, effects = (y.astype(x.dtype).to(x.device) for y in _solved(equations, effects))
    correction = (difference @ basis) @ effects
    if reach == n:
        return forwards + correction
    lead = ((0, 0),) * (x.ndim - 1)
    start = nm.pad(correction[..., :reach], (*lead, (0, n - reach)))
    return forwards + start + nm.pad(correction[..., reach:], (*lead, (n - reach, 0)))
