"""Functions that bring their own derivative: custom_vjp and custom_jvp."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus.errors import GradientError
from numus.evaluation.host_reads import reading_primals
from numus.graph import Node, Nodes, Tangents, grad_mode, mode
from numus.primitives.broadcast import full_like
from numus.tensor import Tensor
from numus.transforms.rules import CallRule, TreeSpec, connected, flatten, positional
from numus.transforms.trace import Trace, require_function

__all__ = ["custom_jvp", "custom_vjp"]

Function = Callable[..., Any]
Args = list[Any]


class _Custom:
    """A function, and which of its arguments are not to be differentiated."""

    _op: str
    _has_rule = False

    def __init__(self, f: Function, nondiff_argnums: Sequence[int] = ()) -> None:
        require_function(f, type(self).__name__)
        functools.update_wrapper(self, f)
        self._f = f
        self._nondiff = tuple(nondiff_argnums)
        self._name = getattr(f, "__name__", type(f).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._has_rule:
            define = self._op.replace("custom_", "def")
            raise GradientError(f"{self._op}: {self._name} has no rule yet; call its {define}")
        given = positional(self._f, args, kwargs)
        nondiff = [given[i] for i in self._nondiff]
        spec, nodes = flatten(tuple(x for i, x in enumerate(given) if i not in self._nondiff))
        if not (mode.grad and any(x.tracked for x in nodes)):
            return self._f(*given)
        return self._recorded(given, nondiff, spec, nodes)

    def _recorded(self, given: Args, nondiff: Args, spec: TreeSpec, nodes: list[Node]) -> Any:
        """A call whose differentiable arguments have this spec and nodes, some of them tracked."""
        raise NotImplementedError


# -- reverse --------------------------------------------------------------------------------------


class custom_vjp(_Custom):  # noqa: N801
    """A function whose reverse derivative is given by `defvjp(forward, backward)`.

    `forward` takes the function's arguments and returns (result, residuals); `backward` takes the
    residuals and the result's cotangent and returns a tuple of cotangents, one per argument (None
    for zero). Arguments in `nondiff_argnums` come first in `backward`, which gives none for them.
    Tensors that the function closes over get no gradients. Forward mode, as in `nm.hessian`, takes
    the transpose of the backward rule, which must be linear in the cotangent.

    >>> import numus as nm
    >>> @nm.custom_vjp
    ... def halved_gradient(x):
    ...     return x
    >>> halved_gradient.defvjp(lambda x: (x, None), lambda _, g: (0.5 * g,))
    >>> nm.grad(lambda x: halved_gradient(6.0 * x))(1.0).item()
    3.0
    """

    _op = "custom_vjp"

    def defvjp(self, forward: Function, backward: Function) -> None:
        """Set the two halves of the derivative."""
        self._forward, self._backward, self._has_rule = forward, backward, True

    def _recorded(self, given: Args, nondiff: Args, spec: TreeSpec, nodes: list[Node]) -> Any:
        if self in _running.forward:
            return self._lazily(given, nondiff, spec, nodes)
        answer = self._run_forward(*given)
        result, values = flatten(answer[0])
        residual, saved = flatten(answer[1])
        backward = functools.partial(self._backward, *nondiff)
        rule = VjpRule(len(result), self._name, backward, spec, residual, result)
        return connected(rule, result, values, (*nodes, *saved))

    def _run_forward(self, *args: Any) -> tuple[Any, Any]:
        """The result and the residuals."""
        _running.forward.append(self)
        try:
            with reading_primals():
                answer = self._forward(*args)
        finally:
            _running.forward.pop()
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"custom_vjp: the forward rule of {self._name} must return (result, residuals)"
            )
        return answer

    def _lazily(self, given: Args, nondiff: Args, spec: TreeSpec, nodes: list[Node]) -> Any:
        """A call by the forward rule itself: its residuals are computed by backward."""
        with grad_mode(False):
            result, values = flatten(self._f(*given))

        def backward(diff: tuple[Any, ...], cotangent: Any) -> Any:
            fixed, rest = dict(zip(self._nondiff, nondiff, strict=True)), iter(diff)
            args = [fixed[i] if i in fixed else next(rest) for i in range(len(given))]
            return self._backward(*nondiff, self._run_forward(*args)[1], cotangent)

        rule = VjpRule(len(result), self._name, backward, spec, spec, result)
        return connected(rule, result, values, (*nodes, *nodes))


class _RuleScope(threading.local):
    def __init__(self) -> None:
        self.forward: list[custom_vjp] = []  # functions whose forward rules are running


_running = _RuleScope()


@dataclass(eq=False)
class VjpRule(CallRule):
    """Operands are the tensors among the arguments, then those among the residuals."""

    name: str
    backward: Function
    arguments: TreeSpec
    residual: TreeSpec
    result: TreeSpec

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        count = len(self.arguments)
        residual = self.residual.filled(operands[count:])
        answer = self.backward(residual, self.result.derivative(cotangents))
        expected = len(self.arguments.structure.children)
        if not isinstance(answer, tuple) or len(answer) != expected:
            raise GradientError(
                f"custom_vjp: the backward rule of {self.name} must return a tuple of {expected} "
                f"cotangents, one per argument; it returned {answer!r}"
            )
        what = f"the cotangent by the backward rule of {self.name}, entry "
        found = self.arguments.matching(answer, operands[:count], "custom_vjp", what)
        return [*found, *(None for _ in operands[count:])]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        # J t is the transpose of the map from cotangents g to J^T g, which is linear: take it at 0
        count = len(self.arguments)

        def pull(*given: Tensor) -> list[Tensor]:
            cotangents = iter(given)
            filled = [None if z is None else next(cotangents)._node for z in zeros]
            found = self.arguments.zeroed(self.vjp(operands, filled)[:count])
            return [Tensor(g) for g in found if g is not None]

        zeros = self.result.zeroed([None] * len(self.result))
        trace = Trace("custom_vjp", pull, [Tensor(z) for z in zeros if z is not None])
        seeds = [t for t in self.arguments.zeroed(tangents[:count]) if t is not None]
        pushed = iter(trace.vjp(seeds))
        return [None if z is None else next(pushed) for z in zeros]


# -- forward --------------------------------------------------------------------------------------


class custom_jvp(_Custom):  # noqa: N801
    """A function whose derivative, forward and reverse, follows from `defjvp(rule)`.

    The rule takes (primals, tangents), two tuples over the arguments, and returns
    (result, its tangent), which must be linear in the tangents. Arguments in `nondiff_argnums` come
    first and are in neither tuple.

    >>> import numus as nm
    >>> @nm.custom_jvp
    ... def cube(x):
    ...     return x * x * x
    >>> @cube.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return cube(x), 3.0 * x * x * t
    >>> nm.grad(cube)(2.0).item()
    12.0
    """

    _op = "custom_jvp"

    def defjvp(self, rule: Function) -> Function:
        """Set the derivative. Returns the rule, so that it can be used as a decorator."""
        self._rule, self._has_rule = rule, True
        return rule

    def _recorded(self, given: Args, nondiff: Args, spec: TreeSpec, nodes: list[Node]) -> Any:
        with grad_mode(False):
            result, values = flatten(self._f(*given))
        function = functools.partial(self._rule, *nondiff)
        rule = JvpRule(len(result), self._name, function, spec, result)
        return connected(rule, result, values, tuple(nodes))


@dataclass(eq=False)
class JvpRule(CallRule):
    """Operands are the tensors among the arguments."""

    name: str
    rule: Function
    arguments: TreeSpec
    result: TreeSpec

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        answer = self.rule(self.arguments.filled(operands), self.arguments.derivative(tangents))
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise GradientError(
                f"custom_jvp: the rule of {self.name} must return (result, tangent of the result)"
            )
        _, values = flatten(answer[0])
        what = f"the tangent by the rule of {self.name}"
        return self.result.matching(answer[1], values, "custom_jvp", what)

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        # the tangent is linear in the tangents of the operands, so its derivative by them is the
        # same everywhere: take it at zero
        def tangent(*given: Tensor) -> list[Tensor]:
            found = self.result.zeroed(self.jvp(operands, [t._node for t in given]))
            return [Tensor(t) for t in found if t is not None]

        zeros = [Tensor(full_like(x, 0)) for x in operands]
        trace = Trace("custom_jvp", tangent, zeros)
        return trace.vjp([g for g in self.result.zeroed(cotangents) if g is not None])
