"""A sparse approximate inverse, SPAI (Grote & Huckle 1997): a preconditioner that is a product."""

from __future__ import annotations

import numpy as np

import numus as nm
from numus.shapes import as_int
from numus.sparse.algorithms.approximate_inverse import approximate_inverse
from numus.sparse.linalg.direct.real_form import real_form
from numus.sparse.linalg.operators import LinearOperator
from numus.sparse.linalg.preconditioners.incomplete import known_values, square_matrix
from numus.sparse.pattern import Array, Pattern, index_dtype
from numus.sparse.structure import CSR
from numus.sparse.tensor import SparseTensor


def spai_preconditioner(
    a: SparseTensor, tolerance: float = 0.4, *, steps: int = 5, add: int = 5
) -> LinearOperator:
    """A sparse matrix M that makes ‖A M - 1‖ small, in Frobenius' norm.

    It is applied as a product, without substitutions one row after the other: of the
    preconditioners the one for GPUs. M is not symmetric where A is, in general. `.parameters` is M
    itself, a sparse tensor.

    Args:
        a: a square sparse matrix that is known.
        tolerance: the norm of a column of A M - 1 at which its pattern is large enough.
        steps: how often the pattern of a column grows, from the diagonal on; 0 is diagonal.
        add: the most elements by which it grows in a step.

    >>> import numus as nm
    >>> from numus.sparse.linalg import spai_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> nm.allclose(spai_preconditioner(a, 0.1) @ nm.asarray([5.0, 4.0]), nm.ones(2)).item()
    True
    """
    op = "spai_preconditioner"
    steps, add = as_int(steps, "steps", op), as_int(add, "add", op)
    if steps < 0 or add < 0:
        raise ValueError(f"{op}: steps={steps} or add={add} is negative")
    if not tolerance >= 0:
        raise ValueError(f"{op}: tolerance={tolerance} is negative or not a number")
    a = square_matrix(op, a)
    pattern, values = known_values(op, a)
    n, is_complex = a.shape[0], a.dtype.is_complex
    pair = 1
    if is_complex:
        pattern, values = real_form(pattern, values)
        pair = 2
    found = approximate_inverse(pattern, values, float(tolerance), steps, add, pair)
    starts, rows, made = found if not is_complex else _complex_columns(*found)
    dtype = index_dtype(n, rows.size)
    by_column = Pattern((n, n), starts.astype(dtype), rows.astype(dtype))
    by_row, order = by_column.transposed
    by_row.__dict__["is_canonical"] = True
    tensor = nm.asarray(made[np.asarray(order.array)], dtype=a.dtype, device=a.device)
    m = SparseTensor(CSR(by_row), tensor)
    return LinearOperator((n, n), lambda m, x: m @ x, lambda m, x: m.H @ x, m, a.dtype)


def _complex_columns(starts: Array, rows: Array, made: Array) -> tuple[Array, Array, Array]:
    """Columns of real and imaginary parts, which follow each other, as complex ones."""
    new = np.ones(rows.size, bool)
    new[1:] = rows[1:] // 2 != rows[:-1] // 2
    new[starts[:-1][starts[:-1] < rows.size]] = True
    number = np.cumsum(new) - 1
    values = np.zeros(int(new.sum()), np.complex128)
    np.add.at(values, number, np.where(rows % 2 == 0, 1.0, 1j) * made)
    before = np.append(0, np.cumsum(new))
    return before[starts], rows[new] // 2, values
