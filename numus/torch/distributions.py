"""`torch.distributions`: the engine's distributions, whose tensors are this face's."""

from __future__ import annotations

from typing import Any

from numus import distributions as _engine
from numus.torch._modules import reflected
from numus.torch._owned import own, owning

_METHODS = "sample rsample log_prob entropy cdf icdf enumerate_support perplexity".split()
_MADE: dict[str, Any] = {}


class _Owned:
    """Attributes of a distribution (`mean`, `probs`, ...) as this face's tensors."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return found if name[0] == "_" else own(found)


def _owned(kind: type) -> type:
    """The class of this face for a distribution of the engine."""
    body: dict[str, Any] = {name: owning(getattr(kind, name)) for name in _METHODS}
    body |= {"__doc__": kind.__doc__, "__module__": __name__}
    return type(kind)(kind.__name__, (_Owned, kind), body)


_find = reflected(__name__, _engine, _MADE)


def __getattr__(name: str) -> Any:
    found = getattr(_engine, name, None)
    if name not in _MADE and isinstance(found, type) and found is not _engine.Distribution:
        _MADE[name] = _owned(found) if issubclass(found, _engine.Distribution) else found
    return _find(name)


def __dir__() -> list[str]:
    return [n for n in dir(_engine) if n[0] != "_"]
