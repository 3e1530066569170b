"""Transformations of graphs: derivatives, vmap, checkpoints, jit, control flow.

`reverse` and `forward` walk the `tape`; `functional` and `jacobian` are their public interface on
functions, `Tensor.backward` that on tensors. `vmap` rewrites the graph of one example into that of
a batch.
"""

# ruff: noqa: F403, F405
from numus.transforms import tree
from numus.transforms.checkpoint import checkpoint
from numus.transforms.control import associative_scan, cond, fori_loop, scan, while_loop
from numus.transforms.custom import custom_jvp, custom_vjp
from numus.transforms.debugging import debug_nans
from numus.transforms.functional import grad, hvp, jvp, linearize, value_and_grad, vjp
from numus.transforms.hooks import BackwardHook, RemovableHandle, register_backward_hook
from numus.transforms.jacobian import hessian, jacfwd, jacrev
from numus.transforms.jit import jit
from numus.transforms.modes import *
from numus.transforms.vmap import vmap

__all__ = [
    "BackwardHook", "RemovableHandle", "associative_scan", "checkpoint", "cond", "custom_jvp",
    "custom_vjp", "debug_nans", "enable_grad", "fori_loop", "grad", "hessian", "hvp",
    "inference_mode", "is_grad_enabled", "jacfwd", "jacrev", "jit", "jvp", "linearize", "no_grad",
    "register_backward_hook", "scan", "set_grad_enabled", "tree", "value_and_grad", "vjp", "vmap",
    "while_loop",
]  # fmt: skip
