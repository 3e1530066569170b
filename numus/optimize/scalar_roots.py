"""root_scalar, brentq, bisect and newton: zeros of functions of one variable, with SciPy's names.

Gradients are those of the implicit function theorem: by `args`, and by the tensors that the
function closes over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numus as nm
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.optimize import bracketing
from numus.optimize.casting import cast
from numus.optimize.implicit import implicit
from numus.optimize.result import Result
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert
from numus.transforms.trace import require_function

__all__ = ["RootResults", "bisect", "brentq", "newton", "root_scalar"]

Function = Callable[..., Any]


class RootResults(Result):
    """root, converged, iterations, function_calls, and flag, the message of SciPy's."""

    messages: ClassVar[dict[int, str]] = {
        0: "converged",
        -1: "sign error: the ends have the same sign",
        -2: "not converged",
    }

    @property
    def flag(self) -> Any:
        return self.message


def floats(op: str, *given: Any) -> list[Tensor]:
    """Operands in one float dtype and shape."""
    xs = [nm.asarray(x) for x in given]
    if any(x.dtype.is_complex for x in xs):
        raise TypeError(f"{op}: takes real numbers, not complex ones")
    dtype = nm.result_type(*xs, nm.float32)
    xs = [cast(x, dtype) for x in xs]
    for x in xs:
        if is_known(x._node) and not bool(nm.all(nm.isfinite(x.detach()))):
            raise ValueError(f"{op}: must start at finite numbers")
    return list(nm.broadcast_arrays(*xs)) if len(xs) > 1 else xs


def elementwise(op: str, f: Function, args: tuple[Any, ...]) -> Function:
    require_function(f, op)

    def call(x: Tensor) -> Tensor:
        value = nm.asarray(f(x, *args))
        if value.shape != x.shape:
            raise ShapeError(
                f"{op}: the function gives shape {value.shape} for x of shape {x.shape}; it must "
                "be elementwise"
            )
        return cast(value, x.dtype)

    return call


def _result(
    op: str, f: Any, held: list[Tensor], found: bracketing.Found, bracketed: Any, disp: bool
) -> RootResults:
    status = nm.where(found.converged, 0, nm.where(bracketed, -2, -1))
    result = RootResults(
        root=implicit(f, found.root, held, elementwise=True),
        converged=found.converged,
        iterations=found.iterations,
        function_calls=found.calls,
        status=cast(status, nm.int32),
    )
    known = is_known(found.converged._node)
    if known and disp and not bool(nm.all(found.converged)):
        least = int(nm.min(result.status).item())
        if not bool(nm.all(nm.asarray(bracketed))):
            raise ValueError(f"{op}: f(a) and f(b) must have different signs")
        raise RuntimeError(
            f"{op}: no convergence after {nm.max(found.iterations).item()} iterations "
            f"(status {least}); disp=False returns what was found"
        )
    return result


def _bracketed(
    op: str, f: Function, a: Any, b: Any, args: tuple[Any, ...], xtol: float, rtol: float,
    maxiter: int, disp: bool,
) -> RootResults:  # fmt: skip
    if xtol <= 0:
        raise ValueError(f"{op}: xtol must be positive, not {xtol}")
    maxiter = as_int(maxiter, "maxiter", op)
    low, high = floats(op, a, b)
    convert, held = closure_convert(op, elementwise(op, f, args), low)
    known = [x.detach() for x in held]
    search = bracketing.brent if op == "brentq" else bracketing.bisection
    with nm.no_grad():
        low, high = low.detach(), high.detach()
        f_known = lambda x: convert(known, x)  # noqa: E731
        found = search(f_known, low, high, xtol, rtol, maxiter)
        bracketed = bracketing.changes_sign(f_known(low), f_known(high))
    return _result(op, convert, held, found, bracketed, disp)


def _answer(result: RootResults, full_output: bool) -> Any:
    return (result.root, result) if full_output else result.root


def brentq(
    f: Function,
    a: Any,
    b: Any,
    args: tuple[Any, ...] = (),
    xtol: float = 2e-12,
    rtol: float = 8.881784197001252e-16,
    maxiter: int = 100,
    full_output: bool = False,
    disp: bool = True,
) -> Any:
    """A zero of f between a and b, where it changes its sign, by Brent's method.

    Args:
        f: an elementwise function.
        a: one end of the bracket; tensors are brackets of many zeros.
        b: the other end.
        xtol: how near to the zero; `rtol`, relative to it, is at least four roundings.
        full_output: add the `RootResults`.
        disp: raise where there is no sign change or no convergence; inside jit and vmap, where that
            is not known, the zero is NaN and `converged` False.

    >>> x = nm.optimize.brentq(lambda x: x * x - nm.asarray([2.0, 9.0]), nm.zeros(2), 9.0)
    >>> [round(v, 4) for v in x.tolist()]
    [1.4142, 3.0]
    """
    found = _bracketed("brentq", f, a, b, args, xtol, rtol, maxiter, disp)
    return _answer(found, full_output)


def bisect(
    f: Function,
    a: Any,
    b: Any,
    args: tuple[Any, ...] = (),
    xtol: float = 2e-12,
    rtol: float = 8.881784197001252e-16,
    maxiter: int = 100,
    full_output: bool = False,
    disp: bool = True,
) -> Any:
    """A zero of f between a and b, where it changes its sign, by bisection. See `brentq`.

    >>> round(nm.optimize.bisect(nm.cos, 1.0, 2.0).item(), 4)
    1.5708
    """
    found = _bracketed("bisect", f, a, b, args, xtol, rtol, maxiter, disp)
    return _answer(found, full_output)


def newton(
    func: Function,
    x0: Any,
    fprime: Function | None = None,
    args: tuple[Any, ...] = (),
    tol: float = 1.48e-8,
    maxiter: int = 50,
    fprime2: Function | None = None,
    x1: Any = None,
    rtol: float = 0.0,
    full_output: bool = False,
    disp: bool = True,
) -> Any:
    """A zero of a function near x0: by the secant method, with `fprime` by Newton's, with `fprime2`
    by Halley's.

    Args:
        func: an elementwise function.
        x0: where to start; a tensor has a zero for each element.
        fprime: the derivative; `nm.grad(func)` for functions of one number.
        disp: raise where there is no convergence, if that is known.

    >>> round(nm.optimize.newton(lambda x: x**3 - 8, 3.0).item(), 4)
    2.0
    """
    op = "newton"
    if tol <= 0:
        raise ValueError(f"{op}: tol must be positive, not {tol}")
    maxiter = as_int(maxiter, "maxiter", op)
    starts = floats(op, x0) if x1 is None else floats(op, x0, x1)
    convert, held = closure_convert(op, elementwise(op, func, args), starts[0])
    known = [x.detach() for x in held]
    slope, curvature = (None if d is None else elementwise(op, d, args) for d in (fprime, fprime2))
    with nm.no_grad():
        found = bracketing.newton(
            lambda x: convert(known, x), starts[0].detach(),
            None if x1 is None else starts[1].detach(), slope, curvature, tol, rtol,
            maxiter,
        )  # fmt: skip
    result = _result(op, convert, held, found, True, disp)
    return _answer(result, full_output)


def root_scalar(
    f: Function,
    args: tuple[Any, ...] = (),
    method: str | None = None,
    bracket: Any = None,
    fprime: Function | None = None,
    fprime2: Function | None = None,
    x0: Any = None,
    x1: Any = None,
    xtol: float | None = None,
    rtol: float | None = None,
    maxiter: int | None = None,
) -> RootResults:
    """A zero of an elementwise function of one variable.

    Args:
        method: "brentq" or "bisect", which take a `bracket`; "newton", "halley" or "secant", which
            take x0. None: the first of them that has what it takes.

    >>> found = nm.optimize.root_scalar(lambda x: x**3 - 1, bracket=(0.0, 3.0))
    >>> round(found.root.item(), 4), found.converged.item()
    (1.0, True)
    """
    op = "root_scalar"
    if method is None:
        if bracket is not None:
            method = "brentq"
        elif x0 is not None:
            method = "halley" if fprime2 else "newton" if fprime else "secant"
        else:
            raise ValueError(f"{op}: give a bracket, or x0")
    more: dict[str, Any] = {} if maxiter is None else {"maxiter": maxiter}
    more |= {} if rtol is None else {"rtol": rtol}
    if method in ("brentq", "bisect"):
        if bracket is None or len(bracket) != 2:
            raise ValueError(f"{op}: {method} needs a bracket, a pair of numbers")
        more |= {} if xtol is None else {"xtol": xtol}
        solver = brentq if method == "brentq" else bisect
        low, high = bracket
        return solver(f, low, high, args, full_output=True, disp=False, **more)[1]
    if method not in ("newton", "halley", "secant"):
        raise ValueError(
            f"{op}: there is no method {method!r}; it is one of brentq, bisect, newton, halley, "
            "secant"
        )
    if x0 is None or (method != "secant" and fprime is None):
        raise ValueError(f"{op}: {method} needs x0" + ("" if method == "secant" else " and fprime"))
    more |= {} if xtol is None else {"tol": xtol}
    slopes = {"newton": (fprime, None), "halley": (fprime, fprime2), "secant": (None, None)}[method]
    return newton(
        f, x0, slopes[0], args, fprime2=slopes[1], x1=x1, full_output=True, disp=False, **more
    )[1]
