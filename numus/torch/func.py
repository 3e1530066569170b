"""`torch.func`: transformations of functions."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.torch._owned import own, owning, seeing_own, transforming

grad = transforming(nm.grad)
stack_module_state = owning(nm.nn.stack_module_state)
jacrev, jacfwd, hessian = (transforming(f) for f in (nm.jacrev, nm.jacfwd, nm.hessian))
functional_call = owning(nm.nn.functional_call)


def grad_and_value(func: Any, argnums: Any = 0, has_aux: bool = False) -> Any:
    """The gradient of a function, and its value."""
    both = transforming(nm.value_and_grad)(func, argnums, has_aux=has_aux)
    return lambda *args, **kwargs: both(*args, **kwargs)[::-1]


def linearize(func: Any, *primals: Any) -> Any:
    """The value, and the derivative there as a function of tangents."""
    value, tangent = nm.linearize(seeing_own(func), *primals)
    return own(value), owning(tangent)


def vmap(func: Any, in_dims: Any = 0, out_dims: Any = 0, **options: Any) -> Any:
    """A function mapped over an axis of its arguments."""
    return owning(nm.vmap(seeing_own(func), in_dims, out_dims))


def vjp(func: Any, *primals: Any, has_aux: bool = False) -> Any:
    """The value, and the function from cotangents of it to those of the arguments."""
    found = nm.vjp(seeing_own(func), *primals, has_aux=has_aux)
    return own(tuple(owning(part) if callable(part) else part for part in found))


def jvp(func: Any, primals: Any, tangents: Any) -> Any:
    """The value and its derivative along tangents."""
    return own(nm.jvp(seeing_own(func), primals, tangents))
