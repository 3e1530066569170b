"""Grad mode: context managers and decorators that switch tracking off and on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numus.graph import mode

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]


class _GradMode:
    """A context in which tracking is on or off, for one thread; also decorates functions."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(mode.grad)
        mode.grad = self._enabled

    def __exit__(self, *_: object) -> None:
        mode.grad = self._before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _GradMode(self._enabled):
                return function(*args, **kwargs)

        return run


def no_grad(function: Callable[..., Any] | None = None) -> Any:
    """Results are not tracked: `with nm.no_grad():`, `@nm.no_grad()`, `@nm.no_grad`.

    It applies to every kind of derivative, forward mode included: results are constants for them.
    A transformation that is applied within it still differentiates.
    """
    return _GradMode(False) if function is None else _GradMode(False)(function)


def enable_grad(function: Callable[..., Any] | None = None) -> Any:
    """Track again within a `no_grad`."""
    return _GradMode(True) if function is None else _GradMode(True)(function)


def inference_mode(given: bool | Callable[..., Any] = True) -> Any:
    """`no_grad` under the name that serving code uses; `inference_mode(False)` changes nothing."""
    if callable(given):
        return _GradMode(False)(given)
    return _GradMode(mode.grad and not given)


class set_grad_enabled(_GradMode):  # noqa: N801
    """Switch tracking at once; as a context manager or decorator, only for its body."""

    def __init__(self, enabled: bool) -> None:
        super().__init__(bool(enabled))
        self._outer = mode.grad
        mode.grad = self._enabled

    def __enter__(self) -> None:
        self._before.append(self._outer)
        mode.grad = self._enabled

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        mode.grad = self._outer
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """True if results are tracked in this thread now."""
    return mode.grad
