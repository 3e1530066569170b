"""Column pivoting: the order in which columns add most to the span of those before."""

from __future__ import annotations

from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.indexing.gather_scatter import take_along_axis
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, moveaxis
from numus.graph import grad_mode
from numus.linalg._base import adjoint, scale_of
from numus.tensor import Tensor
from numus.transforms.control import scan


def pivot_order(a: Tensor) -> Tensor:
    """The order of columns by greedy pivoting: each time the one farthest from the span of those
    before (Businger & Golub 1965)."""
    m, n = a.shape[-2:]
    k = min(m, n)
    positions = arange(n, device=a.device)
    start = broadcast_to(positions, (*a.shape[:-2], n))
    if not a.size:
        return start

    def step(state: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        rest, taken = state
        sizes = (abs(rest) ** 2).sum(axis=-2)
        at = where(taken, -1.0, sizes).argmax(axis=-1)[..., None]
        here = positions == at
        index = broadcast_to(at[..., None, :], (*rest.shape[:-1], 1))
        unit = take_along_axis(rest, index, axis=-1)
        length = (abs(unit) ** 2).sum(axis=-2, keepdims=True).sqrt()
        unit = unit / where(length == 0, 1.0, length)
        rest = where(here[..., None, :], 0.0, rest - unit @ (adjoint(unit) @ rest))
        return (rest, taken | here), at[..., 0]

    with grad_mode(False):
        state = (a / scale_of(a), start < 0)
        (_, taken), order = scan(step, state, arange(k, device=a.device))
        order = moveaxis(order, 0, -1)
        left = where(taken, n, start).sort(axis=-1)[..., : n - k]
    return concat([order, left], axis=-1)


def columns_at(a: Tensor, order: Tensor) -> Tensor:
    index = broadcast_to(order[..., None, :], (*a.shape[:-1], order.shape[-1]))
    return take_along_axis(a, index, axis=-1)
