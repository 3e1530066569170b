"""One-sided Jacobi rotations (Hestenes 1958) of matrices that are too large for a block of a GPU.

A round rotates all disjoint pairs at once, over the whole device, in round-robin order (the circle
method): rows of the first half meet those of the second, and move on.
"""

from __future__ import annotations

from numus.functions._base import wrap
from numus.functions.creation.creation import ones, zeros
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import copysign, maximum, minimum
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.functions.shape.tiling import pad
from numus.linalg._base import adjoint, identity
from numus.linalg.factor import blocked, small
from numus.primitives.linalg import factor
from numus.tensor import Tensor
from numus.transforms.control import fori_loop, while_loop

MAX_SWEEPS = 40  # quadratic convergence takes 5 to 12


def orthogonalized(x: Tensor, width: int) -> Tensor:
    """Unitary combinations of rows of stacks (batch, rows, columns), orthogonal in their first
    `width` columns."""
    device = x._node.device
    if device is None or small.on_cpu(x):
        return wrap(factor.orthogonalize(x._node, width))
    nbytes = x.shape[1] * x.shape[2] * x.dtype.itemsize
    if nbytes <= device.runtime.target.shared_bytes:
        return wrap(factor.orthogonalize(x._node, width))
    return by_rounds(x, width)


def symmetric_by_rotations(a: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues and eigenvectors of stacks of Hermitian matrices. Rows of the shifted
    matrix, which is well-conditioned and positive definite, become orthogonal: they are its
    eigenvectors then, each times its eigenvalue."""
    n = a.shape[-1]
    frobenius = ((abs(a) ** 2).sum(axis=(-2, -1), keepdims=True)).sqrt()
    rows = maximum_of(abs(a).sum(axis=-1, keepdims=True), axis=-2, keepdims=True)
    shift = 1.5 * minimum(frobenius, rows)
    shift = where(shift == 0, 1.0, shift)
    found = orthogonalized(a + shift * identity(n, a), n)
    # no product of matrices: tiles of those have more than so small ones
    moved = (found[:, :, None, :] * a.conj()[:, None]).sum(axis=-1)
    sizes = (abs(found) ** 2).sum(axis=-1)
    values = (moved * found.conj()).sum(axis=-1)  # Rayleigh's quotients of rows that are no units
    values = (values.real if a.dtype.is_complex else values) / sizes
    order = values.argsort(axis=-1)
    vectors = adjoint(blocked.rows_at(found / sizes.sqrt()[..., None], order))
    return values.take_along_axis(order, axis=-1), vectors


def by_rounds(x: Tensor, width: int) -> Tensor:
    """As `orthogonalized`, by loops over rounds and sweeps."""
    rows = x.shape[1]
    x = pad(x, ((0, 0), (0, rows % 2), (0, 0)))  # a row of zeros is orthogonal to all
    rounds = x.shape[1] - 1

    def turn(i: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, count = state
        x, rotated = _round(x, width)
        return x, count + rotated

    def sweep(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, _, number = state
        none = zeros((), dtype="int64", device=x.device)
        x, count = fori_loop(0, rounds, turn, (x, none))
        return x, count, number + 1

    def again(state: tuple[Tensor, ...]) -> Tensor:
        return (state[1] > 0) & (state[2] < MAX_SWEEPS)

    one = ones((), dtype="int64", device=x.device)
    return while_loop(again, sweep, (x, one, one * 0))[0][:, :rows]


def _round(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """All pairs rotated and moved on, and the number of those that were not orthogonal."""
    half = x.shape[1] // 2
    u, v = x[:, :half], x[:, half:]
    left, right = u[..., :width], v[..., :width]
    size_u, size_v = ((abs(part) ** 2).sum(axis=-1) for part in (left, right))
    inner = (left * right.conj() if x.dtype.is_complex else left * right).sum(axis=-1)
    length = abs(inner)
    info = finfo(length.dtype)
    bound = info.eps * width**0.5  # of rounding errors
    least = info.smallest_normal / info.eps  # below that, digits of the sums are lost
    needed = length > maximum(bound * size_u.sqrt() * size_v.sqrt(), least)
    safe = where(needed, length, 1.0)
    zeta = (size_v - size_u) / (2 * safe)
    tangent = copysign(1.0, zeta) / (abs(zeta) + (1 + zeta * zeta).sqrt())
    cosine = where(needed, 1 / (1 + tangent * tangent).sqrt(), 1.0)
    sine = where(needed, cosine * tangent / safe, 0.0) * inner
    cosine, sine = cosine[..., None], sine[..., None]
    other = sine.conj() if x.dtype.is_complex else sine
    u, v = cosine * u - sine * v, cosine * v + other * u
    moved = concat([u[:, :1], v[:, :1], u[:, 1:-1], v[:, 1:], u[:, max(half - 1, 1) :]], axis=1)
    return moved, needed.astype("int64").sum()
