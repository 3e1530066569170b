"""The compile log of all backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One kernel, compiled or loaded from the disk cache."""

    name: str
    key: str
    notes: tuple[str, ...]  # the operations it fuses
    cause: str  # "compiled" or "disk"
    seconds: float
    program: Any

    @property
    def source(self) -> str:
        return str(self.program.source)
