"""Words of other libraries for the same parameters: PyTorch's `dim` and `keepdim` for NumPy's
`axis` and `keepdims`, and errors that name the right word where another library's is used."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_SAME = {"dim": "axis", "dims": "axis", "keepdim": "keepdims"}
# Words that mean the same, but count or begin elsewhere, or that a function has no use for.
_HINTS = {
    "ddof": "correction=",
    "unbiased": "correction=1 (or 0)",
    "input": "the tensor, first and without a name",
    "a": "the tensor, first and without a name",
    "other": "the second tensor, without a name",
    "kind": "stable=",
    "out": "x.assign(result)",
    "where": "nm.where(mask, x, …) first",
    "initial": "nm.maximum or nm.minimum of the result",
    "promote_integers": "dtype=",
}


def spelled(function: Function) -> Function:
    """Let a function that has `axis` and `keepdims` take `dim` and `keepdim` as well."""
    parameters = inspect.signature(function).parameters.values()
    names = frozenset(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= names:
            kwargs = _translated(function.__name__, kwargs, names)
        return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def _translated(op: str, kwargs: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    found = {}
    for name, value in kwargs.items():
        right = _SAME.get(name, name) if name not in names else name
        right = "axes" if right == "axis" and "axis" not in names and "axes" in names else right
        if right in found or (right != name and right in kwargs):
            raise TypeError(f"{op}: {name} and {right} are the same; give one of them")
        if right not in names:
            hint = _HINTS.get(name)
            say = f"say {hint}" if hint else f"it takes {', '.join(sorted(names))}"
            raise TypeError(f"{op}: there is no {name}=; {say}")
        found[right] = value
    return found
