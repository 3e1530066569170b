"""Results of solvers: containers of tensors with SciPy's field names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from numus.evaluation.evaluate import is_known
from numus.tensor import Tensor
from numus.transforms import tree


class Result:
    """Named values, as attributes and as entries. It is a pytree: `nm.jit` and `nm.vmap` may return
    it. The message belongs to the status; where that is a batch, there is one for each member.
    """

    messages: ClassVar[dict[int, str]] = {}

    status: Any

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    @property
    def success(self) -> Any:
        """Whether the solver reached its goal."""
        return self.status >= 0

    @property
    def message(self) -> Any:
        """What the status means."""
        status = self.status
        if isinstance(status, Tensor):
            if not is_known(status._node) and status._node.abstract:
                return "the status is not known before the program runs"
            status = status.tolist()
        return _described(status, self.messages)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no {name}; it has {', '.join(self)}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__ or name in ("success", "message")

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        return [*self.__dict__, "success", "message"]

    def __repr__(self) -> str:
        width = max(len(name) for name in self.keys())
        return "\n".join(f"{name:>{width}}: {self[name]!r}" for name in sorted(self.keys()))

    def __init_subclass__(cls) -> None:
        tree.register(cls, _take, lambda rest, entries: _make(cls, rest, entries))


def _described(status: Any, messages: dict[int, str]) -> Any:
    if isinstance(status, list):
        return [_described(entry, messages) for entry in status]
    return messages.get(int(status), f"status {int(status)}")


def _take(x: Result) -> tuple[list[Any], Any]:
    return list(x.__dict__.values()), tuple(x.__dict__)


def _make(cls: type[Result], names: Any, entries: Any) -> Result:
    return cls(**dict(zip(names, entries, strict=True)))
