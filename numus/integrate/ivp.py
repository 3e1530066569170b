"""Initial value problems: solve_ivp and odeint.

The solver is one program: a loop over output times, and in it a loop over attempts at steps. Where
the outputs are the solver's own steps, whose number nobody knows, or events are to be found, chunks
of attempts are such programs, and Python looks at the steps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

import numus as nm
from numus.errors import ShapeError, TracingError
from numus.evaluation.evaluate import is_known
from numus.integrate.adjoint import Counts, closed, solution
from numus.integrate.collected import Collected, OdeSolution, collect
from numus.integrate.methods import METHODS
from numus.integrate.stepping import Method, Problem
from numus.optimize.casting import cast
from numus.optimize.result import Result
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert
from numus.transforms.trace import require_function

__all__ = ["OdeResult", "OdeSolution", "odeint", "solve_ivp"]

Function = Callable[..., Any]


class OdeResult(Result):
    """The result of `solve_ivp`: t, y (a column per time), sol, t_events, y_events, nfev, njev,
    nlu, status, message and success."""

    messages: ClassVar[dict[int, str]] = {
        0: "The solver successfully reached the end of the integration interval.",
        1: "A termination event occurred.",
        -1: "The end was not reached: a step would be smaller than the spacing between numbers, or "
        "there were max_steps of them.",
    }


def _method(op: str, method: Any) -> Method:
    if method not in METHODS:
        raise ValueError(f"{op}: there is no method {method!r}; it is one of {', '.join(METHODS)}")
    return METHODS[method]


def _state(op: str, y0: Any) -> Tensor:
    y = nm.asarray(y0)
    y = y if y.dtype.is_inexact else cast(y, nm.float32)
    if is_known(y._node) and not bool(nm.all(nm.isfinite(y.detach()))):
        raise ValueError(f"{op}: y0 must be finite")
    return y


def _times(op: str, t: Any, y: Tensor) -> Tensor:
    """Times in the real dtype of the state."""
    times = nm.asarray(t)
    dtype = nm.real(y).dtype if y.dtype.is_complex else y.dtype
    if times.dtype.is_complex:
        raise TypeError(f"{op}: times must be real, not {times.dtype.name}")
    return times.to(y.device).astype(dtype) if times.dtype is not dtype else times


def _tolerances(op: str, y: Tensor, rtol: Any, atol: Any) -> tuple[Any, Any]:
    """The tolerances; the relative one is never below a hundred roundings."""
    least = 100 * float(nm.finfo(y.dtype).eps)
    if isinstance(atol, (Sequence, np.ndarray, Tensor)):
        atol = nm.asarray(atol, dtype=nm.real(y).dtype, device=y.device)
        if atol.ndim and atol.shape != y.shape:
            raise ShapeError(f"{op}: atol has shape {atol.shape}, but y0 has {y.shape}")
    elif atol < 0:
        raise ValueError(f"{op}: atol must not be negative, not {atol}")
    return nm.maximum(rtol, least) if isinstance(rtol, Tensor) else max(rtol, least), atol


def _problem(
    op: str,
    f: Function,
    t: Tensor,
    y: Tensor,
    method: Any,
    rtol: Any,
    atol: Any,
    max_step: float,
    first_step: float | None,
    max_steps: int,
    jac: Any = None,
) -> tuple[Problem, list[Tensor]]:
    """The problem, with its right-hand side as a function of its constants, and those."""
    rtol, atol = _tolerances(op, y, rtol, atol)
    if max_step <= 0:
        raise ValueError(f"{op}: max_step must be positive, not {max_step}")
    if first_step is not None and first_step <= 0:
        raise ValueError(f"{op}: first_step must be positive, not {first_step}")

    def checked(t: Tensor, y: Tensor) -> Tensor:
        slope = f(t, y)
        if isinstance(slope, (list, tuple)):
            slope = nm.stack([nm.asarray(x) for x in slope])
        slope = nm.asarray(slope)
        if slope.shape != y.shape:
            raise ShapeError(
                f"{op}: the function gives shape {slope.shape}, but y0 has shape {y.shape}"
            )
        return cast(slope, y.dtype)

    rhs, constants = closure_convert(op, checked, t, y)
    jacobian: Any = None
    if callable(jac):
        made, held = closure_convert(op, jac, t, y)
        fixed = [x.detach() for x in held]
        jacobian = lambda _, t, y: made(fixed, t, y)  # noqa: E731
    elif jac is not None:
        matrix = cast(nm.asarray(jac), y.dtype)
        jacobian = lambda _, t, y: matrix  # noqa: E731
    chosen = _method(op, method)
    limit = as_int(max_steps, "max_steps", op)
    problem = Problem(rhs, chosen, rtol, atol, float(max_step), first_step, limit, jacobian)
    return problem, constants


def odeint(
    func: Function,
    y0: Any,
    t: Any,
    args: tuple[Any, ...] = (),
    *,
    rtol: Any = 1.49e-8,
    atol: Any = 1.49e-8,
    tfirst: bool = False,
    method: str = "RK45",
    hmax: float = math.inf,
    mxstep: int = 1 << 20,
) -> Tensor:
    """The solution of dy/dt = func(y, t, *args) at the times t, the first of which is y0's.

    Differentiable by y0, t, `args` and the tensors that `func` closes over, by the adjoint
    equation. `nm.vmap` solves many systems side by side, each with its own steps.

    Args:
        y0: the state at t[0], of any shape.
        t: times, ascending or descending.
        rtol: relative tolerance; at least a hundred roundings of y0's dtype.
        atol: absolute tolerance, a number or one for each component.
        tfirst: func takes (t, y) rather than (y, t).
        method: as in `solve_ivp`.
        hmax: the largest step.
        mxstep: the largest number of steps; values at times beyond are NaN.

    >>> t = nm.linspace(0, 1, 3)
    >>> y = nm.integrate.odeint(lambda y, t: -y, nm.asarray([1.0]), t)
    >>> [round(v, 4) for v in y[:, 0].tolist()]
    [1.0, 0.6065, 0.3679]
    """
    op = "odeint"
    require_function(func, op)
    start = _state(op, y0)
    times = _times(op, t, start)
    if times.ndim != 1 or times.shape[0] == 0:
        raise ShapeError(f"{op}: t must be a vector of times, not of shape {times.shape}")
    _require_order(op, times, "t")
    flat = nm.reshape(start, -1)

    def f(t: Tensor, y: Tensor) -> Tensor:
        y = y if start.ndim == 1 else nm.reshape(y, start.shape)
        slope = nm.asarray(func(t, y, *args) if tfirst else func(y, t, *args))
        if slope.shape != start.shape:
            raise ShapeError(
                f"{op}: func gives shape {slope.shape}, but y0 has shape {start.shape}"
            )
        return slope if start.ndim == 1 else nm.reshape(slope, -1)

    if isinstance(atol, Tensor) and atol.ndim:
        atol = nm.reshape(atol, -1)
    p, held = _problem(op, f, times[0], flat, method, rtol, atol, hmax, None, mxstep)
    if times.shape[0] == 1:
        return nm.expand_dims(start, 0)
    ys, _ = solution(p, held, flat, times)
    return nm.reshape(ys, (times.shape[0], *start.shape))


def _require_order(op: str, times: Tensor, name: str) -> None:
    """Refuse times that go back and forth, where they are known."""
    if is_known(times._node):
        steps = np.diff(times.detach().numpy())
        if not (np.all(steps >= 0) or np.all(steps <= 0)):
            raise ValueError(f"{op}: {name} must ascend or descend")


def solve_ivp(
    fun: Function,
    t_span: Sequence[Any],
    y0: Any,
    method: str = "RK45",
    t_eval: Any = None,
    dense_output: bool = False,
    events: Any = None,
    vectorized: bool = False,
    args: tuple[Any, ...] | None = None,
    *,
    rtol: Any = 1e-3,
    atol: Any = 1e-6,
    max_step: float = math.inf,
    first_step: float | None = None,
    jac: Any = None,
    max_steps: int = 1 << 20,
) -> OdeResult:
    """The solution of dy/dt = fun(t, y, *args) from t_span[0] to t_span[1].

    With `t_eval`, and without events and dense output, it is one program: `nm.jit` and `nm.vmap`
    take it whole. Gradients are those of `odeint`; times of events and of the solver's own steps
    are constants to them.

    Args:
        t_span: the first and the last time; the last may be the earlier one.
        y0: the state at the first, a vector, real or complex.
        method: "RK23", "RK45" or "DOP853", explicit Runge-Kutta pairs of order 3, 5 and 8, or, for
            stiff equations, "Radau" (order 5) or "BDF" (orders 1 to 5).
        t_eval: times of the outputs; None: the solver's own steps.
        dense_output: `sol` is the solution as a function of time.
        events: a function of (t, y, *args), or several, whose zeros are found; an attribute
            `terminal` ends the integration at the first (or n-th), `direction` restricts them to
            rising or falling ones.
        vectorized: accepted for SciPy's sake; derivatives need no such functions here.
        rtol: relative tolerance; at least a hundred roundings of y0's dtype.
        jac: the Jacobian for implicit methods, a function of (t, y) or a matrix; else it is taken
            by forward mode.
        max_steps: the largest number of attempts at a step.

    >>> found = nm.integrate.solve_ivp(lambda t, y: -0.5 * y, (0, 10), [2.0], t_eval=[0, 10])
    >>> found.success.item(), round(found.y[0, 1].item(), 3)
    (True, 0.014)
    """
    op = "solve_ivp"
    require_function(fun, op)
    y = _state(op, y0)
    if y.ndim != 1:
        raise ShapeError(f"{op}: y0 must be a vector, not of shape {y.shape}")
    if len(t_span) != 2:
        raise ShapeError(f"{op}: t_span must be two times, not {len(t_span)}")
    more = () if args is None else tuple(args)
    first, last = (_times(op, t, y) for t in t_span)
    jacobian = (lambda t, y: jac(t, y, *more)) if callable(jac) else jac
    p, held = _problem(
        op, lambda t, y: fun(t, y, *more), first, y, method, rtol, atol, max_step, first_step,
        max_steps, jacobian,
    )  # fmt: skip
    wanted = None if t_eval is None else _output_times(op, t_eval, first, last, y)
    if wanted is not None and not dense_output and events is None:
        times = nm.concat([nm.stack([first]), wanted, nm.stack([last])])
        ys, counts = solution(p, held, y, times)
        return _cut(wanted, ys[1:-1], counts)
    if not all(is_known(x._node) for x in (y, first, last, *held)):
        raise TracingError(
            f"{op}: how many steps there are is not known while it is traced by jit or vmap; give "
            "t_eval, and neither events nor dense_output"
        )
    tests = [events] if callable(events) else list(events or ())
    tests = [_with_args(event, more) for event in tests]
    with nm.no_grad():
        inside = closed(p, [x.detach() for x in held])
        found = collect(inside, first.detach(), last.detach(), y.detach(), tests)
    return _collected_result(p, held, found, wanted, y, dense_output, events is not None)


def _with_args(event: Function, args: tuple[Any, ...]) -> Function:
    require_function(event, "solve_ivp")

    def call(t: Tensor, y: Tensor) -> Tensor:
        return nm.asarray(event(t, y, *args))

    call.terminal = getattr(event, "terminal", False)  # type: ignore[attr-defined]
    call.direction = getattr(event, "direction", 0)  # type: ignore[attr-defined]
    return call


def _output_times(op: str, t_eval: Any, first: Tensor, last: Tensor, y: Tensor) -> Tensor:
    times = _times(op, t_eval, y)
    if times.ndim != 1:
        raise ShapeError(f"{op}: t_eval must be a vector, not of shape {times.shape}")
    if all(is_known(x._node) for x in (times, first, last)):
        a, b, ts = (x.detach().numpy() for x in (first, last, times))
        if np.any((ts < min(a, b)) | (ts > max(a, b))):
            raise ValueError(f"{op}: t_eval must be within t_span")
        steps = np.diff(ts)
        if np.any(steps <= 0) if b >= a else np.any(steps >= 0):
            raise ValueError(f"{op}: t_eval must run from t_span[0] to t_span[1], without repeats")
    return times


def _cut(times: Tensor, ys: Tensor, counts: Counts) -> OdeResult:
    """The result of a fixed number of outputs; those that were not reached are left out, or, in a
    traced program, NaN."""
    if is_known(counts.status._node) and counts.status.item() < 0:
        last = nm.isnan(nm.real(ys.detach())).any(axis=1).numpy()
        reached = int(np.argmax(last)) if last.any() else len(last)
        times, ys = times[:reached], ys[:reached]
    return OdeResult(
        t=times, y=nm.swapaxes(ys, 0, 1), sol=None, t_events=None, y_events=None,
        nfev=counts.nfev, njev=counts.njev, nlu=counts.nlu, status=counts.status,
    )  # fmt: skip


def _collected_result(
    p: Problem,
    held: list[Tensor],
    found: Collected,
    wanted: Tensor | None,
    y: Tensor,
    dense_output: bool,
    with_events: bool,
) -> OdeResult:
    if wanted is None:
        times, ys = found.ts, found.ys
    else:
        sign = 1.0 if found.ts[-1].item() >= found.ts[0].item() else -1.0
        reached = (wanted.numpy() - found.ts[-1].item()) * sign <= 0
        times = wanted[: int(reached.sum())]
        ys = nm.swapaxes(found.sol(times), 0, 1)
    if times.shape[0] > 1 and nm.is_grad_enabled() and any(x._node.tracked for x in (y, *held)):
        every = times if wanted is None else nm.concat([found.ts[:1], times])
        ys = solution(p, held, y, every)[0][every.shape[0] - times.shape[0] :]
    return OdeResult(
        t=times, y=nm.swapaxes(ys, 0, 1), sol=found.sol if dense_output else None,
        t_events=found.t_events if with_events else None,
        y_events=found.y_events if with_events else None,
        nfev=found.nfev, njev=found.njev, nlu=found.nlu, status=found.status,
    )  # fmt: skip
