"""The tape's tools under the names that PyTorch gives them."""

# ruff: noqa: F403, F405
from numus.functions.gradient_check import gradcheck
from numus.transforms.function import *
from numus.transforms.modes import *
from numus.transforms.reverse import gradients as grad

__all__ = [
    "Context", "Function", "enable_grad", "grad", "gradcheck", "inference_mode", "is_grad_enabled",
    "no_grad", "set_grad_enabled",
]  # fmt: skip
