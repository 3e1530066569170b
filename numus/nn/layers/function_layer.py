"""Layers without parameters: a function of `nn.functional` and the arguments it is called with.

Such a layer is a dataclass, as modules of Flax are: its fields are the arguments of its
constructor, are passed to the function by name, and are shown by `repr`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

from numus.nn.module import Module
from numus.tensor import Tensor


class FunctionLayer(Module):
    """A module that calls `function`, an argument of its class, with its fields."""

    _function: ClassVar[Callable[..., Tensor]]
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, function: Callable[..., Any] | None = None) -> None:
        super().__init_subclass__()
        if function is not None:
            cls._function = staticmethod(function)

    def _options(self) -> dict[str, Any]:
        values = self.__dict__
        return {name: values[name] for name in self._fields}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **self._options(), **kwargs)

    def extra_repr(self) -> str:
        shown = {n: v for n, v in self._options().items() if n not in self._buffers}
        if not shown.get("inplace", True):
            del shown["inplace"]
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


class UnaryLayer(FunctionLayer):
    """A layer that is a function of one tensor."""

    def forward(self, x: Any) -> Tensor:
        return self._function(x, **self._options())


Layer = TypeVar("Layer", bound=type[FunctionLayer])


@dataclass_transform(eq_default=False)
def layer(cls: Layer) -> Layer:
    """Make a layer a dataclass that compares by identity and prints as a module."""
    made: Any = dataclass(eq=False, repr=False, match_args=False)(cls)
    made._fields = tuple(field.name for field in fields(made))
    return cls
