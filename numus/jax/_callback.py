"""Calls of Python from programs (`jax.debug.print`), with values that are known when they have run.

While a function is traced there are no values yet: what is to be called is collected, the values
become further results of the program, and `run` calls it after the program has run.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from numus.tensor import Tensor
from numus.transforms import tree

Function = Callable[..., Any]


class _Collectors(threading.local):
    """The functions that are being traced, innermost last; None where values cannot leave."""

    def __init__(self) -> None:
        self.stack: list[list[tuple[Function, Any]] | None] = []


_collectors = _Collectors()


class Calls:
    """Functions, which are part of a trace, and the values that they are to be called with."""

    def __init__(self, functions: tuple[Function, ...], values: list[Any]) -> None:
        self.functions, self.values = functions, values


tree.register(
    Calls, lambda calls: (calls.values, calls.functions), lambda fs, xs: Calls(fs, list(xs))
)


def callback(function: Function, *args: Any, **kwargs: Any) -> None:
    """Call a function, now or when the program that is being traced has run."""
    if not _collectors.stack:
        function(*args, **kwargs)
        return
    collector = _collectors.stack[-1]
    if collector is None:
        raise ValueError(
            "jax.debug: values inside of while_loop, fori_loop, cond and switch cannot leave them; "
            "return them from the loop, use scan, or try jax.disable_jit()"
        )
    collector.append((function, (args, kwargs)))


def collecting(function: Function) -> Function:
    """A function that gives its result and the `Calls` that it would make."""

    def collected(*args: Any, **kwargs: Any) -> Any:
        found: list[tuple[Function, Any]] = []
        _collectors.stack.append(found)
        try:
            result = function(*args, **kwargs)
        finally:
            _collectors.stack.pop()
        return result, Calls(tuple(f for f, _ in found), [values for _, values in found])

    return collected


def sealed(function: Function) -> Function:
    """A function whose values cannot leave it: the body of a loop or a branch."""

    def closed(*args: Any, **kwargs: Any) -> Any:
        _collectors.stack.append(None)
        try:
            return function(*args, **kwargs)
        finally:
            _collectors.stack.pop()

    return closed if _collectors.stack else function


def run(calls: Calls) -> None:
    """Make the calls, or leave them to the function that is being traced around this one."""
    for function, (args, kwargs) in zip(calls.functions, calls.values, strict=True):
        callback(function, *args, **kwargs)


def run_each(calls: Calls, length: int) -> None:
    """Make the calls of every turn of a scan, whose values are stacked."""
    for turn in range(length):
        run(Calls(calls.functions, tree.map(functools.partial(_entry, turn), calls.values)))


def _entry(turn: int, x: Any) -> Any:
    return x[turn] if isinstance(x, Tensor) else x
