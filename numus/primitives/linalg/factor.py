"""Unblocked factorisations of stacks (batch, rows, columns): what larger ones are composed of.

Each has one result, in which everything it finds is packed, and no derivative of its own: functions
of linalg differentiate their results implicitly (`implicit` in custom.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.dispatch.apply import apply
from numus.graph import Array, Node, Nodes, Primitive
from numus.primitives.base import nondifferentiable
from numus.primitives.broadcast import batch_all
from numus.primitives.linalg import factor_references as references
from numus.primitives.views import reshape


def _batch(again: Callable[..., Node]) -> Any:
    def rule(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
        whole = batch_all(inputs, batched, size)
        stacks = [reshape(x, (size * x.shape[1], *x.shape[2:])) for x in whole]
        params = () if node.params is None else (node.params,)
        out = again(*stacks, *params)
        return reshape(out, (size, *node.shape))

    return rule


def unblocked(
    name: str, reference: Callable[..., Array], again: Callable[..., Node], kind: str = "factor"
) -> Primitive:
    return nondifferentiable(
        name, kind, lambda node, *arrays: reference(*arrays, node.params), _batch(again)
    )


_cholesky = unblocked("cholesky", references.cholesky, lambda a: cholesky(a))


def cholesky(a: Node) -> Node:
    """Upper triangular U with Uᴴ U = a, of whose matrices the lower triangles are read.

    Rows are NaN from a pivot on that is not positive.
    """
    return apply(_cholesky, (a,), None, a.shape, a.dtype)


_lu = unblocked("lu", references.lu, lambda a: lu(a))


def lu(a: Node) -> Node:
    """L below the diagonal, U on and above it, and two more columns: the numbers of the rows of `a`
    in their new order, and the rows that were swapped with rows 0, 1, …"""
    batch, rows, columns = a.shape
    return apply(_lu, (a,), None, (batch, rows, columns + 2), a.dtype)


_row_order = unblocked("row_order", references.row_order, lambda swaps, n: row_order(swaps, n))


def row_order(swaps: Node, n: int) -> Node:
    """The order of n rows after row k was swapped with row swaps[k], one after the other, on CPUs:
    of stacks (batch, k)."""
    return apply(_row_order, (swaps,), n, (swaps.shape[0], n), swaps.dtype)


_solve_lower = unblocked(
    "solve_lower", references.solve_lower, lambda a, b, u: solve_lower(a, b, u)
)


def solve_lower(a: Node, b: Node, unit_diagonal: bool = False) -> Node:
    """x with tril(a) x = b, by forward substitution."""
    return apply(_solve_lower, (a, b), unit_diagonal, b.shape, b.dtype)


_solve_triangular = unblocked(
    "solve_triangular",
    references.solve_triangular,
    lambda a, b, triangle: solve_triangular(a, b, triangle),
)


def solve_triangular(a: Node, b: Node, triangle: tuple[bool, bool]) -> Node:
    """x with a triangle of a times x = b, on CPUs: whether it is the lower one, and whether its
    diagonal is taken as ones."""
    return apply(_solve_triangular, (a, b), triangle, b.shape, b.dtype)


_solve_vectors = unblocked(
    "solve_vectors", references.solve_vectors, lambda a, b, triangle: solve_vectors(a, b, triangle)
)


def solve_vectors(a: Node, b: Node, triangle: tuple[bool, bool]) -> Node:
    """As `solve_triangular`, of few vectors, which are rows of b and of the result."""
    return apply(_solve_vectors, (a, b), triangle, b.shape, b.dtype)


_substitute_vectors = unblocked(
    "substitute_vectors",
    references.substitute_vectors,
    lambda a, inverses, b, unit: substitute_vectors(a, inverses, b, unit),
)


def substitute_vectors(a: Node, inverses: Node, b: Node, unit_diagonal: bool) -> Node:
    """x with tril(a) x = b of few vectors, rows of b and of the result, on GPUs whose blocks wait
    for each other; `inverses` (batch, …, side, side) are those of blocks along the diagonal."""
    return apply(_substitute_vectors, (a, inverses, b), unit_diagonal, b.shape, b.dtype)


_householder = unblocked("householder", references.householder, lambda a: householder(a))


def householder(a: Node) -> Node:
    """R on and above the diagonal, reflectors below it, and a last row with their factors."""
    batch, rows, columns = a.shape
    return apply(_householder, (a,), None, (batch, rows + 1, columns), a.dtype)


_orthogonalize = unblocked(
    "orthogonalize", references.orthogonalize, lambda a, width: orthogonalize(a, width)
)


def orthogonalize(a: Node, width: int) -> Node:
    """Unitary combinations of rows that are orthogonal in their first `width` columns (Jacobi)."""
    return apply(_orthogonalize, (a,), width, a.shape, a.dtype)


# -- spectra of a CPU, which has no cheap rotation of all pairs at once ----------------------------

_eigh = unblocked("eigh", references.eigh, lambda a, vectors: eigh(a, vectors))


def eigh(a: Node, vectors: bool = True) -> Node:
    """Ascending eigenvalues of Hermitian matrices in a first row, eigenvectors in columns below if
    they are wanted; the lower triangles are read."""
    batch, n, _ = a.shape
    return apply(_eigh, (a,), vectors, (batch, 1 + n * vectors, n), a.dtype)


_svd = unblocked("svd", references.svd, lambda a, vectors: svd(a, vectors))


def svd(a: Node, vectors: bool = True) -> Node:
    """U (m, n), then V (n, n) below it, if they are wanted, then a row of descending singular
    values, of matrices with m >= n."""
    batch, m, n = a.shape
    return apply(_svd, (a,), vectors, (batch, (m + n) * vectors + 1, n), a.dtype)


# -- many small matrices of a CPU, from operand to result -----------------------------------------

_lower_cholesky = unblocked(
    "lower_cholesky", references.lower_cholesky, lambda a: lower_cholesky(a)
)


def lower_cholesky(a: Node) -> Node:
    """Lower triangular L with L Lᴴ = a; rows are NaN from a pivot on that is not positive. On GPUs
    that factorise by tiles, rows beyond those of a square matrix are their products with L⁻ᴴ."""
    return apply(_lower_cholesky, (a,), None, a.shape, a.dtype)


_cholesky_and_inverse = unblocked(
    "cholesky_and_inverse", references.cholesky_and_inverse, lambda a: cholesky_and_inverse(a)
)


def cholesky_and_inverse(a: Node) -> Node:
    """L with L Lᴴ = a, and L⁻¹ beside it, on GPUs; columns of L are NaN from a pivot on that is not
    positive."""
    batch, n, _ = a.shape
    return apply(_cholesky_and_inverse, (a,), None, (batch, n, 2 * n), a.dtype)


_lower_inverse = unblocked(
    "lower_inverse", references.lower_inverse, lambda a, unit: lower_inverse(a, unit)
)


def lower_inverse(a: Node, unit_diagonal: bool = False) -> Node:
    """The inverses of lower triangles, on GPUs."""
    return apply(_lower_inverse, (a,), unit_diagonal, a.shape, a.dtype)


_direct_solve = unblocked("direct_solve", references.solve, lambda a, b: direct_solve(a, b))


def direct_solve(a: Node, b: Node) -> Node:
    """x with a x = b; NaN for matrices that have a pivot of zero."""
    return apply(_direct_solve, (a, b), None, b.shape, b.dtype)


_direct_inverse = unblocked("direct_inverse", references.inverse, lambda a: direct_inverse(a))


def direct_inverse(a: Node) -> Node:
    """The inverses; NaN for matrices that have a pivot of zero."""
    return apply(_direct_inverse, (a,), None, a.shape, a.dtype)


_small_determinant = unblocked(
    "small_determinant", references.determinant, lambda a: small_determinant(a)
)


def small_determinant(a: Node) -> Node:
    """The determinants (batch, 1, 1)."""
    return apply(_small_determinant, (a,), None, (a.shape[0], 1, 1), a.dtype)


_direct_qr = unblocked("direct_qr", references.qr, lambda a, vectors: direct_qr(a, vectors))


def direct_qr(a: Node, vectors: bool = True) -> Node:
    """Q (m, n), then R (n, n) below, of matrices with m >= n; without vectors, R alone."""
    batch, m, n = a.shape
    return apply(_direct_qr, (a,), vectors, (batch, m * vectors + n, n), a.dtype)
