"""minimize: minima of functions of many variables, with SciPy's names and results.

The minimum's derivatives by `args` and by what the function closes over are those of the implicit
function theorem: its gradient remains zero (in the free variables, where there are bounds).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.optimize.casting import cast
from numus.optimize.implicit import implicit
from numus.optimize.line_search import Limits, descend
from numus.optimize.newton_cg import NewtonCg, trust_region
from numus.optimize.projected import descend_in_box
from numus.optimize.quasi_newton import Bfgs, ConjugateGradients, Lbfgs
from numus.optimize.result import Result
from numus.optimize.simplex import nelder_mead
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert
from numus.transforms.trace import require_function

__all__ = ["OptimizeResult", "minimize"]

Function = Callable[..., Any]


class OptimizeResult(Result):
    """x, fun, jac, nit, nfev, njev, status, message and success."""

    messages: ClassVar[dict[int, str]] = {
        0: "Optimization terminated successfully.",
        1: "The maximum number of iterations or evaluations was reached.",
        2: "Desired error not necessarily achieved due to precision loss.",
        3: "The function or its gradient is not finite.",
    }

    @property
    def success(self) -> Any:
        return self.status == 0


def start_of(op: str, x0: Any) -> Tensor:
    """Where to start: a vector of floats."""
    x = nm.asarray(x0)
    if x.dtype.is_complex:
        raise TypeError(f"{op}: x0 must be real, not {x.dtype.name}")
    x = x if x.dtype.is_inexact else cast(x, nm.float32)
    if is_known(x._node) and not bool(nm.all(nm.isfinite(x.detach()))):
        raise ValueError(f"{op}: x0 must be finite")
    return nm.reshape(x, -1)


def bounds_of(op: str, bounds: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Lower and upper bounds as vectors; None for none."""
    if bounds is None:
        return None
    if hasattr(bounds, "lb"):  # SciPy's class
        low, high = bounds.lb, bounds.ub
    else:
        pairs = list(bounds)
        if len(pairs) != x.shape[0] or any(len(pair) != 2 for pair in pairs):
            raise ShapeError(f"{op}: {x.shape[0]} variables need as many (low, high) pairs")
        low = [-nm.inf if a is None else a for a, _ in pairs]
        high = [nm.inf if b is None else b for _, b in pairs]
    low, high = (
        nm.broadcast_to(nm.asarray(end, dtype=x.dtype, device=x.device), x.shape)
        for end in (low, high)
    )
    if is_known(low._node) and is_known(high._node) and bool(nm.any(low > high)):
        raise ValueError(f"{op}: a lower bound is above its upper one")
    return low, high


_OPTIONS = {
    "BFGS": "gtol maxiter maxfun",
    "CG": "gtol maxiter maxfun",
    "L-BFGS-B": "gtol ftol maxcor maxiter maxfun",
    "Nelder-Mead": "xatol fatol maxiter maxfev",
    "Newton-CG": "gtol maxiter maxfun",
    "trust-ncg": "gtol maxiter maxfun",
}


def _checked_options(method: str, options: Any, tol: float | None) -> dict[str, Any]:
    given = dict(options or {})
    known = _OPTIONS[method].split()
    for name in given:
        if name not in known and name != "disp":
            raise ValueError(
                f"minimize: {method} has no option {name!r}; it has {', '.join(known)}"
            )
    if tol is not None:
        for name in ("gtol", "ftol", "xatol", "fatol", "xtol"):
            if name in known:
                given.setdefault(name, tol)
    return given


def minimize(
    fun: Function,
    x0: Any,
    args: tuple[Any, ...] = (),
    method: str | None = None,
    jac: Any = None,
    hess: Function | None = None,
    hessp: Function | None = None,
    bounds: Any = None,
    tol: float | None = None,
    options: Any = None,
) -> OptimizeResult:
    """A minimum of a function of a vector, near x0.

    Args:
        fun: fun(x, *args), one number, made of numus's functions.
        method: "BFGS" (without bounds, the default), "L-BFGS-B" (with bounds, the default), "CG",
            "Newton-CG", "trust-ncg", or "Nelder-Mead", which needs no derivatives.
        jac: the gradient, a function of (x, *args), or True where fun returns (value, gradient);
            else it is taken by reverse mode.
        hess: the Hessian, a function of (x, *args), for Newton-CG and trust-ncg; else
        hessp: the Hessian times a vector, a function of (x, p, *args); else it is taken by forward
            mode of the gradient.
        bounds: a (low, high) pair for each variable, None for no bound; for L-BFGS-B.
        tol: the tolerance of the method, for all of its options that are tolerances.
        options: `gtol`, `ftol`, `xatol`, `fatol`, `maxiter`, `maxfun`, `maxcor`, as SciPy's.

    >>> def rosenbrock(x):
    ...     return nm.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    >>> found = nm.optimize.minimize(rosenbrock, nm.zeros(4, dtype=nm.float64))
    >>> found.success.item(), nm.round(found.x, decimals=4).tolist()
    (True, [1.0, 1.0, 1.0, 1.0])
    """
    op = "minimize"
    require_function(fun, op)
    x = start_of(op, x0)
    box = bounds_of(op, bounds, x)
    method = method or ("BFGS" if box is None else "L-BFGS-B")
    if method not in _OPTIONS:
        raise ValueError(f"{op}: there is no method {method!r}; it is one of {', '.join(_OPTIONS)}")
    if box is not None and method != "L-BFGS-B":
        raise ValueError(f"{op}: {method} takes no bounds; L-BFGS-B does")
    given = _checked_options(method, options, tol)
    evaluate, held = closure_convert(op, _value_and_gradient(op, fun, args, jac, x), x)
    known = [c.detach() for c in held]
    n = x.shape[0]
    limits = Limits(
        gtol=given.get("gtol", 1e-5),
        ftol=given.get("ftol", 2.220446049250313e-09) if method == "L-BFGS-B" else 0.0,
        maxiter=as_int(given.get("maxiter", 15000 if method == "L-BFGS-B" else 200 * n), op, op),
        maxfun=as_int(given.get("maxfun", 15000 if method == "L-BFGS-B" else 1 << 30), op, op),
    )
    memory = as_int(given.get("maxcor", 10), "maxcor", op)
    with nm.no_grad():
        at = x.detach()
        call = lambda x: evaluate(known, x)  # noqa: E731
        if box is not None:
            found: Any = descend_in_box(call, at, *box, memory, limits)
        elif method == "Nelder-Mead":
            tolerances = given.get("xatol", 1e-4), given.get("fatol", 1e-4)
            most = as_int(given.get("maxfev", 1 << 30), "maxfev", op)
            simplex = nelder_mead(lambda x: call(x)[0], at, *tolerances, limits.maxiter, most)
            found = Descent(simplex.points[0], simplex.nit, simplex.nfev, simplex.status)
        elif method == "trust-ncg":
            found = trust_region(call, _hessian_product(call, args, hess, hessp), at, limits)
        else:
            directions: Any = {"BFGS": Bfgs(), "CG": ConjugateGradients()}.get(method)
            if method == "Newton-CG":
                directions = NewtonCg(_hessian_product(call, args, hess, hessp))
            found = descend(call, at, directions or Lbfgs(memory), limits)
    result = attach(evaluate, held, found.x, box)
    more = {"hess_inv": found.memory[0]} if method == "BFGS" else {}
    return OptimizeResult(
        **result, nit=found.nit, nfev=found.nfev, njev=found.nfev, status=found.status, **more
    )


class Descent(NamedTuple):
    """What a method found."""

    x: Tensor
    nit: Tensor
    nfev: Tensor
    status: Tensor


def _hessian_product(call: Function, args: Any, hess: Any, hessp: Any) -> Function:
    if hess is not None:
        return lambda x, v: cast(nm.asarray(hess(x, *args)), x.dtype) @ v
    if hessp is not None:
        return lambda x, v: cast(nm.asarray(hessp(x, v, *args)), x.dtype)
    return lambda x, v: nm.jvp(lambda x: call(x)[1], (x,), (v,))[1]


def attach(
    evaluate: Function, held: list[Tensor], x: Tensor, box: tuple[Tensor, Tensor] | None
) -> dict[str, Any]:
    """The minimum with its derivatives, the value and the gradient there."""
    if box is None:
        x = implicit(lambda c, x: evaluate(c, x)[1], x, held)
    elif any(c._node.tracked for c in held):
        end, (low, high) = x.detach(), box
        fixed = (end <= low) | (end >= high)
        x = implicit(lambda c, x: nm.where(fixed, x - end, evaluate(c, x)[1]), end, held)
    value, gradient = evaluate(held, x)
    return {"x": x, "fun": value, "jac": gradient}


def _value_and_gradient(op: str, fun: Function, args: Any, jac: Any, x: Tensor) -> Function:
    def value_of(answer: Any, like: Tensor) -> Tensor:
        value = nm.asarray(answer)
        if value.size != 1:
            raise ShapeError(f"{op}: the function must give one number, not shape {value.shape}")
        return cast(nm.reshape(value, ()), like.dtype)

    def gradient_of(answer: Any, like: Tensor) -> Tensor:
        gradient = nm.asarray(answer)
        if gradient.size != like.size:
            raise ShapeError(
                f"{op}: the gradient has shape {gradient.shape}, but x has {like.shape}"
            )
        return cast(nm.reshape(gradient, like.shape), like.dtype)

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        if jac is True:
            value, gradient = fun(x, *args)
            return value_of(value, x), gradient_of(gradient, x)
        if callable(jac):
            return value_of(fun(x, *args), x), gradient_of(jac(x, *args), x)
        return nm.value_and_grad(lambda x: value_of(fun(x, *args), x))(x)

    return evaluate
