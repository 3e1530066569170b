"""Linear operators: matrices, sparse or dense, and functions of vectors, seen alike by solvers.

An operator has parameters, by which solutions are differentiated, and acts on columns (n, k). The
adjoint of a function is its transpose, taken by reverse mode, unless it is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.shapes import as_int
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor
from numus.transforms import tree

Apply = Callable[[Any, Tensor], Tensor]  # of the parameters and columns


@dataclass(frozen=True, eq=False)
class LinearOperator:
    """A linear map of vectors, given by a function.

    Args:
        shape: (rows, columns).
        matvec: of a vector, or of the parameters and a vector where there are some.
        rmatvec: its adjoint, with the same arguments; by reverse mode where it is None.
        parameters: a container of tensors by which solutions can be differentiated.
        dtype: of its results; that of the right-hand side where it is None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import LinearOperator, cg
    >>> double = LinearOperator((3, 3), lambda x: 2.0 * x)
    >>> cg(double, nm.ones(3)).x.tolist()
    [0.5, 0.5, 0.5]
    """

    shape: tuple[int, int]
    matvec: Callable[..., Any]
    rmatvec: Callable[..., Any] | None = None
    parameters: Any = None
    dtype: DType | None = None

    def __post_init__(self) -> None:
        sizes = tuple(as_int(n, "shape", "LinearOperator") for n in self.shape)
        if len(sizes) != 2 or min(sizes) < 0:
            raise ShapeError(f"LinearOperator: {self.shape} is no (rows, columns)")

    def __matmul__(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        return columns_of(x, as_operator(self).apply)

    @property
    def H(self) -> LinearOperator:
        """The adjoint."""
        system = as_operator(self)
        return LinearOperator(
            *(self.shape[::-1], lambda p, x: system.adjoint_of(p, x[:, None])[:, 0]),
            lambda p, x: system.forward(p, x[:, None])[:, 0],
            *(system.parameters, self.dtype),
        )


@dataclass(frozen=True, eq=False)
class System:
    """An operator as solvers use it: on columns, with parameters apart."""

    shape: tuple[int, int]
    parameters: Any
    forward: Apply
    adjoint: Apply | None = None
    dtype: DType | None = None
    is_matrix: bool = False  # the parameters are a sparse matrix, and this is its product

    @property
    def matrix(self) -> SparseTensor | None:
        return self.parameters if self.is_matrix else None

    def apply(self, x: Tensor) -> Tensor:
        return self.forward(self.parameters, x)

    def apply_adjoint(self, y: Tensor) -> Tensor:
        return self.adjoint_of(self.parameters, y)

    def adjoint_of(self, parameters: Any, y: Tensor) -> Tensor:
        if self.adjoint is not None:
            return self.adjoint(parameters, y)
        zero = nm.zeros((self.shape[1], y.shape[1]), dtype=y.dtype, device=y.device)
        _, pull = nm.vjp(lambda x: self.forward(parameters, x), zero)
        (found,) = pull(y)
        return found

    def adjoint_system(self) -> System:
        return System(self.shape[::-1], self.parameters, self.adjoint_of, self.forward, self.dtype)

    def with_parameters(self, parameters: Any) -> System:
        return dataclasses.replace(self, parameters=parameters)


def as_operator(a: Any) -> System:
    """A matrix, operator or (for preconditioners) a function of a vector, on columns."""
    if isinstance(a, System):
        return a
    if isinstance(a, SparseTensor):
        if a.ndim != 2:
            raise ShapeError(f"a linear operator is a matrix, not a sparse tensor of {a.shape}")
        return System(
            *((a.shape[0], a.shape[1]), a, lambda p, x: p @ x, lambda p, y: p.H @ y, a.dtype),
            is_matrix=True,
        )
    if isinstance(a, LinearOperator):
        return _of_function(a)
    dense = nm.asarray(a)
    if dense.ndim != 2:
        raise ShapeError(f"a linear operator is a matrix, not a tensor of {tuple(dense.shape)}")
    return System(
        *((dense.shape[0], dense.shape[1]), dense, lambda p, x: p @ x),
        *(lambda p, y: nm.conj(p.mT) @ y, dense.dtype),
    )


def _of_function(a: LinearOperator) -> System:
    def on_columns(function: Callable[..., Any]) -> Apply:
        def apply(parameters: Any, x: Tensor) -> Tensor:
            def one(vector: Tensor) -> Any:
                has = a.parameters is not None
                return function(parameters, vector) if has else function(vector)

            return columns_of(x, None, one)

        return apply

    adjoint = None if a.rmatvec is None else on_columns(a.rmatvec)
    return System(a.shape, a.parameters, on_columns(a.matvec), adjoint, a.dtype)


def columns_of(
    x: Tensor, of_columns: Callable[[Tensor], Tensor] | None, of_vector: Any = None
) -> Tensor:
    """A function of columns on a vector too, or a function of a vector on columns."""
    if of_columns is not None:
        return of_columns(x[:, None])[:, 0] if x.ndim == 1 else of_columns(x)
    if x.shape[1] == 1:
        return of_vector(x[:, 0])[:, None]
    return nm.vmap(of_vector, in_axes=1, out_axes=1)(x)


def preconditioner(m: Any, n: int, op: str) -> System | None:
    """A matrix, an operator or a `Multigrid` that approximates the inverse, or a function, which is
    taken to be its own adjoint: it need not be linear. No derivative goes through it."""
    if m is None:
        return None
    if hasattr(m, "preconditioner"):
        m = m.preconditioner()
    if callable(m) and not isinstance(m, (SparseTensor, LinearOperator, Tensor)):

        def apply(parameters: Any, x: Tensor) -> Tensor:
            return columns_of(x, None, m)

        return System((n, n), None, apply, apply)
    system = as_operator(m)
    if system.shape != (n, n):
        raise ShapeError(f"{op}: a preconditioner of shape {system.shape} for {n} unknowns")
    return system.with_parameters(tree.map(nm.detach, system.parameters))


# -- diagonal preconditioners ---------------------------------------------------------------------


def jacobi_preconditioner(a: SparseTensor) -> LinearOperator:
    """The inverse of a matrix's diagonal.

    >>> import numus as nm
    >>> from numus.sparse.linalg import jacobi_preconditioner
    >>> (jacobi_preconditioner(nm.sparse.diags([2.0, 4.0])) @ nm.ones(2)).tolist()
    [0.5, 0.25]
    """
    diagonal = a.diagonal()
    if is_known(diagonal._node) and not bool(nm.all(diagonal != 0)):
        raise LinAlgError("jacobi_preconditioner: the diagonal has a zero")
    inverse = 1 / diagonal
    n = inverse.shape[0]
    return LinearOperator(
        (n, n), lambda d, x: d * x, lambda d, x: nm.conj(d) * x, inverse, inverse.dtype
    )


def block_jacobi_preconditioner(a: SparseTensor, size: int) -> LinearOperator:
    """The inverses of the diagonal blocks of a matrix, each of `size` rows.

    >>> import numus as nm
    >>> from numus.sparse.linalg import block_jacobi_preconditioner
    >>> m = block_jacobi_preconditioner(nm.sparse.eye(4) * 2.0, 2)
    >>> (m @ nm.ones(4)).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    n = a.shape[0]
    if a.shape != (n, n) or size < 1 or n % size:
        raise ShapeError(f"block_jacobi_preconditioner: blocks of {size} in a matrix of {a.shape}")
    row = np.arange(n).repeat(size)
    column = (np.arange(n) // size * size)[:, None] + np.arange(size)
    blocks = a[row, column.ravel()].reshape(n // size, size, size)
    inverse = nm.linalg.inv(blocks)

    def apply(m: Tensor, x: Tensor) -> Tensor:
        return (m @ x.reshape(-1, size, 1)).reshape(-1)

    return LinearOperator(
        (n, n), apply, lambda m, x: apply(nm.conj(m.mT), x), inverse, inverse.dtype
    )


def common_dtype(system: System, b: Tensor) -> DType:
    """The dtype in which a system is solved."""
    dtype = b.dtype if system.dtype is None else dt.promote(system.dtype, b.dtype)
    return dtype if dtype.is_inexact else dt.default_float
