"""Linear recurrences in blocks: filters as products of matrices on every device.

A filter is z' = A z + B x, y = C z + D x. Over a block of samples, outputs and the next state are
linear in the block and the state before it, so that all blocks are one GEMM; states between blocks
obey a recurrence of the same form, which is divided in blocks again (a parallel scan of few steps).
Matrices are built in float64 on the host, or in the graph for coefficients that gradients flow to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.signal._arguments import slice_along
from numus.tensor import Tensor


@dataclass(frozen=True)
class BlockTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    samples: int = 64  # of a block, at least the order of the filter
    state_elements: int = 64  # of a block of states


TUNING = BlockTuning()


@dataclass(frozen=True)
class StateSpace:
    """A (p, p), B (p, 1), C (1, p), D (1, 1): NumPy arrays, or tensors."""

    A: Any
    B: Any
    C: Any
    D: Any

    @property
    def xp(self) -> Any:
        return nm if isinstance(self.A, Tensor) else np

    @property
    def order(self) -> int:
        return int(self.A.shape[0])

    def then(self, other: StateSpace) -> StateSpace:
        """The cascade of both; the states of this one come first."""
        xp = self.xp
        upper = xp.concat([self.A, self.B @ other.C * 0], axis=1)
        lower = xp.concat([other.B @ self.C, other.A], axis=1)
        return StateSpace(
            xp.concat([upper, lower], axis=0),
            xp.concat([self.B, other.B @ self.D], axis=0),
            xp.concat([other.D @ self.C, other.C], axis=1),
            other.D @ self.D,
        )


def transposed_direct_form(b: Any, a: Any) -> StateSpace:
    """SciPy's realisation of b / a (equal lengths, a[0] = 1): direct form II, transposed."""
    xp = nm if isinstance(b, Tensor) else np
    p = b.shape[0] - 1
    dtype = {"dtype": b.dtype}
    shift = xp.eye(p, **dtype)[:, : p - 1]
    A = xp.concat([xp.reshape(-a[1:], (p, 1)), shift], axis=1)
    B = xp.reshape(b[1:] - a[1:] * b[0], (p, 1))
    first = (np.arange(p) == 0).reshape(1, p)
    C = xp.asarray(first, **dtype)
    return StateSpace(A, B, C, xp.reshape(b[:1], (1, 1)))


def _powers(A: Any, count: int, xp: Any) -> tuple[Any, Any]:
    """[A^0, ..., A^(count - 1)] as (count, p, p), and A^count, by doubling."""
    found, step = xp.eye(A.shape[0], dtype=A.dtype)[None], A
    while found.shape[0] < count:
        found = xp.concat([found, found @ step], axis=0)
        step = step @ step
    if found.shape[0] == count:
        return found, step
    return found[:count], found[count]


def _toeplitz(h: Any, xp: Any) -> Any:
    """Lower triangular, of the first column h."""
    n = h.shape[0]
    lag = np.arange(n)[:, None] - np.arange(n)[None]
    padded = xp.concat([h, h[:1] * 0], axis=0)
    return padded[np.where(lag < 0, n, lag)]


def _strictly_lower(powers: Any, xp: Any) -> Any:
    """(K p, K p) blocks M^(j - 1 - i) for i < j."""
    K, p = powers.shape[0], powers.shape[1]
    lag = np.arange(K)[:, None] - 1 - np.arange(K)[None]
    padded = xp.concat([powers, powers[:1] * 0], axis=0)
    blocks = padded[np.where(lag < 0, K, lag)]  # (j, i, p, p)
    return xp.reshape(xp.permute_dims(blocks, (0, 2, 1, 3)), (K * p, K * p))


def _states(M: Any, u: Tensor, z: Tensor, xp: Any) -> tuple[Tensor, Tensor]:
    """z_0 = z and z_(i+1) = M z_i + u_i along the second axis of u (batch, n, p): the n states
    before each step, and the one after all."""
    batch, n, p = u.shape
    K = max(2, min(n, TUNING.state_elements // p))
    groups = -(-n // K)
    powers, jump = _powers(M, K, xp)
    u = nm.pad(u, ((0, 0), (0, groups * K - n), (0, 0)))
    flat = u.reshape(batch * groups, K * p)
    inside = flat @ on(_strictly_lower(powers, xp).T, u)
    reach = on(xp.reshape(powers, (K * p, p)).T, u)  # (p, K p)
    if groups == 1:
        starts, last = z.reshape(batch, 1, p), None
    else:
        ends = xp.reshape(xp.permute_dims(xp.flip(powers, axis=0), (1, 0, 2)), (p, K * p))
        totals = (flat @ on(ends.T, u)).reshape(batch, groups, p)
        starts, last = _states(jump, totals, z, xp)
    every = inside + starts.reshape(batch * groups, p) @ reach
    states = every.reshape(batch, groups * K, p)
    if n == groups * K:
        tail = states[:, -1]
        last = tail @ on(M.T, u) + u[:, n - 1] if last is None else last
        return states, last
    return states[:, :n], states[:, n]


def on(matrix: Any, like: Tensor) -> Tensor:
    """A matrix in the signal's dtype, on its device."""
    if isinstance(matrix, Tensor):
        return matrix.astype(like.dtype).to_device(like.device)
    # powers of a decaying state become subnormal, which CPUs multiply slowly
    tiny = np.finfo(np.float32).tiny * 2.0**26 * np.abs(matrix).max(initial=0)
    matrix = np.where(np.abs(matrix) < tiny, 0, matrix)
    return nm.asarray(np.ascontiguousarray(matrix), dtype=like.dtype, device=like.device)


def run(system: StateSpace, x: Tensor, z: Tensor | None) -> tuple[Tensor, Tensor]:
    """The outputs for x (..., n) from the state z (..., p), and the last state."""
    xp, p = system.xp, system.order
    *lead, n = x.shape
    batch = int(np.prod(lead, dtype=int))
    start = (
        nm.zeros((batch, p), dtype=x.dtype, device=x.device) if z is None else z.reshape(batch, p)
    )
    if not n or not batch:
        return x, start.reshape(*lead, p)
    size = max(TUNING.samples, p)
    blocks, rest = divmod(n, size)
    rows = x.reshape(batch, n)
    parts = []
    for at, count, length in ((0, blocks, size), (blocks * size, 1, rest)):
        if count and length:
            part = slice_along(rows, 1, at, at + count * length)
            y, start = _blocks(system, part.reshape(batch, count, length), start, xp)
            parts.append(y.reshape(batch, count * length))
    whole = parts[0] if len(parts) == 1 else nm.concat(parts, axis=1)
    return whole.reshape(*lead, n), start.reshape(*lead, p)


def _blocks(system: StateSpace, x: Tensor, z: Tensor, xp: Any) -> tuple[Tensor, Tensor]:
    """The outputs for blocks (batch, count, length), and the last state."""
    batch, count, length = x.shape
    p = system.order
    powers, jump = _powers(system.A, length, xp)
    observed = xp.reshape(system.C @ powers, (length, p))  # C A^j
    response = xp.concat([xp.reshape(system.D, (1,)), (observed @ system.B)[:-1, 0]], axis=0)
    reached = xp.flip(powers @ system.B, axis=0)[:, :, 0]  # (length, p): A^(length - 1 - i) B
    flat = x.reshape(batch * count, length)
    inputs = (flat @ on(reached, x)).reshape(batch, count, p)
    starts, last = _states(jump, inputs, z, xp)
    y = flat @ on(_toeplitz(response, xp).T, x)
    y = y + starts.reshape(batch * count, p) @ on(observed.T, x)
    return y.reshape(batch, count, length), last
