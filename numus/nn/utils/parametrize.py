"""Parameters that are computed from others: `layer.weight` becomes a function of what is learned.

What is learned moves to `layer.parametrizations.weight.original` (`original0`, `original1` … where
it is several tensors), and `layer.weight` is computed from it whenever it is read. Names are
PyTorch's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numus as nm
from numus.nn.layers.containers import ModuleDict
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization",
    "remove_parametrizations",
]  # fmt: skip


class _Cache(threading.local):
    depth = 0
    values: dict[tuple[int, str], Any]

    def __init__(self) -> None:
        self.values = {}


_cache = _Cache()


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrised tensor once inside, however often it is read."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.values.clear()


class ParametrizationList(Module):
    """The parametrisations of one tensor, applied one after the other, and what is learned."""

    def __init__(self, first: Module, original: Tensor) -> None:
        learned: Any = original
        if hasattr(first, "right_inverse"):
            with nm.no_grad():
                learned = first.right_inverse(original)
        self.is_tensor = isinstance(learned, Tensor)
        if self.is_tensor:
            self.original = _learned(learned, original)
        else:
            for i, part in enumerate(learned):
                setattr(self, f"original{i}", _learned(part, original))
            self.ntensors = len(learned)
        self.count = 0
        self.append(first)

    def append(self, module: Module) -> None:
        """Apply one more."""
        setattr(self, str(self.count), module)
        self.count += 1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Module:
        found: Module = getattr(self, str(range(self.count)[index]))
        return found

    def _originals(self) -> tuple[Tensor, ...]:
        if self.is_tensor:
            return (self.original,)
        return tuple(getattr(self, f"original{i}") for i in range(self.ntensors))

    def right_inverse(self, value: Tensor) -> None:
        """Let what is learned be such that the tensor has this value."""
        learned: Any = value
        with nm.no_grad():
            for i in reversed(range(self.count)):
                module: Any = self[i]
                if not hasattr(module, "right_inverse"):
                    raise TypeError(
                        f"{type(module).__name__} has no right_inverse, which would tell what to "
                        "learn for a given value"
                    )
                learned = module.right_inverse(learned)
            parts = (learned,) if self.is_tensor else tuple(learned)
            for original, part in zip(self._originals(), parts, strict=True):
                original.assign(part)

    def forward(self) -> Tensor:
        value: Tensor = self[0](*self._originals())
        for i in range(1, self.count):
            value = self[i](value)
        return value


def _learned(part: Tensor, of: Tensor) -> Tensor:
    """What is learned instead of a parameter; itself, where that is the same."""
    if part is of or not isinstance(of, Parameter):
        return part
    return Parameter(part.detach(), of.requires_grad)


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let a parameter or buffer be what `parametrization` makes of one that is learned.

    Args:
        parametrization: a module of the tensor that is learned (or of several). Its method
            `right_inverse`, if it has one, gives what is to be learned from the tensor.
        unsafe: do not look whether shape and dtype stay as they were.

    >>> from numus import nn
    >>> class Symmetric(nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).T
    >>> register = nn.utils.parametrize.register_parametrization
    >>> layer = register(nn.Linear(3, 3), "weight", Symmetric())
    >>> bool((layer.weight == layer.weight.T).all())
    True
    """
    known = vars(module).get("parametrizations")
    if known is not None and tensor_name in known:
        _append(module, known[tensor_name], tensor_name, parametrization, unsafe)
        return module
    original = vars(module).get(tensor_name)
    if not isinstance(original, Tensor):
        raise ValueError(
            f"register_parametrization: {type(module).__name__} has no parameter or buffer "
            f"{tensor_name!r}"
        )
    parts = ParametrizationList(parametrization, original)
    value = parts()
    if not unsafe and (value.shape, value.dtype) != (original.shape, original.dtype):
        raise ValueError(
            f"register_parametrization: {tensor_name} of {original.dtype.name}"
            f"{list(original.shape)} would become {value.dtype.name}{list(value.shape)}; "
            "unsafe=True allows it"
        )
    if not isinstance(original, Parameter):
        parts.register_buffer("original", parts.original)
    delattr(module, tensor_name)
    if known is None:
        _make_parametrised(module)
    module.parametrizations[tensor_name] = parts  # type: ignore[attr-defined]
    return module


def _append(
    module: Module, parts: ParametrizationList, name: str, added: Module, unsafe: bool
) -> None:
    """One more parametrisation of a tensor that has some."""
    before = getattr(module, name).detach()
    value = added(before)
    if not unsafe and (value.shape, value.dtype) != (before.shape, before.dtype):
        raise ValueError(f"register_parametrization: {name} would change its shape or dtype")
    if hasattr(added, "right_inverse"):
        parts.right_inverse(added.right_inverse(before))
    parts.append(added)


def _make_parametrised(module: Module) -> None:
    """Give a module a class of its own, in which names of parametrised tensors are computed."""
    base = type(module)

    def read(self: Any, name: str) -> Any:
        parts = vars(self).get("parametrizations", {})
        if name not in parts:
            raise AttributeError(f"{base.__name__} has no attribute {name!r}")
        if not _cache.depth:
            return parts[name]()
        key = id(self), name
        if key not in _cache.values:
            _cache.values[key] = parts[name]()
        return _cache.values[key]

    def write(self: Any, name: str, given: Any) -> None:
        parts = vars(self).get("parametrizations", {})
        if name in parts:
            parts[name].right_inverse(nm.asarray(given))
        else:
            base.__setattr__(self, name, given)

    names = {"__getattr__": read, "__setattr__": write, "_before_parametrizations": base}
    made = type(f"Parametrized{base.__name__}", (base,), names)
    object.__setattr__(module, "__class__", made)
    module.register_module("parametrizations", ModuleDict())


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a tensor of a module is parametrised, or any of them."""
    known = vars(module).get("parametrizations")
    if known is None:
        return False
    return len(known) > 0 if tensor_name is None else tensor_name in known


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Let a tensor be an ordinary one again.

    Args:
        leave_parametrized: with the value that it has; otherwise with the one that was learned.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(
            f"remove_parametrizations: {type(module).__name__}.{tensor_name} is not parametrised"
        )
    parts = module.parametrizations[tensor_name]  # type: ignore[attr-defined]
    originals = parts._originals()
    if not leave_parametrized and not parts.is_tensor:
        raise ValueError(
            f"remove_parametrizations: {tensor_name} is made of {len(originals)} tensors, none of "
            "which is it; leave_parametrized=True keeps its value"
        )
    value = parts() if leave_parametrized else originals[0]
    learned = isinstance(originals[0], Parameter)
    del module.parametrizations[tensor_name]  # type: ignore[attr-defined]
    if not is_parametrized(module):
        del module.parametrizations  # type: ignore[attr-defined]
        before = type(module)._before_parametrizations  # type: ignore[attr-defined]
        object.__setattr__(module, "__class__", before)
    if learned:
        setattr(module, tensor_name, Parameter(value.detach(), originals[0].requires_grad))
    else:
        module.register_buffer(tensor_name, value.detach())
    return module
