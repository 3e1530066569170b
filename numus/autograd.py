"""The tape's tools under the names that PyTorch gives them."""

from numus.transforms.function import Context, Function
from numus.transforms.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from numus.transforms.reverse import gradients as grad

__all__ = [
    "Context", "Function", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad",
    "set_grad_enabled",
]  # fmt: skip
