"""Functions that bring their own derivative: custom_vjp and custom_jvp."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from numus.errors import GradientError
from numus.graph import Node, grad_mode, mode
from numus.primitives.broadcast import full_like
from numus.tensor import Tensor
from numus.transforms.rules import CallRule, TreeSpec, connected, flatten, positional
from numus.transforms.trace import Trace, require_function

__all__ = ["custom_jvp", "custom_vjp"]

Function = Callable[..., Any]


class _Custom:
    """A function, and which of its arguments are not to be differentiated."""

    def __init__(self, f: Function, nondiff_argnums: Sequence[int] = ()) -> None:
        require_function(f, type(self).__name__)
        functools.update_wrapper(self, f)  # type: ignore[arg-type]
        self._f = f
        self._fixed = tuple(nondiff_argnums)
        self._name = getattr(f, "__name__", type(f).__name__)

    def _parted(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Arguments that are held fixed, and the others."""
        return (
            [args[i] for i in self._fixed],
            [x for i, x in enumerate(args) if i not in self._fixed],
        )

    def _joined(self, fixed: Sequence[Any], moving: Sequence[Any]) -> list[Any]:
        """The inverse of `_parted`."""
        held = dict(zip(self._fixed, fixed, strict=True))
        rest = iter(moving)
        count = len(fixed) + len(moving)
        return [held[i] if i in held else next(rest) for i in range(count)]


def _recorded(nodes: Sequence[Node]) -> bool:
    return mode.grad and any(x.tracked for x in nodes)


# -- reverse --------------------------------------------------------------------------------------


class custom_vjp(_Custom):  # noqa: N801
    """A function whose reverse derivative is given by `defvjp(forward, backward)`.

    `forward` takes the function's arguments and returns (result, residuals); `backward` takes the
    residuals and the result's cotangent and returns a tuple of cotangents, one per argument (None
    for zero). Arguments in `nondiff_argnums` come first in `backward`, which gives none for them.
    Tensors that the function closes over get no gradients. Forward mode is an error: use
    `custom_jvp`, which gives both.

    >>> import numus as nm
    >>> @nm.custom_vjp
    ... def halved_gradient(x):
    ...     return x
    >>> halved_gradient.defvjp(lambda x: (x, None), lambda _, g: (0.5 * g,))
    >>> nm.grad(lambda x: halved_gradient(6.0 * x))(1.0).item()
    3.0
    """

    def defvjp(self, forward: Function, backward: Function) -> None:
        """Set the two halves of the derivative."""
        self._forward = forward
        self._backward = backward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "_forward"):
            raise GradientError(f"custom_vjp: {self._name} has no rule yet; call its defvjp")
        given = positional(self._f, args, kwargs)
        fixed, moving = self._parted(given)
        form, nodes = flatten(tuple(moving))
        if not _recorded(nodes):
            return self._f(*given)
        if self in _inside.forward:
            return self._lazily(given, fixed, form, nodes)
        answer = self._kept(*given)
        result, values = flatten(answer[0])
        residual, kept = flatten(answer[1])
        backward = functools.partial(self._backward, *fixed)
        rule = VjpRule(self._name, backward, form, residual, result)
        return connected(rule, result, values, (*nodes, *kept))

    def _kept(self, *args: Any) -> tuple[Any, Any]:
        """The result and the residuals."""
        _inside.forward.append(self)
        try:
            answer = self._forward(*args)
        finally:
            _inside.forward.pop()
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"custom_vjp: the forward rule of {self._name} must return (result, residuals)"
            )
        return answer

    def _lazily(
        self, given: list[Any], fixed: list[Any], spec: TreeSpec, nodes: Sequence[Node]
    ) -> Any:
        """A call by the forward rule itself: its residuals are found when they are asked for."""
        with grad_mode(False):
            result, values = flatten(self._f(*given))

        def backward(moving: tuple[Any, ...], cotangent: Any) -> Any:
            _, residual = self._kept(*self._joined(fixed, moving))
            return self._backward(*fixed, residual, cotangent)

        rule = VjpRule(self._name, backward, spec, spec, result)
        return connected(rule, result, values, (*nodes, *nodes))


class _RuleScope(threading.local):
    def __init__(self) -> None:
        self.forward: list[custom_vjp] = []  # functions whose forward rules are running


_inside = _RuleScope()


class VjpRule(CallRule):
    """Operands are the tensors among the arguments, then those among the residuals."""

    def __init__(
        self,
        name: str,
        backward: Function,
        arguments: TreeSpec,
        residual: TreeSpec,
        result: TreeSpec,
    ) -> None:
        super().__init__()
        self._name = name
        self._backward = backward
        self._arguments = arguments
        self._residual = residual
        self._result = result
        self.count = len(result)

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        count = len(self._arguments)
        residual = self._residual.filled(operands[count:])
        answer = self._backward(residual, self._result.derivative(cotangents))
        expected = len(self._arguments.structure.children)
        if not isinstance(answer, tuple) or len(answer) != expected:
            raise GradientError(
                f"custom_vjp: the backward rule of {self._name} must return a tuple of {expected} "
                f"cotangents, one per argument; it returned {answer!r}"
            )
        what = f"the cotangent by the backward rule of {self._name}, entry "
        found = self._arguments.matching(answer, operands[:count], "custom_vjp", what)
        return [*found, *(None for _ in operands[count:])]

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        raise GradientError(
            f"custom_vjp: {self._name} has a reverse rule only, so forward mode (jvp, jacfwd, "
            "linearize) cannot pass through it; use custom_jvp, which gives both"
        )


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

    def defjvp(self, rule: Function) -> Function:
        """Set the derivative. Returns the rule, so that it can be used as a decorator."""
        self._rule = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "_rule"):
            raise GradientError(f"custom_jvp: {self._name} has no rule yet; call its defjvp")
        given = positional(self._f, args, kwargs)
        fixed, moving = self._parted(given)
        form, nodes = flatten(tuple(moving))
        if not _recorded(nodes):
            return self._f(*given)
        with grad_mode(False):
            result, values = flatten(self._f(*given))
        rule = JvpRule(self._name, functools.partial(self._rule, *fixed), form, result)
        return connected(rule, result, values, tuple(nodes))


class JvpRule(CallRule):
    """Operands are the tensors among the arguments."""

    def __init__(self, name: str, rule: Function, arguments: TreeSpec, result: TreeSpec) -> None:
        super().__init__()
        self._name = name
        self._rule = rule
        self._arguments = arguments
        self._result = result
        self.count = len(result)

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        answer = self._rule(self._arguments.filled(operands), self._arguments.derivative(tangents))
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise GradientError(
                f"custom_jvp: the rule of {self._name} must return (result, tangent of the result)"
            )
        _, values = flatten(answer[0])
        what = f"the tangent by the rule of {self._name}"
        return self._result.matching(answer[1], values, "custom_jvp", what)

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        # the tangent is linear in the tangents of the operands, so its derivative by them is the
        # same everywhere: take it at zero
        def tangent(*given: Tensor) -> list[Tensor]:
            found = self._result.zeroed(self.jvp(operands, [t._node for t in given]))
            return [Tensor(t) for t in found if t is not None]

        zeros = [Tensor(full_like(x, 0)) for x in operands]
        trace = Trace("custom_jvp", tangent, zeros)
        found = trace.reverse([g for g in self._result.zeroed(cotangents) if g is not None])
        trace.close(found)
        return found
