"""State dicts, loaded all or nothing: every part checks its state before any part changes.

A part with `_prepare_state(state)` checks a state and returns the function that takes it, which
cannot fail. Other parts have `load_state_dict` alone; they are loaded first, and restored from
their `state_dict` where one of them fails.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

Commit = Callable[[], Any]


def require(part: Any, state: Any, *names: str) -> None:
    """Refuse a state that lacks an entry."""
    what = f"{type(part).__name__}.load_state_dict:"
    if not isinstance(state, Mapping):
        raise TypeError(f"{what} takes what state_dict() gives, not {type(state).__name__}")
    lacking = [name for name in names if name not in state]
    if lacking:
        raise ValueError(
            f"{what} what is given has no {', '.join(map(repr, lacking))}: it is not what "
            "state_dict() gives"
        )


def load_all(parts: Mapping[str, Any], states: Mapping[str, Any], source: Any) -> None:
    """Give every part its state, or change none and raise what is wrong with the first."""
    commits: list[Commit] = []
    others: list[str] = []
    name = ""
    restore: list[Commit] = []
    try:
        for name, part in parts.items():
            if _prepares(part):
                commits.append(part._prepare_state(states[name]))
            else:
                others.append(name)
        for name in others:
            part = parts[name]
            if hasattr(part, "state_dict"):
                before = copy.deepcopy(part.state_dict())
                restore.append(lambda part=part, before=before: part.load_state_dict(before))  # type: ignore[misc]
            part.load_state_dict(states[name])
    except BaseException as error:
        for undo in reversed(restore):
            undo()
        error.add_note(f"{name!r} of {source} cannot be loaded; nothing was changed")
        raise
    for commit in commits:
        commit()


def prepare(part: Any, state: Any) -> Commit:
    """Check the state of a part of a part; one that cannot say beforehand is tried on a copy."""
    if _prepares(part):
        commit: Commit = part._prepare_state(state)
        return commit
    copy.copy(part).load_state_dict(copy.deepcopy(state))
    return lambda: part.load_state_dict(state)


def _prepares(part: Any) -> bool:
    """True if a part has `_prepare_state`, and no subclass has another `load_state_dict`."""
    for cls in type(part).__mro__:
        if "_prepare_state" in vars(cls):
            return True
        if "load_state_dict" in vars(cls):
            return False
    return False
