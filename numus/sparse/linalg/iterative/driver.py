"""What all iterative solvers share: one loop for all right-hand sides, stopping, history, and the
derivative of a solution by one more solution (the adjoint state).

A method is a first state and a step; the loop keeps the columns that are done as they are, and ends
with the last of them. It is one program: nothing returns to Python in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numus as nm
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.graph import Node, Nodes, Tangents, grad_mode, mode
from numus.primitives.custom import implicit
from numus.shapes import as_int
from numus.sparse.linalg.operators import System, as_operator, common_dtype, preconditioner
from numus.tensor import Tensor
from numus.transforms import tree

State = dict[str, Tensor]
# A state of columns, and what changes with it: the norms of residuals and whether all went well.
Step = Callable[[State], tuple[State, Tensor, Tensor]]
Callback = Callable[[int, Any], Any] | None  # of iterations done and the norms of residuals


@dataclass(frozen=True)
class SolveResult:
    """A solution, and how it was found. For several right-hand sides, entries have a last axis.

    Attributes:
        x: the solution.
        info: 0 where it converged, the number of iterations where they did not suffice, -1 where
            the method broke down, also where its residual had long departed from the true one.
        iterations: how many it took.
        residual: the norm of b - A x, computed anew.
        history: the norm of the residual as the method knew it, from the start on; the entries
            after the last iteration repeat it.
    """

    x: Tensor
    info: Tensor
    iterations: Tensor
    residual: Tensor
    history: Tensor

    @property
    def converged(self) -> bool:
        """All right-hand sides."""
        return bool(nm.all(self.info == 0))

    def plot(self, width: int = 60, height: int = 12) -> str:
        """The history of the first right-hand side as text, in logarithms."""
        import numpy as np  # of a history that is known

        line = self.history.numpy()
        line = line.reshape(line.shape[0], -1)[:, 0][: int(self.iterations.reshape(-1)[0]) + 1]
        logs = np.log10(np.maximum(line.astype(float), 1e-300))
        at = np.linspace(0, len(logs) - 1, min(width, len(logs))).astype(int)
        logs = logs[at]
        top, low = logs.max(), logs.min()
        level = np.round((logs - low) / max(top - low, 1e-9) * (height - 1)).astype(int)
        rows = ["".join("*" if v == h else " " for v in level) for h in range(height)[::-1]]
        label = [f"1e{top:+06.1f} |", *["         |"] * (height - 2), f"1e{low:+06.1f} |"]
        return "\n".join(a + b for a, b in zip(label, rows, strict=True))


def norm(x: Tensor) -> Tensor:
    """The 2-norm of each column."""
    return nm.sqrt(nm.sum(nm.square(nm.abs(x)) if x.dtype.is_complex else x * x, axis=0))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """xᴴ y of each column."""
    return nm.sum(nm.conj(x) * y if x.dtype.is_complex else x * y, axis=0)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is zero: the caller says that it broke down."""
    zero = b == 0
    return nm.where(zero, nm.zeros_like(a), a / nm.where(zero, nm.ones_like(b), b))


@dataclass(frozen=True)
class Problem:
    """A x = b with its tolerances, on columns, and a preconditioner."""

    system: System
    b: Tensor
    x0: Tensor
    rtol: float
    atol: float
    maxiter: int
    op: str
    m: System | None = None
    vector: bool = False
    callback: Callback = None

    @property
    def n(self) -> int:
        return self.system.shape[1]

    @functools.cached_property
    def tolerance(self) -> Tensor:
        """Of each column. It follows from b alone, so that it is traced with it."""
        size = norm(nm.detach(self.b))
        return nm.maximum(self.rtol * size, nm.full_like(size, self.atol))

    def precondition(self, x: Tensor) -> Tensor:
        return x if self.m is None else self.m.apply(x)


def posed(
    op: str, a: Any, b: Any, x0: Any, rtol: float, atol: float, maxiter: int | None,
    M: Any = None, square: bool = True, callback: Callback = None,
) -> Problem:  # fmt: skip
    """Arguments of a solver, checked."""
    system = as_operator(a)
    m, n = system.shape
    right = nm.asarray(b, device=getattr(a, "device", None))
    vector = right.ndim == 1
    if right.ndim not in (1, 2) or right.shape[0] != m or (square and m != n):
        raise ShapeError(
            f"{op}: a matrix of shape {(m, n)}{', which is not square,' if m != n else ''} with a "
            f"right-hand side of shape {tuple(right.shape)}"
        )
    dtype = common_dtype(system, right)
    right = right.astype(dtype, copy=False)
    right = right[:, None] if vector else right
    start = nm.zeros((n, right.shape[1]), dtype=dtype, device=right.device)
    if x0 is not None:
        start = nm.asarray(x0, device=right.device).astype(dtype).reshape(n, right.shape[1])
    if not (rtol >= 0 and atol >= 0):
        raise ValueError(f"{op}: tolerances are not negative, but rtol={rtol} and atol={atol}")
    most = 10 * n if maxiter is None else as_int(maxiter, "maxiter", op)
    if most < 0:
        raise ValueError(f"{op}: maxiter must not be negative, but is {most}")
    near = preconditioner(M, n, op)
    return Problem(system, right, nm.detach(start), rtol, atol, most, op, near, vector, callback)


@dataclass(frozen=True)
class Progress:
    """What a loop knows of its columns besides the state: norms, counts and the history."""

    tolerance: Tensor
    maxiter: int

    def start(self, first: Tensor) -> State:
        zeros = nm.zeros(first.shape, dtype=nm.int32, device=first.device)
        return {
            "residual": first,
            "iterations": zeros,
            "broken": ~(nm.isfinite(first) & nm.isfinite(self.tolerance)),
            "step": nm.zeros((), dtype=nm.int32, device=first.device),
            "history": nm.broadcast_to(first, (self.maxiter + 1, *first.shape)) + 0,
        }

    def active(self, c: State) -> Tensor:
        return (c["residual"] > self.tolerance) & ~c["broken"]

    def goes_on(self, c: State) -> Tensor:
        return nm.any(self.active(c)) & (c["step"] < self.maxiter)

    def advanced(self, c: State, residual: Tensor, well: Tensor) -> State:
        """After a step that has these norms, and went well or broke down."""
        live = self.active(c)
        well = well & nm.isfinite(residual)
        residual = nm.where(live & well, residual, c["residual"])
        now = c["step"] + 1
        at = c["step"].reshape(1).astype(nm.int64) + 1  # needs nothing that is computed here
        return {
            "residual": residual,
            "iterations": c["iterations"] + live.astype(nm.int32),
            "broken": c["broken"] | (live & ~well),
            "step": now,
            "history": nm.index_copy(c["history"], 0, at, residual[None]),  # in its memory
        }


def looped(
    p: Problem, progress: Callable[[Any], State], goes_on: Callable[[Any], Tensor],
    body: Callable[[Any], Any], start: Any,
) -> dict[str, Any]:  # fmt: skip
    """A loop as one program, or, with a callback, driven by the host; `progress` of its state."""
    if p.callback is None:
        found: dict[str, Any] = nm.while_loop(goes_on, body, start)
        return found
    leaves = [x for x in tree.leaves((start, p.system.parameters)) if isinstance(x, Tensor)]
    if not all(is_known(x._node) for x in leaves):
        raise LinAlgError(f"{p.op}: a callback is called by the host, and not inside of a trace")
    state = start
    while bool(goes_on(state)):
        state = body(state)
        now = progress(state)
        nm.eval(*(x for x in tree.leaves(state) if isinstance(x, Tensor)))
        residual = now["residual"]
        p.callback(int(now["step"]), residual[0].item() if p.vector else residual.numpy())
    return dict(state)


def iterate(p: Problem, state: State, step: Step, first: Tensor) -> dict[str, Any]:
    """Steps until all columns are done; the state of those that are stays as it is."""
    progress = Progress(p.tolerance, p.maxiter)
    names = tuple(state)

    def body(c: State) -> State:
        live = progress.active(c)
        new, residual, well = step({name: c[name] for name in names})
        if residual.shape[0] > 1:
            new = {name: nm.where(live, new[name], c[name]) for name in names}
        return {**new, **progress.advanced(c, residual, well)}

    with grad_mode(False):
        start = {**state, **progress.start(first)}
        return looped(p, lambda c: c, progress.goes_on, body, start)


_MAX_DEPARTURE = 10  # of true residuals from those that a method knows, which rounding sets apart


def finished(p: Problem, x: Tensor, found: dict[str, Any], checks: bool = False) -> SolveResult:
    """The result, with the true residual; `checks`: it is what the method follows."""
    with grad_mode(False):
        true = norm(p.b - p.system.apply(x))
        good, broken = found["residual"] <= p.tolerance, found["broken"]
        if checks:
            rounding = nm.finfo(true.dtype).eps ** 0.5 * norm(p.b)
            is_near = true <= _MAX_DEPARTURE * p.tolerance + rounding
            good, broken = good & is_near, broken | (good & ~is_near)
        failed = nm.where(broken, nm.full_like(found["iterations"], -1), nm.maximum(
            found["iterations"], nm.ones_like(found["iterations"])))  # fmt: skip
        info = nm.where(good, nm.zeros_like(found["iterations"]), failed)
        rows = nm.arange(p.maxiter + 1, dtype=nm.int32, device=x.device)[:, None]
        history = nm.where(rows > found["step"], found["residual"], found["history"])
    entries = (x, info, found["iterations"], true, history)
    if p.vector:
        return SolveResult(*(e[..., 0] for e in entries))
    return SolveResult(*entries)


# -- derivatives ----------------------------------------------------------------------------------


class _Implicit:
    """The derivative of x where F(parameters, b, x) = 0 is linear in x.

    With N = -∂F/∂x, the tangent of x is N⁻¹ Ḟ, and cotangents are those of F for N⁻ᴴ x̄.
    """

    def __init__(
        self,
        structure: tree.Structure,
        equation: Callable[[Any, Tensor, Tensor], Tensor],
        solve: Callable[[Any, Tensor, bool], Tensor],
    ) -> None:
        self.structure, self.equation, self.solve = structure, equation, solve

    def _split(self, operands: Nodes) -> tuple[Any, Tensor]:
        *leaves, b = (Tensor(x) for x in operands)
        return tree.unflatten(self.structure, leaves), b

    def vjp(self, result: Node, operands: Nodes, cotangent: Node) -> Tangents:
        if result.ndim > 2:
            return self._batched(self.vjp, result, operands, [cotangent])
        parameters, b = self._split(operands)
        dual = self.solve(parameters, Tensor(cotangent), True)
        x = Tensor(result)
        _, pull = nm.vjp(lambda p, b: self.equation(p, b, x), parameters, b)
        by_parameters, by_b = pull(dual)
        return [*(g._node for g in tree.leaves(by_parameters)), by_b._node]

    def jvp(self, result: Node, operands: Nodes, tangents: Tangents) -> Node | None:
        if result.ndim > 2:
            found = self._batched(
                lambda r, o, t: [self.jvp(r, o, t)], result, operands, list(tangents)
            )
            return found[0]
        x = Tensor(result)
        full = [
            nm.zeros_like(Tensor(o)) if t is None else Tensor(t)
            for o, t in zip(operands, tangents, strict=True)
        ]
        parameters, b = self._split(operands)
        moved = tree.unflatten(self.structure, full[:-1])
        _, change = nm.jvp(lambda p, b: self.equation(p, b, x), (parameters, b), (moved, full[-1]))
        return self.solve(parameters, change, False)._node

    def _batched(
        self, rule: Callable[..., Any], result: Node, operands: Nodes, others: list[Node | None]
    ) -> list[Node]:
        """The rule for one entry of the leading axis, batched."""
        given = [
            Tensor(o) if o is not None else nm.zeros_like(Tensor(like))
            for o, like in zip(others, [*operands] if len(others) > 1 else [result], strict=True)
        ]

        def one(r: Tensor, o: list[Tensor], t: list[Tensor]) -> list[Tensor]:
            last = [x._node for x in t]
            answer = rule(r._node, [x._node for x in o], last if len(t) > 1 else last[0])
            return [Tensor(x) for x in answer]

        found = nm.vmap(one)(Tensor(result), [Tensor(o) for o in operands], given)
        return [x._node for x in found]


def implicitly(
    value: Tensor,
    parameters: Any,
    b: Tensor,
    equation: Callable[[Any, Tensor, Tensor], Tensor],
    solve: Callable[[Any, Tensor, bool], Tensor],
) -> Tensor:
    """A solution, differentiated by the equation that it solves; solve(parameters, right-hand side,
    adjoint) is N⁻¹ or its adjoint."""
    leaves, structure = tree.flatten(parameters)
    operands = [x._node for x in (*leaves, b)]
    if not (mode.grad and any(x.tracked for x in operands)):
        return value
    rule = _Implicit(structure, equation, solve)
    return Tensor(implicit(rule, value._node, *operands))


Method = Callable[[Problem], tuple[Tensor, dict[str, Any]]]


def solved(p: Problem, method: Method) -> SolveResult:
    """Run a method for square systems, and connect the solution to A and b."""
    with grad_mode(False):
        x, found = method(p)

    def equation(parameters: Any, b: Tensor, x: Tensor) -> Tensor:
        return b - p.system.forward(parameters[0], x)

    def solve(parameters: Any, b: Tensor, adjoint: bool) -> Tensor:
        # as precise as the solution itself, relative to its own right-hand side
        own, near = parameters
        system, m = p.system.with_parameters(own), p.m
        m = None if m is None else m.with_parameters(near)
        if adjoint:
            system, m = system.adjoint_system(), None if m is None else m.adjoint_system()
        zero = nm.zeros_like(b)
        return solved(
            replace(p, system=system, b=b, x0=zero, m=m, vector=False, callback=None), method
        ).x

    given = (p.system.parameters, None if p.m is None else p.m.parameters)
    x = implicitly(x, given, p.b, equation, solve)
    return finished(p, x, found, checks=p.m is None)  # which some measure the residual by
