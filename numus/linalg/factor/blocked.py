"""Recursive factorisations (Gustavson 1997, Toledo 1997): unblocked kernels and matrix products.

Halves are factorised one after the other, the second updated by the contraction. Operands are
stacks (batch, rows, columns); nothing here is differentiated.
"""

from __future__ import annotations

from numus.functions._base import wrap
from numus.functions.creation.creation import arange, zeros
from numus.functions.elementwise.comparison import where
from numus.functions.indexing.gather_scatter import take_along_axis
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, flip, permute_dims
from numus.functions.shape.splitting import diagonal
from numus.functions.shape.tiling import pad
from numus.kernels.factor.panels import MAX_WIDTH, holds_panels, panel_width
from numus.linalg._base import adjoint, identity
from numus.linalg.factor import lapack, small
from numus.primitives.linalg import factor
from numus.tensor import Tensor

BLOCK = 64  # order of a matrix that one kernel factorises: its rows stay in L1
REGISTER_BLOCK_BYTES = 1024  # of a row of one that a GPU holds in registers, up to
MAX_REGISTER_BLOCK = 128  # rows
BLOCK_PANELS = 8  # panels of Cholesky before what is right of them is updated
PANEL = MAX_WIDTH  # columns of a tall one
FEW_VECTORS = 4  # right-hand sides that are substituted one by one
LU_PANELS = 16  # panels of LU that follow each other; of more columns, halves do


def _half(n: int, unit: int) -> int:
    """About half of n, a multiple of `unit`."""
    return (n // 2 + unit - 1) // unit * unit


def _quadrants(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return concat([concat([a, b], axis=-1), concat([c, d], axis=-1)], axis=-2)


def cholesky(a: Tensor) -> Tensor:
    """Lower triangular L with L Lᴴ = a, from the lower triangle of a."""
    if lapack.is_chosen("cholesky", a):
        return lapack.cholesky(a)
    if small.applies(a) or small.is_in_place(a):
        return wrap(factor.lower_cholesky(a._node))
    if not lapack.on_gpu(a):
        return adjoint(wrap(factor.cholesky(a._node)))
    if a.shape[-1] <= register_block(a) or _runs_in_tiles(a):
        return wrap(factor.lower_cholesky(a._node))
    return _columns_joined(cholesky_columns(a))


def _runs_in_tiles(a: Tensor) -> bool:
    """Whether blocks of a GPU wait for each other, and copy tiles asynchronously."""
    device = a._node.device
    if device is None:
        return False
    target = device.runtime.target
    return target.simt and target.forward_progress and target.async_copy


def _columns_joined(blocks: list[Tensor]) -> Tensor:
    """Blocks of columns of a lower triangle, with the zeros above them."""
    rows = blocks[0].shape[1]
    if len(blocks) == 1:
        return blocks[0]
    return concat([pad(x, ((0, 0), (rows - x.shape[1], 0), (0, 0))) for x in blocks], axis=-1)


def register_block(a: Tensor) -> int:
    return min(MAX_REGISTER_BLOCK, REGISTER_BLOCK_BYTES // a.dtype.itemsize)


def cholesky_columns(a: Tensor) -> list[Tensor]:
    """Blocks of columns of L, each from its diagonal on, on GPUs, of the first columns
    (batch, m, n) of a matrix: rows beyond those of a square one become their products with L⁻ᴴ."""
    n = a.shape[-1]
    width = BLOCK_PANELS * register_block(a)
    found, rest = [], [a[:, i:, i : i + width] for i in range(0, n, width)]
    for at in range(len(rest)):
        found.append(_block_of_cholesky(rest[at]))
        left = found[-1][:, rest[at].shape[-1] :]
        for i in range(at + 1, len(rest)):
            start, count = (i - at - 1) * width, rest[i].shape[-1]
            rest[i] = rest[i] - left[:, start:] @ adjoint(left[:, start : start + count])
    return found


def _block_of_cholesky(a: Tensor) -> Tensor:
    """As `cholesky_columns`, of one block, right-looking. Below the diagonal, L is what is there
    times the adjoint of the inverse of its block."""
    panels = []
    while True:
        width = min(a.shape[-1], register_block(a))
        both = wrap(factor.cholesky_and_inverse(a[:, :width, :width]._node))
        top, inverse = both[..., :width], both[..., width:]
        below = a[:, width:, :width] @ adjoint(inverse)
        panels.append(concat([top, below], axis=-2) if below.size else top)
        if a.shape[-1] == width:
            return _columns_joined(panels)
        a = a[:, width:, width:] - below @ adjoint(below[:, : a.shape[-1] - width])


def cholesky_below(a: Tensor, b: Tensor) -> Tensor:
    """b L⁻ᴴ with L Lᴴ = a."""
    if not lapack.on_gpu(a):
        return adjoint(solve_lower(cholesky(a), adjoint(b)))
    rows = b.shape[1]
    if _runs_in_tiles(a):
        return wrap(factor.lower_cholesky(concat([a, b], axis=-2)._node))[:, -rows:]
    return concat([x[:, -rows:] for x in cholesky_columns(concat([a, b], axis=-2))], axis=-1)


def _invertible(a: Tensor) -> Tensor:
    """Ones for zeros on the diagonal, where GPUs multiply by inverses of blocks: infinities times
    zeros would spoil what precedes such a row in a solution."""
    i = arange(a.shape[-1], device=a.device)
    return where((i[:, None] == i) & (a == 0), 1.0, a)


def solve_lower(a: Tensor, b: Tensor, unit_diagonal: bool = False) -> Tensor:
    """x with tril(a) x = b."""
    if lapack.solve_is_chosen(a, b, True, unit_diagonal):
        return _solve_by_library(a, b, True, unit_diagonal)
    return _solve_lower(a, b, unit_diagonal)


def _solve_by_library(a: Tensor, b: Tensor, lower: bool, unit_diagonal: bool) -> Tensor:
    if lapack.on_gpu(a) and not unit_diagonal:
        a = _invertible(a)
    return lapack.solve_triangular(a, b, lower, unit_diagonal)


def _solve_lower(a: Tensor, b: Tensor, unit_diagonal: bool = False) -> Tensor:
    if lapack.on_gpu(a):
        if b.shape[-1] <= FEW_VECTORS and a.shape[-1] > BLOCK and _runs_in_tiles(a):
            return _solve_vectors_by_inverses(a, b, unit_diagonal)
        return _solve_by_inverses(a, b, _block_inverses(a, unit_diagonal), not unit_diagonal)
    n = a.shape[-1]
    if small.is_in_place(a):
        return _solve_in_place(a, b, True, unit_diagonal)
    if n <= BLOCK:
        return wrap(factor.solve_lower(a._node, b._node, unit_diagonal))
    h = _half(n, BLOCK)
    top = _solve_lower(a[:, :h, :h], b[:, :h], unit_diagonal)
    rest = b[:, h:] - a[:, h:, :h] @ top
    return concat([top, _solve_lower(a[:, h:, h:], rest, unit_diagonal)], axis=-2)


def _solve_in_place(a: Tensor, b: Tensor, lower: bool, unit_diagonal: bool) -> Tensor:
    """By one primitive, of a CPU. Few right-hand sides read a matrix where it lies."""
    triangle = lower, unit_diagonal
    if b.shape[-1] <= FEW_VECTORS:
        return wrap(factor.solve_vectors(a._node, b.mT._node, triangle)).mT
    return wrap(factor.solve_triangular(a._node, b._node, triangle))


def _whole_inverses(a: Tensor, unit_diagonal: bool) -> Tensor:
    """Those (batch, blocks, BLOCK, BLOCK) of the lower triangles of whole blocks along the
    diagonal."""
    batch, n, _ = a.shape
    whole = n // BLOCK
    blocks = a[:, : whole * BLOCK, : whole * BLOCK].reshape((batch, whole, BLOCK, whole, BLOCK))
    blocks = permute_dims(diagonal(blocks, axis1=1, axis2=3), (0, 3, 1, 2))
    found = _inverses(blocks.reshape((-1, BLOCK, BLOCK)), unit_diagonal)
    return found.reshape((batch, whole, BLOCK, BLOCK))


def _last_inverse(a: Tensor, unit_diagonal: bool) -> Tensor:
    """That of what whole blocks leave."""
    start = a.shape[1] // BLOCK * BLOCK
    return _inverses(a[:, start:, start:], unit_diagonal)


def _inverses(a: Tensor, unit_diagonal: bool) -> Tensor:
    a = a if unit_diagonal else _invertible(a)
    return wrap(factor.lower_inverse(a._node, unit_diagonal))


def _block_inverses(a: Tensor, unit_diagonal: bool) -> list[Tensor]:
    n = a.shape[1]
    found: list[Tensor] = []
    if n >= BLOCK:
        whole = _whole_inverses(a, unit_diagonal)
        found = [whole[:, i] for i in range(n // BLOCK)]
    return [*found, _last_inverse(a, unit_diagonal)] if n % BLOCK else found


def _solve_by_inverses(a: Tensor, b: Tensor, inverses: list[Tensor], refined: bool) -> Tensor:
    """As `solve_lower`: products with the inverses of blocks of the diagonal, each refined once on
    demand, for residuals of the size of substitution's (Du Croz & Higham 1992)."""
    if len(inverses) == 1:
        x = inverses[0] @ b
        return x + inverses[0] @ (b - a.tril() @ x) if refined else x
    count = (len(inverses) + 1) // 2
    h = count * BLOCK
    top = _solve_by_inverses(a[:, :h, :h], b[:, :h], inverses[:count], refined)
    rest = b[:, h:] - a[:, h:, :h] @ top
    below = _solve_by_inverses(a[:, h:, h:], rest, inverses[count:], refined)
    return concat([top, below], axis=-2)


def _solve_vectors_by_inverses(a: Tensor, b: Tensor, unit_diagonal: bool) -> Tensor:
    """As `_solve_by_inverses`, of few vectors, by one primitive."""
    inverses = _whole_inverses(a, unit_diagonal)
    more = -a.shape[1] % BLOCK
    if more:
        last = pad(_last_inverse(a, unit_diagonal), ((0, 0), (0, more), (0, more)))
        inverses = concat([inverses, last[:, None]], axis=1)
    triangle = a._node, inverses._node
    return wrap(factor.substitute_vectors(*triangle, b.mT._node, unit_diagonal)).mT


def solve_upper(a: Tensor, b: Tensor, unit_diagonal: bool = False) -> Tensor:
    """x with triu(a) x = b: the lower triangular system of reversed rows and columns."""
    if lapack.solve_is_chosen(a, b, False, unit_diagonal):
        return _solve_by_library(a, b, False, unit_diagonal)
    if small.is_in_place(a):
        return _solve_in_place(a, b, False, unit_diagonal)
    x = _solve_lower(flip(a, axis=(-2, -1)), flip(b, axis=-2), unit_diagonal)
    return flip(x, axis=-2)


def rows_at(x: Tensor, order: Tensor) -> Tensor:
    """Rows of x (batch, m, n) in another order (batch, m)."""
    index = broadcast_to(order[..., None], (*order.shape, x.shape[-1]))
    return take_along_axis(x, index, axis=-2)


def lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L and U in one matrix, the order of the rows, and the rows swapped with rows 0, 1, …"""
    return lapack.lu(a) if lapack.is_chosen("lu", a.mT) else _lu(a)


def _panel_columns(a: Tensor) -> int:
    """Of a panel of all rows, which one kernel factorises."""
    device = a._node.device
    if device is None or device.runtime.target.max_cluster_size == 1:
        return PANEL
    return panel_width(device.runtime.target, a.shape[1], PANEL, a.dtype)


def _runs_by_panels(a: Tensor) -> bool:
    """Whether one primitive factorises matrices of more columns, too: where clusters of a GPU hold
    their panels."""
    device = a._node.device
    return device is not None and holds_panels(device.runtime.target, a.shape[1], a.dtype)


Permuted = tuple[Tensor, Tensor, Tensor]


def _lu(a: Tensor) -> Permuted:
    _, m, n = a.shape
    k, panel = min(m, n), _panel_columns(a)
    if n <= panel or (m <= BLOCK and n <= BLOCK) or (m == n and small.is_in_place(a)):
        return _unblocked_lu(a)
    if _runs_by_panels(a):
        return _unblocked_lu(a)
    if k <= LU_PANELS * panel and lapack.on_gpu(a):
        return _lu_by_panels(a, panel)
    h = k if k <= panel else _half(k, panel)
    left, order, swaps = _lu(a[..., :h])
    right = rows_at(a[..., h:], order)
    above = _solve_lower(left[:, :h, :h], right[:, :h], unit_diagonal=True)
    if m == h:
        return concat([left, above], axis=-1), order, swaps
    rest, again, more = _lu(right[:, h:] - left[:, h:] @ above)
    below = rows_at(left[:, h:], again)
    order = concat([order[:, :h], take_along_axis(order[:, h:], again, axis=-1)], axis=-1)
    packed = _quadrants(left[:, :h], above, below, rest)
    return packed, order, concat([swaps, more + h], axis=-1)


def _unblocked_lu(a: Tensor) -> Permuted:
    _, m, n = a.shape
    packed = wrap(factor.lu(a._node))
    numbers = packed[..., n:].real if a.dtype.is_complex else packed[..., n:]
    numbers = numbers.astype("int64")
    return packed[..., :n], numbers[..., 0], numbers[:, : min(m, n), 1]


def _lu_by_panels(a: Tensor, panel: int) -> Permuted:
    """Right-looking: rows of all columns are moved once per panel, in half the kernels that halves
    take."""
    batch, m, n = a.shape
    order = broadcast_to(arange(m, device=a.device), (batch, m))
    rows, orders, swaps = [], [], []  # those that are done
    for start in range(0, min(m, n), panel):
        width = min(panel, min(m, n) - start)
        packed, numbers, more = _unblocked_lu(a[..., start : start + width])
        moved = rows_at(a, numbers)
        order = take_along_axis(order, numbers, axis=-1)
        left, right = moved[..., :start], moved[..., start + width :]
        top, below = packed[:, :width], packed[:, width:]
        above = wrap(factor.lower_inverse(top._node, True)) @ right[:, :width]
        rows.append(concat([left[:, :width], top, above], axis=-1))
        a = concat([left[:, width:], below, right[:, width:] - below @ above], axis=-1)
        orders.append(order[:, :width])
        order = order[:, width:]
        swaps.append(more + start)
    packed = concat([*rows, a], axis=-2)
    return packed, concat([*orders, order], axis=-1), concat(swaps, axis=-1)


# -- QR -------------------------------------------------------------------------------------------

Reflectors = tuple[Tensor, Tensor]  # V (batch, m, k), and the inverse of T: Q = 1 - V T Vᴴ


def _panel(a: Tensor) -> tuple[Tensor, Reflectors]:
    """R of at most PANEL columns, and reflectors in compact WY form (Schreiber & Van Loan 1989).

    The inverse of T has 1 / tau on its diagonal, and above it that of Vᴴ V (Puglisi 1992).
    """
    _, m, n = a.shape
    k = min(m, n)
    packed = wrap(factor.householder(a._node))
    tau = packed[:, m, :k]
    one = identity(m, a)[..., :k]
    idle = (tau == 0)[:, None, :]  # a reflector that is none
    v = where(idle, 0.0, packed[:, :m, :k].tril(-1) + one)
    diagonal = 1 / where(tau == 0, 1.0, tau)
    inverse = (adjoint(v) @ v).triu(1) + identity(k, a) * diagonal[:, None, :]
    return packed[:, :k].triu(), (v, inverse)


def qr(a: Tensor) -> tuple[Tensor, list[Reflectors]]:
    """R (batch, min(m, n), n), and the reflectors of each panel."""
    _, m, n = a.shape
    done: list[Tensor] = []  # rows of R
    reflectors: list[Reflectors] = []
    for start in range(0, min(m, n), PANEL):
        width = min(PANEL, min(m, n) - start)
        top, (v, inverse) = _panel(a[..., :width])
        reflectors.append((v, inverse))
        row = [top]
        if a.shape[-1] > width:
            rest = a[..., width:]
            applied = _solve_lower(adjoint(inverse), adjoint(v) @ rest)
            rest = rest - v @ applied
            row.append(rest[:, :width])
            a = rest[:, width:]
        left = zeros((top.shape[0], width, start), dtype=top.dtype, device=top.device)
        done.append(concat([left, *row], axis=-1))
    return concat(done, axis=-2), reflectors


def apply_q(reflectors: list[Reflectors], x: Tensor) -> Tensor:
    """Q x, of reflectors that `qr` gave."""
    start = (len(reflectors) - 1) * PANEL
    for v, inverse in reversed(reflectors):
        part = x[:, start:]
        part = part - v @ solve_upper(inverse, adjoint(v) @ part)
        x = concat([x[:, :start], part], axis=-2)
        start -= PANEL
    return x
