"""`jax.debug`: looking at values."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from numus.jax._callback import callback as _callback


def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print a format with values, which under jit are there when the program has run."""
    _callback(lambda *xs, **named: builtins.print(fmt.format(*xs, **named)), *args, **kwargs)


def callback(
    function: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any
) -> None:
    """Call a function of Python with values."""
    _callback(function, *args, **kwargs)
