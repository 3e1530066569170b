"""Function: a custom derivative as a class with static `forward` and `backward`, as in PyTorch."""

from __future__ import annotations

from typing import Any

from numus.errors import GradientError
from numus.graph import mode
from numus.tensor import Tensor
from numus.transforms.custom import VjpRule
from numus.transforms.rules import connected, flatten

__all__ = ["Context", "Function"]


class Context:
    """State from `forward` for `backward`: saved tensors, and anything else as attributes."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `backward`, which finds them as `ctx.saved_tensors`."""
        self.saved_tensors = tensors


class Function:
    """Subclass it, define `forward(ctx, *args)` and `backward(ctx, *grads)`, call `apply(*args)`.

    `backward` gets one gradient per result and returns one per argument of `forward` (None for
    those that have none).

    >>> import numus as nm
    >>> class Double(nm.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x + x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return 2.0 * g
    >>> nm.grad(Double.apply)(1.0).item()
    2.0
    """

    @staticmethod
    def forward(ctx: Context, *args: Any) -> Any:
        """The value."""
        raise NotImplementedError("a Function defines forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """The gradients of the arguments, from those of the results."""
        raise GradientError("a Function that is differentiated defines backward(ctx, *grads)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Compute the value, to be differentiated by `backward`."""
        ctx = Context()
        arguments, nodes = flatten(args)
        ctx.needs_input_grad = tuple(isinstance(x, Tensor) and x.requires_grad for x in args)
        value = cls.forward(ctx, *args)
        if not (mode.grad and any(x.tracked for x in nodes)):
            return value
        result, values = flatten(value)
        residual, saved = flatten(ctx.saved_tensors)
        ctx.saved_tensors = ()
        several = isinstance(value, tuple)

        def backward(tensors: tuple[Any, ...], grads: Any) -> tuple[Any, ...]:
            own = Context()
            own.__dict__.update(ctx.__dict__)
            own.saved_tensors = tensors
            answer = cls.backward(own, *(grads if several else (grads,)))
            return answer if isinstance(answer, tuple) else (answer,)

        rule = VjpRule(len(result), cls.__name__, backward, arguments, residual, result)
        return connected(rule, result, values, (*nodes, *saved))
