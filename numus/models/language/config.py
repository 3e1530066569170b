"""Configurations of language models: the fields of a `config.json`, under transformers' names.

A file has more fields than a model needs (how it was trained, which program wrote it). They are
kept, and written again by `save`; a field of the wrong kind is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

__all__ = ["Config", "RopeParameters"]


@dataclass(frozen=True)
class RopeParameters:
    """How positions become angles: `rope_type` is default, linear, dynamic, yarn or llama3."""

    rope_type: str = "default"
    rope_theta: float = 10000.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], theta: float, scaling: Mapping[str, Any] | None) -> Self:
        """From `rope_parameters`, or from the older `rope_theta` and `rope_scaling`."""
        found = {**(scaling or {}), **given}
        kind = found.pop("rope_type", None) or found.pop("type", None) or "default"
        found.pop("type", None)
        return cls(kind, float(found.pop("rope_theta", theta)), found)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all families share."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    vocab_size: int = 32000
    tie_word_embeddings: bool = False
    bos_token_id: Any = None
    eos_token_id: Any = None
    pad_token_id: Any = None
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The configuration of a `config.json`; fields it has no use for are kept in `more`."""
        values = known_fields(cls, {k: v for k, v in given.items() if k != "more"})
        return cls(**values, more={k: v for k, v in given.items() if k not in values})

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "more"}
        own = {k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}
        return {**own, **self.more}


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool, int),
    "str": (str,),
}


def known_fields(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields; an error names all that are not of their kind."""
    values, faults = {}, []
    for f in fields(cls):
        if f.name in given:
            try:
                values[f.name] = _checked(f, given[f.name])
            except ValueError as fault:
                faults.append(str(fault))
    if faults:
        raise ValueError(f"{cls.__name__}: {'; '.join(faults)}")
    return values


def _checked(known: Any, value: Any) -> Any:
    """A field's value if it is of the field's kind."""
    kind, _, optional = str(known.type).partition(" | ")
    if value is None and (optional or kind == "Any" or known.default is None):
        return None
    if value is None and known.default is not MISSING:
        return known.default
    if isinstance(value, list):
        value = tuple(value)
    wanted = _KINDS.get(kind)
    if wanted and (not isinstance(value, wanted) or (kind == "int" and isinstance(value, bool))):
        raise ValueError(f"{known.name} is {value!r}, which should be of {kind}")
    return value
