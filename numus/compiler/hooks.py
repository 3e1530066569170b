"""Hooks of the compiler, in a module of their own: registering needs no compiler."""

from __future__ import annotations

from collections.abc import Callable

# Called with (device, plan, leaves, constants) before a plan runs.
before_run: list[Callable[..., None]] = []

# Called after a plan that those hooks have seen has run, or has been launched.
after_run: list[Callable[[], None]] = []

# Calls that others take part in (collectives) and that are under way: what runs now, they overlap.
under_way: list[object] = []

# Called when the plan cache is cleared: caches that hold plans drop them.
on_clear_plans: list[Callable[[], None]] = []
