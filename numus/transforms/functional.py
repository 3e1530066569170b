"""Derivatives of functions: grad, vjp, jvp, linearize and hvp.

Arguments and results are containers of tensors. Values in the function are concrete, so Python
conditions on them work; every transformation nests in every other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    overload,
)

from numus.errors import GradientError
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Tangents, grad_mode
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full_like
from numus.primitives.source import placeholder
from numus.shapes import as_int, is_sequence
from numus.tensor import Tensor
from numus.transforms.subgraph import Recipe, dependents
from numus.transforms.trace import Trace, filled, matching, require_function, tensors

__all__ = ["grad", "hvp", "jvp", "linearize", "value_and_grad", "vjp"]

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Number = Tensor | complex
Argnums = int | Sequence[int]


if TYPE_CHECKING:
    # Functions at run time; classes for type checkers, since mypy infers a lambda in the place of
    # a Callable[Concatenate[...]] as one without types. The type of the call's argument decides.

    class Gradient(Generic[T, P]):
        """`grad(f)`: it takes what f takes, and gives the type of the first argument."""

        @overload
        def __call__(
            self: Gradient[Tensor, P], x: Number, /, *args: P.args, **kwargs: P.kwargs
        ) -> Tensor: ...
        @overload
        def __call__(self, x: T, /, *args: P.args, **kwargs: P.kwargs) -> T: ...
        def __call__(self, x: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    class ValueAndGradient(Generic[T, P, R]):
        """`value_and_grad(f)`: the value comes first."""

        @overload
        def __call__(
            self: ValueAndGradient[Tensor, P, R], x: Number, /, *args: P.args, **kwargs: P.kwargs
        ) -> tuple[R, Tensor]: ...
        @overload
        def __call__(self, x: T, /, *args: P.args, **kwargs: P.kwargs) -> tuple[R, T]: ...
        def __call__(self, x: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...


def trace_call(
    op: str, f: Function, argnums: Argnums, args: Sequence[Any], kwargs: Any, has_aux: bool
) -> Trace:
    """Record a call with respect to some of its arguments."""
    positions = []
    for n in argnums if is_sequence(argnums) else [argnums]:
        n = as_int(n, "argnums", op)
        if not -len(args) <= n < len(args):
            raise ValueError(f"{op}: argnums names argument {n}, but {len(args)} were given")
        positions.append(n % len(args))
    if len(set(positions)) != len(positions):
        raise ValueError(f"{op}: argnums {argnums} names an argument twice")

    def call(*primals: Any) -> Any:
        full_args = list(args)
        for position, primal in zip(positions, primals, strict=True):
            full_args[position] = primal
        return f(*full_args, **kwargs)

    primals = [args[i] for i in positions]
    return Trace(op, call, primals, has_aux=has_aux, positions=positions)


def by_argument(trace: Trace, argnums: Argnums, nodes: Tangents) -> Any:
    """Results in the form of the arguments: bare for one argument, a tuple for several."""
    parts = trace.split(tensors, nodes)
    return tuple(parts) if is_sequence(argnums) else parts[0]


@overload  # a lambda's argument is taken for a tensor
def value_and_grad(
    f: Callable[Concatenate[Tensor, P], R],
    argnums: Literal[0] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> ValueAndGradient[Tensor, P, R]: ...
@overload
def value_and_grad(
    f: Callable[Concatenate[T, P], R],
    argnums: Literal[0] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> ValueAndGradient[T, P, R]: ...
@overload
def value_and_grad(
    f: Callable[P, R],
    argnums: tuple[int, ...],
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[P, tuple[R, tuple[Any, ...]]]: ...
@overload
def value_and_grad(
    f: Function, argnums: Argnums, has_aux: bool = False, holomorphic: bool = False
) -> Function: ...
@overload
def value_and_grad(
    f: Function, argnums: Argnums = 0, *, has_aux: bool, holomorphic: bool = False
) -> Function: ...
def value_and_grad(
    f: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """A function that gives (f's value, its gradient).

    f must return a real scalar, or (scalar, aux) with `has_aux`; then the value is
    (scalar, aux). A complex argument z = x + iy has the gradient df/dx + i df/dy, the direction
    in which f grows fastest; with `holomorphic` it is the complex derivative of a complex f.

    >>> import numus as nm
    >>> value, slope = nm.value_and_grad(lambda x: x * x)(3.0)
    >>> value.item(), slope.item()
    (9.0, 6.0)
    """
    require_function(f, "grad")

    @functools.wraps(f)
    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        trace = trace_call("grad", f, argnums, args, kwargs, has_aux)
        y = _scalar(trace, holomorphic)
        found = filled(trace.reverse([full_like(y, 1)]), trace.primals)
        if holomorphic:
            found = [conjugate(g) for g in found]
        trace.close(found)
        value = trace.value()
        return (value, trace.aux) if has_aux else value, by_argument(trace, argnums, found)

    return value_and_gradient


def conjugate(g: Node | None) -> Node | None:
    """Cotangents carry the conjugate of a holomorphic derivative: undo it."""
    return ew.conj(g) if g is not None and g.dtype.is_complex else g


def _scalar(trace: Trace, holomorphic: bool) -> Node:
    op = trace.op
    if trace.structure.kind is not None:
        raise GradientError(
            f"{op}: the function must return one scalar, not a {trace.structure.kind.__name__} of "
            f"{trace.structure.count} values; return the one to differentiate, with has_aux=True "
            "for (value, the rest), or use vjp or jacrev for several outputs"
        )
    y = trace.outputs[0]
    if y.shape != ():
        raise GradientError(
            f"{op}: the function must return a scalar, not shape {y.shape}; reduce it (.sum(), "
            ".mean()), or use vjp or jacrev"
        )
    if holomorphic:
        if not all(x.dtype.is_complex for x in (y, *trace.primals)):
            raise GradientError(f"{op}: holomorphic needs complex arguments and a complex result")
    elif y.dtype.kind != "float":
        hint = "take a real part, or pass holomorphic=True" if y.dtype.is_complex else "cast it"
        raise GradientError(f"{op}: the function must return a float, not {y.dtype.name}; {hint}")
    return y


@overload  # a lambda's argument is taken for a tensor
def grad(
    f: Callable[Concatenate[Tensor, P], Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> Gradient[Tensor, P]: ...
@overload
def grad(
    f: Callable[Concatenate[T, P], Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> Gradient[T, P]: ...
@overload
def grad(
    f: Callable[P, Any],
    argnums: tuple[int, ...],
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> Callable[P, tuple[Any, ...]]: ...
@overload
def grad(
    f: Function, argnums: Argnums, has_aux: bool = False, holomorphic: bool = False
) -> Function: ...
@overload
def grad(
    f: Function, argnums: Argnums = 0, *, has_aux: bool, holomorphic: bool = False
) -> Function: ...
def grad(
    f: Function, argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Function:
    """A function that gives the gradient of a scalar function: see `value_and_grad`.

    With `has_aux` it gives (gradient, aux).

    >>> import numus as nm
    >>> nm.grad(lambda x: x * x * x)(2.0).item()
    12.0
    >>> nm.grad(nm.grad(lambda x: x * x * x))(2.0).item()
    12.0
    """
    both = value_and_grad(f, argnums, has_aux, holomorphic)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def vjp(f: Function, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """f's value and a function that maps its cotangent to a tuple of cotangents of the primals.

    With `has_aux`, f returns (value, aux), and aux comes as a third result.

    >>> import numus as nm
    >>> y, pull = nm.vjp(lambda x: x * x, nm.asarray([1.0, 2.0]))
    >>> pull(nm.asarray([1.0, 10.0]))[0].tolist()
    [2.0, 40.0]
    """
    trace = Trace("vjp", f, primals, has_aux=has_aux)

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = matching(cotangent, trace.structure, trace.outputs, "vjp", "the cotangent")
        found = filled(trace.reverse(given), trace.primals)
        return tuple(trace.split(tensors, found))

    value = trace.value()
    return (value, pull, trace.aux) if has_aux else (value, pull)


def jvp(
    f: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """f's value and its derivative in the direction of the tangents.

    >>> import numus as nm
    >>> y, dy = nm.jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> dy.item()
    6.0
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError("jvp: primals and tangents are tuples with an entry for each argument")
    trace = Trace("jvp", f, primals, has_aux=has_aux)
    given = _tangents(trace, tangents)
    found = filled(trace.forward(given), trace.outputs)
    trace.close(found)
    out = (trace.value(), tensors(trace.structure, found))
    return (*out, trace.aux) if has_aux else out


def _tangents(trace: Trace, tangents: Sequence[Any]) -> list[Node | None]:
    if len(tangents) != len(trace.structures):
        raise TypeError(
            f"{trace.op}: {len(tangents)} tangents for {len(trace.structures)} arguments"
        )
    out: list[Node | None] = []
    for i, (tangent, structure) in enumerate(zip(tangents, trace.structures, strict=True)):
        like = trace.primals[len(out) : len(out) + structure.count]
        out += matching(tangent, structure, like, trace.op, f"tangent {i}")
    return out


def linearize(f: Function, *primals: Any) -> tuple[Any, Function]:
    """f's value and the linear function that maps tangents of the primals to its tangent.

    f runs once, and the residuals of the linear function are computed once.
    """
    trace = Trace("linearize", f, primals)
    spots = [
        placeholder(x.shape, x.dtype, x.device, "linearize") if x.dtype.is_inexact else None
        for x in trace.primals
    ]
    inputs = [s for s in spots if s is not None]
    for spot in inputs:
        spot.tracked = True  # so that the linear function can be differentiated by its argument
    with grad_mode(True):
        found = filled(trace.forward(spots), trace.outputs)
    outputs = [t for t in found if t is not None]
    order = dependents(outputs, inputs)
    recipe = Recipe(order, inputs, outputs)
    variant = {*order, *inputs}
    residuals = [x for node in order for x in node.inputs if x not in variant]
    trace.close(residuals)
    # constants of no device remain so: evaluated, they would be on the default one
    evaluate([x for x in residuals if not x.abstract and x.device is not None])

    def apply_tangents(*tangents: Any) -> Any:
        given = [
            full_like(x, 0) if t is None else t
            for x, t in zip(trace.primals, _tangents(trace, tangents), strict=True)
            if x.dtype.is_inexact
        ]
        made = iter(recipe.replay(given))
        return tensors(trace.structure, [None if t is None else next(made) for t in found])

    return trace.value(), apply_tangents


def hvp(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar function times a vector, without forming the Hessian.

    Bare for one primal, a tuple for several.

    >>> import numus as nm
    >>> x, v = nm.asarray([1.0, 2.0]), nm.asarray([1.0, 1.0])
    >>> nm.hvp(lambda x: (x * x * x).sum(), (x,), (v,)).tolist()
    [6.0, 12.0]
    """
    argnums = 0 if len(primals) == 1 else tuple(range(len(primals)))
    return jvp(grad(f, argnums), primals, tangents)[1]
