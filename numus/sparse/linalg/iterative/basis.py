"""The basis of a Krylov space: orthonormal vectors, as rows of one tensor that is filled in place.

Rows that are not there yet are zero; kernels of CPUs read only those that are.
"""

from __future__ import annotations

import numpy as np

import numus as nm
from numus.primitives.linalg.krylov import basis_products, basis_remainder
from numus.runtime.devices import default
from numus.sparse.pattern import Array
from numus.tensor import Tensor


def reads_few(x: Tensor) -> bool:
    """Whether there are kernels that read no more vectors than there are."""
    device = x._node.device or default.device
    return not x.dtype.is_complex and not device.runtime.target.simt


def products(basis: Tensor, count: Tensor, *others: Tensor) -> list[Tensor]:
    """Vᴴ x of the first vectors, rows of (batch, vectors, n), and others (batch, n). More rows may
    be read: they are zero."""
    if reads_few(basis):
        counts = nm.broadcast_to(count, (basis.shape[0],))
        found = Tensor(basis_products(counts._node, basis._node, *(x._node for x in others)))
        return [found[:, i] for i in range(len(others))]
    some = nm.conj(basis) if basis.dtype.is_complex else basis
    return [nm.sum(some * x[:, None], axis=-1) for x in others]


def remainder(basis: Tensor, count: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """x - V y of the first vectors."""
    if reads_few(basis):
        counts = nm.broadcast_to(count, (basis.shape[0],))
        return Tensor(basis_remainder(counts._node, basis._node, y._node, x._node))
    return x - combined(basis, y)


def combined(basis: Tensor, y: Tensor) -> Tensor:
    """V y."""
    return nm.sum(basis * y[:, :, None], axis=1)


class Basis:
    """Vectors of an iteration that the host drives: at most `capacity` of this length."""

    def __init__(self, capacity: int, n: int, like: Tensor) -> None:
        self._rows = nm.zeros((1, capacity, n), dtype=like.dtype, device=like.device)
        nm.eval(self._rows)
        self._rng = np.random.default_rng(0)
        self.count = 0
        # programs that are compiled once, and write the rows where they are
        self._reduce, self._put = nm.jit(self._reduced), nm.jit(self._written)
        self._mix, self._recur = nm.jit(self._mixed), nm.jit(self._recurred)

    def begin(self, start: Tensor) -> None:
        """The first vector."""
        size = float(nm.linalg.norm(start))
        self.extend(start, size, size)

    def __getitem__(self, j: int) -> Tensor:
        return self._rows[0, j]

    def _number(self, j: int) -> Tensor:
        return nm.asarray([j], dtype=nm.int32, device=self._rows.device)

    def _written(self, w: Tensor, j: Tensor, size: Tensor) -> None:
        self._rows[:, j] = (w / size)[None, None]

    def _mixed(self, mix: Tensor) -> None:
        self._rows[...] = (mix @ self._rows[0])[None]

    def _reduced(self, w: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (parts,) = products(self._rows, count, w[None])
        left = remainder(self._rows, count, parts, w[None])[0]
        return parts[0], left, nm.linalg.norm(w), nm.linalg.norm(left)

    def _recurred(self, w: Tensor, j: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        own, before = (nm.take(self._rows[0], at, axis=0)[0] for at in (j, j - 1))
        w = w - beta * before
        along = nm.real(nm.vecdot(own, w))
        return along, w - along.astype(w.dtype) * own

    def recurred(self, w: Tensor, j: int, beta: float) -> tuple[Tensor, Tensor]:
        """The recurrence of Lanczos: the part of w along vector j, and w without it and without
        beta times the vector before."""
        scale = nm.asarray(beta, dtype=w.dtype, device=w.device)
        along, rest = self._recur(w, self._number(j), scale)
        return along, rest

    def orthogonalised(self, w: Tensor, passes: int) -> tuple[Array, float, Tensor]:
        """Coefficients of the vectors in w, the norm of the rest, and the rest; at least `passes`
        times, and again where little is left (Daniel, Gragg, Kaufman & Stewart 1976)."""
        total = np.zeros(self.count, np.result_type(w.dtype.np, np.float64))
        before, size, count = 0.0, 0.0, self._number(self.count)
        for k in range(4):
            found, w, first, left = self._reduce(w, count)
            total += found.numpy()[: self.count]
            before, size = float(first) if k == 0 else size, float(left)
            if k + 1 >= passes and size > 0.7 * before:
                break
        return total, size, w

    def extend(self, w: Tensor, size: float, scale: float) -> float:
        """Append a direction; where there is none, a random one: the norm is 0 then."""
        eps = float(np.finfo(w.dtype.np).eps)
        if size > 4 * eps * max(scale, float(np.finfo(np.float32).tiny)):
            self._append(w, size)
            return size
        n = w.shape[0]
        while self.count < n:
            made = nm.asarray(self._rng.standard_normal(n), dtype=w.dtype, device=w.device)
            _, left, rest = self.orthogonalised(made, 2)
            if left > 1e-3:
                self._append(rest, left)
                return 0.0
        self._append(nm.zeros_like(w), 1.0)  # all directions are there
        return 0.0

    def _append(self, w: Tensor, size: float) -> None:
        self._put(w, self._number(self.count), nm.asarray(size, dtype=w.dtype, device=w.device))
        self.count += 1

    def combined(self, mix: Tensor) -> Tensor:
        """Sums of the first vectors, with coefficients (…, vectors)."""
        return mix @ self._rows[0, : mix.shape[-1]]

    def restart(self, q: Array, last: int | None = None) -> None:
        """Combinations (vectors, p) of the first vectors, and one vector as it is."""
        p = q.shape[1]
        mix = np.zeros((self._rows.shape[1],) * 2, q.dtype)
        mix[:p, : q.shape[0]] = q.T
        if last is not None:
            mix[p, last] = 1
        self._mix(nm.asarray(mix, dtype=self._rows.dtype, device=self._rows.device))
        self.count = p + (last is not None)
