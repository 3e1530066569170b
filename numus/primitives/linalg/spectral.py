"""Steps of non-symmetric eigenproblems on stacks (batch, n, n), one matrix per task of a CPU.

As those of factor.py: one packed result each, differentiated by the functions of linalg.
"""

from __future__ import annotations

from numus.dispatch.apply import apply
from numus.graph import Node
from numus.primitives.linalg import spectral_references as references
from numus.primitives.linalg.factor import unblocked

KIND = "spectral"  # the family of their kernels

_hessenberg = unblocked("hessenberg", references.hessenberg, lambda a: hessenberg(a), KIND)


def hessenberg(a: Node) -> Node:
    """H, then Qᵀ, then a row of zeros: a = Q H Qᴴ, H zero below the subdiagonal."""
    batch, n, _ = a.shape
    return apply(_hessenberg, (a,), None, (batch, 2 * n + 1, n), a.dtype)


_schur = unblocked("schur", references.schur, lambda packed: schur(packed), KIND)


def schur(packed: Node) -> Node:
    """T, then Zᵀ, then a row that begins with the number of rows that have not converged, from what
    `hessenberg` gave: T is upper triangular, where it is real but for blocks of order 2."""
    return apply(_schur, (packed,), None, packed.shape, packed.dtype)


_vectors = unblocked(
    "triangular_vectors",
    references.triangular_vectors,
    lambda s, t, least: triangular_vectors(s, t, least),
    KIND,
)


def triangular_vectors(s: Node, t: Node, least: Node) -> Node:
    """Rows x_k with (t_kk s - s_kk t) x_k = 0 for upper triangular matrices; differences below
    `least` (batch, 1, 1) count as that."""
    return apply(_vectors, (s, t, least), None, s.shape, s.dtype)


_quasi_vectors = unblocked(
    "quasi_vectors",
    references.quasi_vectors,
    lambda t, least: quasi_vectors(t, least),
    KIND,
)


def quasi_vectors(t: Node, least: Node) -> Node:
    """Columns v with T v = λ v for real quasi-triangular matrices whose blocks of order 2 have
    complex eigenvalues and equal diagonal elements: real parts, beside them imaginary ones; of a
    block first that of the eigenvalue above the axis. Differences of eigenvalues below `least`
    (batch, 1, 1) count as that."""
    batch, n, _ = t.shape
    return apply(_quasi_vectors, (t, least), None, (batch, n, 2 * n), t.dtype)


_sylvester = unblocked(
    "triangular_sylvester",
    references.triangular_sylvester,
    lambda a, b, c, part: triangular_sylvester(a, b, c, part),
    KIND,
)


def triangular_sylvester(a: Node, b: Node, c: Node, part: str = "all") -> Node:
    """xᵀ with a x + x b = c for upper triangular a and b; `part` is "all", or a strict triangle
    ("lower", "upper") of x that is found such that this holds in it, the rest being zero."""
    batch, rows, columns = c.shape
    return apply(_sylvester, (a, b, c), part, (batch, columns, rows), c.dtype)


_root = unblocked("triangular_root", references.triangular_root, lambda t: triangular_root(t), KIND)


def triangular_root(t: Node) -> Node:
    """Rᵀ with R R = t for upper triangular complex t, by principal square roots."""
    return apply(_root, (t,), None, t.shape, t.dtype)


_qz = unblocked("qz", references.qz, lambda a, b: qz(a, b), KIND)


def qz(a: Node, b: Node) -> Node:
    """S, T, Qᵀ and Zᵀ, then a row that begins with the number of rows that have not converged:
    a = Q S Zᴴ, b = Q T Zᴴ for complex a and upper triangular b."""
    batch, n, _ = a.shape
    return apply(_qz, (a, b), None, (batch, 4 * n + 1, n), a.dtype)
