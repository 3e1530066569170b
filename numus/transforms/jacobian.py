"""Jacobians and Hessians: one recorded call, differentiated along every direction at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, Literal, ParamSpec, overload

from numus import dtypes as dt
from numus.errors import GradientError
from numus.graph import Node, Nodes, Tangents
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full_like
from numus.primitives.source import iota, placeholder
from numus.primitives.views import permute, reshape
from numus.shapes import size_of
from numus.tensor import Tensor
from numus.transforms.functional import Argnums, by_argument, conjugate, trace_call
from numus.transforms.trace import Trace, require_function
from numus.transforms.tree import unflatten
from numus.transforms.vmap import OfTensor, batch

__all__ = ["hessian", "jacfwd", "jacrev"]

Function = Callable[..., Any]
P = ParamSpec("P")


@overload
def jacrev(
    f: Callable[Concatenate[Tensor, P], Tensor],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> OfTensor[P, Tensor]: ...
@overload
def jacrev(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]: ...
def jacrev(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that gives the Jacobian of f, row by row in reverse mode.

    For an output of shape (m, …) and an argument of shape (n, …) it has the shape (m, …, n, …);
    with containers, each output has one for each argument. Best where f has few outputs.

    >>> import numus as nm
    >>> nm.jacrev(lambda x: x * x)(nm.asarray([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    def rows(trace: Trace) -> list[list[Node]]:
        _check(trace, holomorphic, trace.outputs, "results")
        rows = []
        for y, found in _directions(trace.op, trace.reverse, trace.outputs, trace.primals):
            if holomorphic:
                found = [conjugate(g) for g in found]  # type: ignore[misc]
            rows.append([reshape(g, y.shape + g.shape[1:]) for g in found])
        return rows

    return _jacobian("jacrev", f, argnums, has_aux, rows)


@overload
def jacfwd(
    f: Callable[Concatenate[Tensor, P], Tensor],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> OfTensor[P, Tensor]: ...
@overload
def jacfwd(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[P, Any]: ...
def jacfwd(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that gives the Jacobian of f as `jacrev` does, column by column in forward mode.

    Best where f has few inputs.
    """

    def rows(trace: Trace) -> list[list[Node]]:
        _check(trace, holomorphic, trace.primals, "arguments")
        columns = [
            [reshape(permute(t, (*range(1, t.ndim), 0)), t.shape[1:] + x.shape) for t in found]
            for x, found in _directions(trace.op, trace.forward, trace.primals, trace.outputs)
        ]
        return [[c[k] for c in columns] for k in range(len(trace.outputs))]

    return _jacobian("jacfwd", f, argnums, has_aux, rows)


@overload
def hessian(
    f: Callable[Concatenate[Tensor, P], Tensor],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
) -> OfTensor[P, Tensor]: ...
@overload
def hessian(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[P, Any]: ...
def hessian(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the second derivatives of f: forward over reverse.

    >>> import numus as nm
    >>> nm.hessian(lambda x: (x * x * x).sum())(nm.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacfwd(jacrev(f, argnums, has_aux), argnums, has_aux)


def _jacobian(
    op: str, f: Function, argnums: Argnums, has_aux: bool, rows: Callable[[Trace], list[list[Node]]]
) -> Function:
    """A function that gives the Jacobian whose blocks `rows` finds, by output and argument."""
    require_function(f, op)

    @functools.wraps(f)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        trace = trace_call(op, f, argnums, args, kwargs, has_aux)
        found = rows(trace)
        trace.close([node for row in found for node in row])
        result = unflatten(trace.structure, [by_argument(trace, argnums, row) for row in found])
        return (result, trace.aux) if has_aux else result

    return jacobian


def _directions(
    op: str, derivative: Callable[[Tangents], Tangents], sources: Nodes, targets: Nodes
) -> Iterator[tuple[Node, list[Node]]]:
    """For each source, the derivatives of the targets along its unit vectors, batched."""
    for i, x in enumerate(sources):
        count = size_of(x.shape)
        seed = placeholder(x.shape, x.dtype, x.device, op)
        found = derivative([seed if k == i else None for k in range(len(sources))])
        at = iota(count, dt.int64, x.device)
        eye = ew.cast(ew.eq(reshape(at, (count, 1)), reshape(at, (1, count))), x.dtype)
        nodes = [full_like(y, 0) if g is None else g for g, y in zip(found, targets, strict=True)]
        yield (
            x,
            [
                g if carries else broadcast(full_like(g, 0), (count, *g.shape))
                for g, carries in batch(nodes, {seed: reshape(eye, (count, *x.shape))}, count)
            ],
        )


def _check(trace: Trace, holomorphic: bool, nodes: Nodes, what: str) -> None:
    for node in nodes:
        if holomorphic and not node.dtype.is_complex:
            raise GradientError(f"{trace.op}: holomorphic needs complex {what}")
        if not holomorphic and node.dtype.is_complex:
            raise GradientError(
                f"{trace.op}: complex {what} have one Jacobian only where the function is "
                "holomorphic; say so with holomorphic=True, or part real from imaginary"
            )
        if not node.dtype.is_inexact:
            raise GradientError(f"{trace.op}: {what} of {node.dtype.name} have no Jacobian")
