"""`torch.jit`: programs run as they are; `torch.compile` is what compiles them."""

from __future__ import annotations

from typing import Any

from numus.torch._tools import load, save

__all__ = ["export", "freeze", "ignore", "is_scripting", "load", "save", "script", "trace"]


def script(obj: Any, *_: Any, **options: Any) -> Any:
    """The function or module itself."""
    return obj


ignore = unused = export = freeze = optimize_for_inference = interface = script


def trace(func: Any, example_inputs: Any = None, *_: Any, **options: Any) -> Any:
    """The function or module itself."""
    return func


def is_scripting() -> bool:
    """False: Python runs it."""
    return False


is_tracing = is_scripting


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value."""
    return the_value
