"""`torch.autograd`: gradients of the tape, and functions with derivatives of their own."""

from __future__ import annotations

from typing import Any

from numus import autograd as _engine
from numus import debug_nans
from numus import vmap as _vmap
from numus.torch._owned import own
from numus.torch.autograd import functional

__all__ = [
    "Function", "Variable", "backward", "enable_grad", "functional", "grad", "gradcheck",
    "no_grad",
]  # fmt: skip

no_grad, enable_grad = _engine.no_grad, _engine.enable_grad
set_grad_enabled, inference_mode = _engine.set_grad_enabled, _engine.inference_mode
gradcheck = _engine.gradcheck


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """The gradients of tensors with respect to others; no `.grad` is touched."""

    def pull(seeds: Any) -> Any:
        options: Any = {"allow_unused": allow_unused, "materialize_grads": materialize_grads}
        return _engine.grad(outputs, inputs, seeds, retain_graph, create_graph, **options)

    return own(_vmap(pull)(grad_outputs) if is_grads_batched else pull(grad_outputs))


def detect_anomaly(check_nan: bool = True) -> Any:
    """Name the operation that makes the first NaN."""
    return debug_nans()


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add the gradients of tensors to those of the leaves."""
    given = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    grads = grad_tensors if isinstance(grad_tensors, (list, tuple)) else [grad_tensors] * len(given)
    for x, g in zip(given, grads, strict=True):
        x.backward(g, retain_graph=True, create_graph=create_graph)


def Variable(data: Any, requires_grad: bool = False) -> Any:
    """A tensor: variables and tensors are one."""
    return data.requires_grad_(requires_grad) if requires_grad else data


class Function(_engine.Function):
    """A function with static `forward` and `backward`, whose tensors are this face's."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("forward", "backward"):
            if name in vars(cls):
                setattr(cls, name, staticmethod(_with_context(vars(cls)[name].__func__)))

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Compute the value, to be differentiated by `backward`."""
        return own(super().apply(*args))


def _with_context(function: Any) -> Any:
    def run(ctx: Any, *args: Any) -> Any:
        ctx.saved_tensors = own(ctx.saved_tensors)
        return function(ctx, *own(args))

    return run
