"""Functions and methods that PyTorch defines otherwise than numus: its signatures in a table.

A row is a name with PyTorch's parameters and the call of the engine that it stands for. Rows whose
first parameter is `input` are methods, too. Names that are not here have the engine's meaning.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numus as nm
from numus import aliases
from numus.torch._owned import seeing_own

Function = Callable[..., Any]


class ValuesIndices(NamedTuple):
    """Elements along an axis, and where they stood."""

    values: Any
    indices: Any


class HistogramResult(NamedTuple):
    """Counts, and the edges between them."""

    hist: Any
    bin_edges: Any


class SVD(NamedTuple):
    """Singular vectors and values of `torch.svd`, V not transposed."""

    U: Any
    S: Any
    V: Any


def _axes(dim: Any) -> Any:
    """An axis or several; none given is all."""
    return None if dim is None or dim == () or dim == [] else _tuple(dim)


def _tuple(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list) else dim


def _varargs(given: tuple[Any, ...]) -> Any:
    """`f(2, 3)` and `f((2, 3))` alike."""
    return given[0] if len(given) == 1 and not isinstance(given[0], int) else given


# -- reductions -----------------------------------------------------------------------------------


def _extreme(name: str) -> Function:
    reduce = getattr(nm, name)
    pick, pairwise = getattr(nm, f"arg{name}"), getattr(nm, f"{name}imum")

    def run(
        input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None, **engine: Any
    ) -> Any:
        if engine:  # `axis=`, `keepdims=`: the engine's own spelling, as its functions use it
            return reduce(input, **engine)
        if other is not None or isinstance(dim, nm.Tensor):
            return pairwise(input, dim if other is None else other)
        if dim is None:
            return reduce(input)
        indices = pick(input, axis=dim, keepdims=True)
        return _values_at(input, indices, dim, keepdim)

    run.__doc__ = f"All elements' {name}; with dim, (values, indices); with a tensor, elementwise."
    return run


def _values_at(input: Any, indices: Any, dim: int, keepdim: bool) -> ValuesIndices:
    if not input.ndim:
        return ValuesIndices(input, nm.reshape(indices, ()))
    values = nm.take_along_axis(input, indices, axis=dim)
    if keepdim:
        return ValuesIndices(values, indices)
    return ValuesIndices(nm.squeeze(values, dim), nm.squeeze(indices, dim))


def _running(extreme: Function, input: Any, dim: int) -> ValuesIndices:
    """Running extremes, and where the last of equal ones are."""
    values = extreme(input, dim)
    line = [1] * input.ndim
    line[dim] = -1
    place = nm.broadcast_to(nm.reshape(nm.arange(input.shape[dim]), line), input.shape)
    is_new = nm.logical_or(nm.equal(input, values), nm.isnan(input))
    return ValuesIndices(values, nm.cummax(nm.where(is_new, place, 0), dim))


def _spread_of(name: str) -> Function:
    function = getattr(nm, name)

    def run(
        input: Any,
        dim: Any = None,
        unbiased: Any = True,
        keepdim: bool = False,
        *,
        correction: Any = None,
        **engine: Any,
    ) -> Any:
        if engine:  # `axis=`: the engine's own spelling, with its defaults
            return function(input, correction=correction or 0, **engine)
        if isinstance(dim, bool):  # x.std(False)
            dim, unbiased = None, dim
        freedom = builtins.int(unbiased) if correction is None else correction
        return function(input, _axes(dim), correction=freedom, keepdims=keepdim)

    run.__doc__ = f"`nm.{name}` with one degree of freedom taken off, unless unbiased is False."
    return run


def _median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median; with dim, (values, indices)."""
    if dim is None:
        return nm.kthvalue(nm.ravel(input), (nm.numel(input) + 1) // 2).values
    return nm.kthvalue(input, (input.shape[dim] + 1) // 2, dim, keepdim)


def _sort(
    input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False, **engine: Any
) -> Any:
    """(values, indices) in order."""
    if engine:  # `axis=`: the engine's own spelling
        return nm.sort(input, descending=descending, **engine)
    order = nm.argsort(input, axis=dim, descending=descending)
    return ValuesIndices(nm.take_along_axis(input, order, axis=dim) if input.ndim else input, order)


def _norm(
    input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """The norm of all elements, or along axes; "nuc" is that of a matrix."""
    given = input if dtype is None else nm.astype(input, dtype)
    if p == "nuc":
        return nm.linalg.norm(given, ord="nuc", axis=_axes(dim), keepdims=keepdim)
    order = 2 if p in ("fro", None) else p
    return nm.linalg.vector_norm(given, axis=_axes(dim), keepdims=keepdim, ord=order)


def _unique(
    input: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements, in order; where they went and how often they are, if asked for."""
    return nm.unique(input, return_inverse=return_inverse, return_counts=return_counts, axis=dim)


# -- shapes ---------------------------------------------------------------------------------------


def _split(tensor: Any, split_size_or_sections: Any, dim: int = 0, **engine: Any) -> Any:
    """Parts of one size (the last may be smaller), or of several sizes."""
    if engine:
        return nm.split(tensor, split_size_or_sections, **engine)
    if not isinstance(split_size_or_sections, builtins.int):
        return nm.split_with_sizes(tensor, split_size_or_sections, dim)
    cuts = builtins.range(split_size_or_sections, tensor.shape[dim], split_size_or_sections)
    return nm.split(tensor, list(cuts), axis=dim)


def _squeeze(input: Any, dim: Any = None, **engine: Any) -> Any:
    """Without axes of extent 1; those named that are longer stay."""
    if engine or dim is None:
        return nm.squeeze(input, **engine)
    named = (dim,) if isinstance(dim, builtins.int) else tuple(dim)
    if not input.ndim:
        return nm.squeeze(input)
    return nm.squeeze(input, tuple(d for d in named if input.shape[d] == 1))


def _transpose(input: Any, *dims: Any, **named: Any) -> Any:
    """Two axes exchanged."""
    given = (*dims, *named.values())
    if len(given) == 2 and all(isinstance(d, builtins.int) for d in given):
        return nm.swapaxes(input, *given)
    return nm.Tensor.transpose(input, *given)  # the engine's: all axes in a new order


def _meshgrid(*tensors: Any, indexing: str = "ij") -> Any:
    """Coordinates of a grid, the first along rows."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    return tuple(nm.meshgrid(*given, indexing=indexing))


def _triangle(name: str) -> Function:
    def run(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Any:
        found = nm.stack(getattr(nm, name)(row, offset, col))
        return found.to(dtype=dtype or nm.int64, device=device)

    run.__doc__ = "Rows and columns of the elements of a triangle, as a tensor of two rows."
    return run


# -- elements -------------------------------------------------------------------------------------


def _scaled(other: Any, alpha: Any) -> Any:
    return other if alpha == 1 else nm.multiply(other, alpha)


def _where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """Elements of input where the condition holds, else of other; alone, the indices of True."""
    return nm.nonzero(condition) if input is None else nm.where(condition, input, other)


def _einsum(equation: str, *operands: Any) -> Any:
    """A sum of products by letters for axes."""
    given = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    )
    return nm.einsum(equation, *given)


def _searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Where elements would go among sorted ones."""
    where = side or ("right" if right else "left")
    found = nm.searchsorted(sorted_sequence, input, side=where, sorter=sorter)
    return nm.astype(found, nm.int32) if out_int32 else found


def _cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """The vector product, along the first axis of extent 3 where none is named."""
    at = input.shape.index(3) if dim is None else dim
    return nm.cross(input, other, axis=at)


def _svd(input: Any, some: bool = True, compute_uv: bool = True) -> Any:
    """U, S, V with input = U diag(S) V^H."""
    u, s, vh = nm.linalg.svd(input, full_matrices=not some)
    return SVD(u, s, nm.conj(nm.matrix_transpose(vh)))


def _cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> Any:
    """Distances between the rows of two matrices, or of two batches of them."""
    apart = nm.subtract(nm.expand_dims(x1, -2), nm.expand_dims(x2, -3))
    return nm.linalg.vector_norm(apart, ord=p, axis=-1)


def _triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """x with A x = b, and A, as `torch.triangular_solve` gives them."""
    found = nm.linalg.solve_triangular(
        A, b, lower=not upper, trans=builtins.int(transpose), unit_diagonal=unitriangular
    )
    return found, A


def _batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    """Normalised over the batch: `torch.batch_norm`, in its own order of arguments."""
    scaled = (running_mean, running_var, weight, bias)
    return _functional("batch_norm")(input, *scaled, training, momentum, eps)


def _histogram(
    input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    """Counts in bins."""
    counts, edges = nm.histogram(input, bins, range, density, weight)
    return HistogramResult(nm.astype(counts, input.dtype), edges)


def _reduced(name: str, *, dtype: bool) -> Function:
    """A reduction over no axis, one or several."""
    function = getattr(nm, name)

    def typed(
        input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **engine: Any
    ) -> Any:
        return function(input, **(engine or {"axis": _axes(dim), "keepdims": keepdim}), dtype=dtype)

    def plain(input: Any, dim: Any = None, keepdim: bool = False, **engine: Any) -> Any:
        return function(input, **(engine or {"axis": _axes(dim), "keepdims": keepdim}))

    run = typed if dtype else plain
    run.__doc__ = function.__doc__
    return run


FUNCTIONS: dict[str, Callable[[], Function]] = {
    **{
        name: lambda name=name: _reduced(name, dtype=True)  # type: ignore[misc]
        for name in "sum nansum mean nanmean prod".split()
    },
    **{
        name: lambda name=name: _reduced(name, dtype=False)  # type: ignore[misc]
        for name in "all any amax amin logsumexp count_nonzero".split()
    },
    **{
        name: lambda name=name: _spread_of(name)  # type: ignore[misc]
        for name in "std var std_mean var_mean".split()
    },
    "max": lambda: _extreme("max"),
    "min": lambda: _extreme("min"),
    "tril_indices": lambda: _triangle("tril_indices"),
    "triu_indices": lambda: _triangle("triu_indices"),
}


def _functional(name: str) -> Function:
    function: Function = getattr(nm.nn.functional, name)
    return function


def _sizes(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_varargs(tuple(sizes)))


# Rows: PyTorch's parameters and the engine's call.
TABLE: dict[str, Function] = {
    "add": lambda input, other, *, alpha=1: nm.add(input, _scaled(other, alpha)),
    "sub": lambda input, other, *, alpha=1: nm.subtract(input, _scaled(other, alpha)),
    "subtract": lambda input, other, *, alpha=1: nm.subtract(input, _scaled(other, alpha)),
    "allclose": lambda input, other, rtol=1e-05, atol=1e-08, equal_nan=False: builtins.bool(
        nm.allclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
    ),
    "isclose": lambda input, other, rtol=1e-05, atol=1e-08, equal_nan=False: nm.isclose(
        input, other, rtol=rtol, atol=atol, equal_nan=equal_nan
    ),
    "equal": lambda input, other: nm.Tensor.equal(input, other),
    "argsort": lambda input, dim=-1, descending=False, stable=False, **engine: nm.argsort(
        input, **(engine or {"axis": dim}), descending=descending
    ),
    "cdist": _cdist,
    "cummax": lambda input, dim: _running(nm.cummax, input, dim),
    "cummin": lambda input, dim: _running(nm.cummin, input, dim),
    "cross": _cross,
    "cov": lambda input, *, correction=1, fweights=None, aweights=None: nm.cov(
        input, correction=correction, fweights=fweights, aweights=aweights
    ),
    "cumulative_trapezoid": lambda y, x=None, *, dx=1.0, dim=-1: nm.cumulative_trapezoid(
        y, x, dx=dx, axis=dim
    ),
    "trapezoid": lambda y, x=None, *, dx=1.0, dim=-1: nm.trapezoid(y, x, dx=dx, axis=dim),
    "trapz": lambda y, x=None, *, dx=1.0, dim=-1: nm.trapezoid(y, x, dx=dx, axis=dim),
    "diff": lambda input, n=1, dim=-1, prepend=None, append=None: nm.diff(
        input, axis=dim, n=n, prepend=prepend, append=append
    ),
    "einsum": _einsum,
    "flip": lambda input, *dims, **named: nm.flip(
        input, _axes(_varargs(dims or tuple(named.values())))
    ),
    "gradient": lambda input, *, spacing=1, dim=None, edge_order=1: nm.gradient(
        input, spacing, axis=dim, edge_order=edge_order
    ),
    "histogram": _histogram,
    "log_softmax": lambda input, dim=None, dtype=None, **engine: (
        nm.log_softmax(input, **engine)
        if engine
        else _functional("log_softmax")(input, dim, dtype=dtype)
    ),
    "softmax": lambda input, dim=None, dtype=None, **engine: (
        nm.softmax(input, **engine) if engine else _functional("softmax")(input, dim, dtype=dtype)
    ),
    "median": _median,
    "meshgrid": _meshgrid,
    "movedim": lambda input, source, destination: nm.moveaxis(input, source, destination),
    "moveaxis": lambda input, source, destination: nm.moveaxis(input, source, destination),
    "nanquantile": lambda input, q, dim=None, keepdim=False, *, interpolation="linear": (
        nm.nanquantile(input, q, dim, method=interpolation, keepdims=keepdim)
    ),
    "quantile": lambda input, q, dim=None, keepdim=False, *, interpolation="linear": nm.quantile(
        input, q, dim, method=interpolation, keepdims=keepdim
    ),
    "nonzero": lambda input, *, as_tuple=False: (
        nm.nonzero(input) if as_tuple else nm.argwhere(input)
    ),
    "norm": _norm,
    "permute": lambda input, *dims: nm.permute_dims(input, _sizes(dims)),
    "permute_dims": lambda input, *dims: nm.permute_dims(input, _sizes(dims)),
    "qr": lambda input, some=True: nm.linalg.qr(input, mode="reduced" if some else "complete"),
    "range": lambda start=0, end=None, step=1, *, dtype=None, device=None: nm.range(
        start, end, step, dtype=dtype, device=device
    ),
    "roll": lambda input, shifts, dims=None: nm.roll(input, shifts, dims),
    "rot90": lambda input, k=1, dims=(0, 1): nm.rot90(input, k, dims),
    "searchsorted": _searchsorted,
    "select": lambda input, dim, index: nm.Tensor.select(input, dim, index),
    "sort": _sort,
    "split": _split,
    "squeeze": _squeeze,
    "svd": _svd,
    "tensordot": lambda a, b, dims=2: nm.tensordot(a, b, axes=dims),
    "tile": lambda input, *dims: nm.tile(input, _sizes(dims)),
    "transpose": _transpose,
    "swapaxes": lambda input, axis0, axis1: nm.swapaxes(input, axis0, axis1),
    "swapdims": lambda input, dim0, dim1: nm.swapaxes(input, dim0, dim1),
    "unique": _unique,
    "unsafe_split": lambda tensor, split_size, dim=0: _split(tensor, split_size, dim),
    "is_conj": lambda input: False,
    "is_neg": lambda input: False,
    "resolve_conj": lambda input: input,
    "resolve_neg": lambda input: input,
    "is_inference": lambda input: False,
    "cholesky_solve": lambda B, L, upper=False: nm.linalg.cho_solve((L, not upper), B),
    "constant_pad_nd": lambda input, pad, value=0: _functional("pad")(input, pad, value=value),
    "frobenius_norm": lambda input, dim=None, keepdim=False: _norm(input, "fro", dim, keepdim),
    "nuclear_norm": lambda input, dim=None, keepdim=False: _norm(input, "nuc", dim, keepdim),
    "triangular_solve": _triangular_solve,
    "batch_norm": _batch_norm,
    "unravel_index": lambda indices, shape: nm.unravel_index(indices, shape),
    "vander": lambda x, N=None, increasing=False: nm.vander(x, N, increasing),
    "where": _where,
}


def _in_other_shape(name: str) -> Function:
    """A change of shape in place: the handle is bound to the result."""

    def run(self: Any, *args: Any) -> Any:
        if self._alias is not None and aliases.is_shared(self):
            raise ValueError(
                f"{name}_: other tensors share the memory of this one; write x = x.{name}(...)"
            )
        self._bind(getattr(self, name)(*args)._node)
        return self

    run.__doc__ = f"`{name}`, in place."
    return run


METHODS: dict[str, Function] = {
    **{
        f"{name}_": _in_other_shape(name)
        for name in "squeeze unsqueeze t transpose swapaxes swapdims".split()
    },
    "register_hook": lambda self, hook: nm.Tensor.register_hook(self, seeing_own(hook)),
    "repeat": lambda self, *repeats, **engine: (
        nm.repeat(self, *repeats, **engine) if engine else nm.tile(self, _sizes(repeats))
    ),
    "where": lambda self, condition, other: nm.where(condition, self, other),
    "is_contiguous": lambda self, memory_format=None: nm.Tensor.is_contiguous(self),
    "contiguous": lambda self, memory_format=None: nm.Tensor.contiguous(self),
    "pin_memory": lambda self, device=None: self,  # transfers need no pinned copies
    "is_pinned": lambda self, device=None: False,
    "share_memory_": lambda self: self,  # workers of loaders are threads
    "is_shared": lambda self: False,
    "is_conj": lambda self: False,
    "is_neg": lambda self: False,
    "resolve_conj": lambda self: self,
    "resolve_neg": lambda self: self,
    "is_inference": lambda self: False,
    "is_set_to": lambda self, tensor: nm.shares_memory(self, tensor) and self.shape == tensor.shape,
    "detach_": lambda self: self._bind(self.detach()._node) or self,
    "new": lambda self, *data: self.new_tensor(data[0]) if data else self.new_empty(0),
    "prelu": lambda self, weight: _functional("prelu")(self, weight),
    "hardshrink": lambda self, lambd=0.5: _functional("hardshrink")(self, lambd),
    "lu": lambda self: nm.linalg.lu(self),
    "cholesky_solve": lambda self, input2, upper=False: nm.linalg.cho_solve(
        (input2, not upper), self
    ),
    "unsafe_chunk": lambda self, chunks, dim=0: nm.chunk(self, chunks, dim),
    "unsafe_split": lambda self, split_size, dim=0: _split(self, split_size, dim),
    "unsafe_split_with_sizes": lambda self, split_sizes, dim=0: _split(self, split_sizes, dim),
    "apply_": lambda self, callable: self.copy_(
        nm.reshape(nm.asarray([callable(v) for v in nm.ravel(self).tolist()]), self.shape)
    ),
}
