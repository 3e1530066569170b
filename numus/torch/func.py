"""`torch.func`: transformations of functions."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.torch._owned import own, owning, seeing_own, transforming

grad, grad_and_value = transforming(nm.grad), None
jacrev, jacfwd, hessian = (transforming(f) for f in (nm.jacrev, nm.jacfwd, nm.hessian))
functional_call = owning(nm.nn.functional_call)


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
