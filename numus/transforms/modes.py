"""Switching off (and on) what gradients need: context managers and decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numus.graph import mode

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]


class _GradMode:
    """A context in which recording is on or off, for one thread; also decorates functions."""

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
    """Results made inside are not tracked: `with nm.no_grad():`, `@nm.no_grad()`, `@nm.no_grad`.

    It holds for every kind of derivative, forward mode included: what is computed inside is a
    constant for them. A transformation that is applied inside still differentiates.
    """
    context = _GradMode(False)
    return context if function is None else context(function)


def enable_grad(function: Callable[..., Any] | None = None) -> Any:
    """Track again inside a `no_grad`."""
    context = _GradMode(True)
    return context if function is None else context(function)


def inference_mode(given: bool | Callable[..., Any] = True) -> Any:
    """`no_grad` under the name that serving code uses; `inference_mode(False)` changes nothing."""
    if callable(given):
        return _GradMode(False)(given)
    return _GradMode(mode.grad and not given)


class set_grad_enabled(_GradMode):  # noqa: N801
    """Switch recording at once; as a context manager or decorator, only for what is inside."""

    def __init__(self, enabled: bool) -> None:
        super().__init__(bool(enabled))
        self._at_first = mode.grad
        mode.grad = self._enabled

    def __enter__(self) -> None:
        self._before.append(self._at_first)
        mode.grad = self._enabled

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        mode.grad = self._at_first
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Whether results are tracked here and now."""
    return mode.grad
