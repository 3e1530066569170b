"""Nonlinear least squares: Levenberg and Marquardt's method, in a box too; curve_fit.

Steps solve min |J p + r|² + λ |D p|² by QR of the stacked matrix, with Moré's scaling D (1978) and
Nielsen's rule for λ (1999). In a box, variables at a bound that the gradient pushes against are
fixed for a step, and the trial point is projected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.optimize.casting import cast
from numus.optimize.implicit import implicit
from numus.optimize.line_search import choose
from numus.optimize.minimize import start_of
from numus.optimize.result import Result
from numus.optimize.robust_loss import Scaled, linear, loss_of
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert
from numus.transforms.trace import require_function

__all__ = ["LeastSquaresResult", "curve_fit", "least_squares"]

Function = Callable[..., Any]


class LeastSquaresResult(Result):
    """x, cost, fun, jac, grad, optimality, active_mask, nfev, njev, status, message, success."""

    messages: ClassVar[dict[int, str]] = {
        -1: "The residuals are not finite.",
        0: "The maximum number of function evaluations is exceeded.",
        1: "`gtol` termination condition is satisfied.",
        2: "`ftol` termination condition is satisfied.",
        3: "`xtol` termination condition is satisfied.",
        4: "Both `ftol` and `xtol` termination conditions are satisfied.",
    }

    @property
    def success(self) -> Any:
        return self.status > 0


class Fit(NamedTuple):
    """Where Levenberg and Marquardt's method stands."""

    x: Tensor
    r: Tensor
    J: Tensor
    total: Tensor  # twice the cost
    scale: Tensor
    damping: Tensor
    growth: Tensor  # of the damping, if the next step fails
    nfev: Tensor
    njev: Tensor
    status: Tensor  # -2 while it goes on


def levenberg_marquardt(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    box: tuple[Tensor, Tensor],
    ftol: float,
    xtol: float,
    gtol: float,
    max_nfev: int,
    scaled: Callable[[Tensor, Tensor], Scaled] = linear,
) -> Fit:
    """Minimise |r(x)|², or a robust loss of r(x); `evaluate` gives r and its Jacobian."""
    low, high = box
    x = nm.clip(x, low, high)
    r, J, total = scaled(*evaluate(x))
    count = nm.zeros_like(total, dtype=nm.int32)
    s = Fit(
        x, r, J, total, _column_norms(J), nm.zeros_like(total) + 1e-3, nm.zeros_like(total) + 2,
        count + 1, count + 1, count - 2,
    )  # fmt: skip
    first = _optimality(s.x, _gradient(s.r, s.J), box) <= gtol
    bad = nm.logical_not(nm.isfinite(total) & nm.all(nm.isfinite(J)))
    s = s._replace(status=cast(nm.where(bad, -1, nm.where(first, 1, -2)), nm.int32))

    def attempt(s: Fit) -> Fit:
        g = _gradient(s.r, s.J)
        free = nm.logical_not(((s.x <= low) & (g > 0)) | ((s.x >= high) & (g < 0)))
        p = _damped_step(nm.where(free, s.J, 0.0), s.r, s.scale, s.damping)
        x = nm.clip(s.x + nm.where(free, p, 0.0), low, high)
        p = x - s.x
        r, J, after = scaled(*evaluate(x))
        before = s.total
        Jp = nm.sum(s.J * p, axis=1)
        predicted = -(2 * nm.sum(g * p) + nm.sum(Jp * Jp))
        actual = before - after
        better = nm.isfinite(after) & nm.all(nm.isfinite(J)) & (actual > 0) & (predicted > 0)
        gain = actual / nm.where(predicted > 0, predicted, 1.0)
        good = s._replace(
            x=x, r=r, J=J, total=after, scale=nm.maximum(s.scale, _column_norms(J)),
            damping=s.damping * nm.maximum(1 / 3, 1 - (2 * gain - 1) ** 3),
            growth=nm.full_like(s.growth, 2.0), njev=cast(s.njev + 1, nm.int32),
        )  # fmt: skip
        good = good._replace(damping=nm.clip(good.damping, 1e-14, 1e14))
        bad = s._replace(damping=nm.minimum(s.damping * s.growth, 1e20), growth=2 * s.growth)
        new = choose(better, good, bad)
        new = new._replace(nfev=cast(s.nfev + 1, nm.int32))
        small_f = (nm.abs(actual) <= ftol * before) & (predicted <= ftol * before) & (gain <= 2)
        length, size = nm.sqrt(nm.sum(p * p)), nm.sqrt(nm.sum(s.x * s.x))
        small_x = length <= xtol * (xtol + size)
        small_g = _optimality(new.x, _gradient(new.r, new.J), box) <= gtol
        status = nm.where(small_g, 1, nm.where(small_f & small_x, 4, nm.where(small_f, 2, 3)))
        ended = small_g | small_f | small_x
        status = nm.where(ended, status, nm.where(new.nfev >= max_nfev, 0, -2))
        return new._replace(status=cast(status, nm.int32))

    return nm.while_loop(lambda s: s.status == -2, attempt, s)


def _gradient(r: Tensor, J: Tensor) -> Tensor:
    return nm.sum(J * nm.expand_dims(r, 1), axis=0)


def _column_norms(J: Tensor) -> Tensor:
    size = nm.sqrt(nm.sum(J * J, axis=0))
    return nm.where(size > 0, size, 1.0)


def _optimality(x: Tensor, g: Tensor, box: tuple[Tensor, Tensor]) -> Tensor:
    """The largest component of the projected gradient."""
    return nm.max(nm.abs(nm.clip(x - g, *box) - x))


def _damped_step(J: Tensor, r: Tensor, scale: Tensor, damping: Tensor) -> Tensor:
    stacked = nm.concat([J, nm.diag(nm.sqrt(damping) * scale)])
    Q, R = nm.linalg.qr(stacked)[:2]
    right = nm.concat([-r, nm.zeros_like(scale)])
    by_q = nm.sum(Q * nm.expand_dims(right, 1), axis=0)
    return nm.linalg.solve_triangular(R, nm.expand_dims(by_q, 1))[:, 0]


def box_of(op: str, bounds: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds as (low, high), each a number or one for each variable."""
    if hasattr(bounds, "lb"):
        bounds = (bounds.lb, bounds.ub)
    if len(bounds) != 2:
        raise ShapeError(f"{op}: bounds must be (low, high), not {len(bounds)} entries")
    low, high = (
        nm.broadcast_to(nm.asarray(end, dtype=x.dtype, device=x.device), x.shape) for end in bounds
    )
    if bool(nm.any(low.detach() >= high.detach())):
        raise ValueError(f"{op}: each lower bound must be below its upper one")
    return low, high


def least_squares(
    fun: Function,
    x0: Any,
    jac: Any = None,
    bounds: Any = (-nm.inf, nm.inf),
    method: str = "trf",
    ftol: float | None = 1e-8,
    xtol: float | None = 1e-8,
    gtol: float | None = 1e-8,
    loss: Any = "linear",
    f_scale: float = 1.0,
    max_nfev: int | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Any = None,
) -> LeastSquaresResult:
    """A local minimum of the sum of squares of residuals, or of a robust loss of them.

    Args:
        fun: fun(x, *args, **kwargs), the vector of residuals.
        jac: their Jacobian, a function of the same arguments; else it is taken by forward mode.
        bounds: lower and upper bounds, each a number or one for each variable.
        method: "lm" (without bounds) or "trf"; both are Levenberg and Marquardt's here.
        ftol: relative change of the sum of squares; None: never mind.
        xtol: relative size of a step.
        gtol: the gradient's largest component.
        loss: "linear" (squares), "huber", "soft_l1", "cauchy", "arctan", or a function that gives
            rho and its two derivatives for z, the squares of residuals over f_scale.
        f_scale: the size of residuals from which on they count as outliers.

    >>> t = nm.linspace(0, 2, 9, dtype=nm.float64)
    >>> found = nm.optimize.least_squares(lambda p: p[0] * nm.exp(-p[1] * t) - 3 * nm.exp(-t), [1, 0.5])
    >>> nm.round(found.x, decimals=4).tolist()
    [3.0, 1.0]
    """  # noqa: E501
    op = "least_squares"
    require_function(fun, op)
    if method not in ("trf", "lm", "dogbox"):
        raise ValueError(f"{op}: there is no method {method!r}; it is trf or lm")
    x = start_of(op, x0)
    more = dict(kwargs or {})

    def residuals(x: Tensor) -> Tensor:
        found = nm.asarray(fun(x, *args, **more))
        return nm.reshape(found, -1)

    example = residuals(x)
    dtype = nm.result_type(example, x)
    x = cast(x, dtype)
    box = box_of(op, bounds, x)
    bounded = bool(nm.any(nm.isfinite(box[0].detach()) | nm.isfinite(box[1].detach())))
    if method == "lm" and bounded:
        raise ValueError(f"{op}: lm takes no bounds; trf does")
    if method == "lm" and example.shape[0] < x.shape[0]:
        raise ShapeError(f"{op}: lm needs as many residuals as variables; trf does not")
    scaled = loss_of(op, loss, f_scale)
    if method == "lm" and loss != "linear":
        raise ValueError(f"{op}: lm takes no loss but linear; trf does")
    convert, held = closure_convert(op, _with_jacobian(op, residuals, fun, jac, args, more), x)
    known = [c.detach() for c in held]
    limit = 100 * x.shape[0] if max_nfev is None else as_int(max_nfev, "max_nfev", op)
    with nm.no_grad():
        s = levenberg_marquardt(
            lambda x: convert(known, x), x.detach(), box, ftol or 0.0, xtol or 0.0, gtol or 0.0,
            limit, scaled,
        )  # fmt: skip
    end = s.x.detach()
    active = cast(cast(end >= box[1], nm.int32) - cast(end <= box[0], nm.int32), nm.int32)

    def stationary(c: Any, x: Tensor) -> Tensor:
        g = nm.grad(lambda x: scaled(*convert(c, x))[2] / 2)(x)
        return nm.where(active != 0, x - end, g)

    found = implicit(stationary, s.x, held)
    residual, J = convert(held, found)
    r, J, total = scaled(residual, J)
    g = _gradient(r, J)
    return LeastSquaresResult(
        x=found, cost=total / 2, fun=residual, jac=J, grad=g,
        optimality=_optimality(found, g, box), active_mask=active, nfev=s.nfev, njev=s.njev,
        status=s.status,
    )  # fmt: skip


def _with_jacobian(
    op: str, residuals: Function, fun: Function, jac: Any, args: Any, more: Any
) -> Function:
    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        r = cast(residuals(x), x.dtype)
        if callable(jac):
            J = cast(nm.asarray(jac(x, *args, **more)), x.dtype)
            if J.shape != (r.shape[0], x.shape[0]):
                raise ShapeError(
                    f"{op}: the Jacobian has shape {J.shape}, not {(r.shape[0], x.shape[0])}"
                )
            return r, J
        return r, nm.jacfwd(lambda x: cast(residuals(x), x.dtype))(x)

    return evaluate


def curve_fit(
    f: Function,
    xdata: Any,
    ydata: Any,
    p0: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    bounds: Any = (-nm.inf, nm.inf),
    method: str | None = None,
    jac: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The parameters of f(xdata, *parameters) that fit ydata best, and their covariance.

    Args:
        f: a function of the data and of parameters, each of them one number.
        p0: where to start; ones, as many as f has parameters.
        sigma: standard deviations of ydata, or their covariance matrix.
        absolute_sigma: take sigma as it is, not only its ratios.
        kwargs: more arguments of `least_squares`.

    >>> x = nm.linspace(0, 1, 11, dtype=nm.float64)
    >>> popt, pcov = nm.optimize.curve_fit(lambda x, a, b: a * x + b, x, 2 * x + 1)
    >>> nm.round(popt, decimals=4).tolist()
    [2.0, 1.0]
    """
    op = "curve_fit"
    require_function(f, op)
    y = nm.asarray(ydata)
    y = y if y.dtype.is_inexact else cast(y, nm.float32)
    data = nm.asarray(xdata) if not isinstance(xdata, (tuple, dict)) else xdata
    if p0 is None:
        p0 = nm.ones(_parameters(f), dtype=y.dtype, device=y.device)
    weigh = _weights(op, sigma, y)

    def residuals(p: Tensor) -> Tensor:
        return weigh(nm.reshape(f(data, *(p[i] for i in range(p.shape[0]))) - y, -1))

    jacobian = None
    if callable(jac):

        def jacobian(p: Tensor) -> Tensor:
            return weigh(nm.asarray(jac(data, *(p[i] for i in range(p.shape[0])))))

    start = nm.reshape(nm.asarray(p0), -1)
    start = cast(start, nm.result_type(start, y))
    found = least_squares(residuals, start, jacobian, bounds, method or "trf", **kwargs)
    n, m = found.x.shape[0], y.size
    covariance = nm.linalg.pinv(found.jac.mT @ found.jac)
    if not absolute_sigma:
        spare = 2 * found.cost / (m - n) if m > n else found.cost * 0 + nm.inf
        covariance = covariance * spare
    return found.x, covariance


def _parameters(f: Function) -> int:
    try:
        known = inspect.signature(f).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError("curve_fit: cannot count the parameters of f; give p0") from error
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in known) or len(known) < 2:
        raise ValueError("curve_fit: cannot count the parameters of f; give p0")
    return len(known) - 1


def _weights(op: str, sigma: Any, y: Tensor) -> Function:
    """Division by the standard deviations, of vectors or of the rows of a matrix."""
    if sigma is None:
        return lambda r: r
    given = nm.asarray(sigma, dtype=y.dtype, device=y.device)
    if given.ndim == 2 and given.shape == (y.size, y.size):
        root = nm.linalg.cholesky(given)

        def whiten(r: Tensor) -> Tensor:
            matrix = r if r.ndim == 2 else nm.expand_dims(r, 1)
            found = nm.linalg.solve_triangular(root, matrix, lower=True)
            return found if r.ndim == 2 else found[:, 0]

        return whiten
    if given.size not in (1, y.size):
        raise ShapeError(f"{op}: sigma has shape {given.shape}, but ydata has {y.shape}")
    flat = nm.reshape(given, -1)
    return lambda r: r / (flat if r.ndim == 1 else nm.expand_dims(flat, 1))
