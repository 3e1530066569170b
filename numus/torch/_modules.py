"""Modules with PyTorch's rules of attributes, and the engine's layers as such modules.

A layer here is a class made of the engine's layer and `Module`, when it is first asked for. Layers
that the engine makes itself (parts of an `nn.Transformer`, say) become layers of this face when a
module takes them as an attribute, so `isinstance(m, nn.Linear)` holds for all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numus as nm
from numus import nn as engine
from numus.torch._owned import own, owning, seeing_own, stands_for
from numus.torch._tensor import Tensor


class Parameter(engine.Parameter, Tensor):
    """A tensor that a module learns."""

    __slots__ = ()

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        super().__init__(nm.zeros(0) if data is None else data, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{self.detach()!r}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        found: Parameter = own(super().__deepcopy__(memo))
        return found

    def __reduce__(self) -> Any:
        return Parameter, (self.detach(), self.requires_grad)


stands_for(engine.Parameter, Parameter)


class _Kind(type):
    """Modules of the engine are instances of the class of this face that they stand for."""

    def __instancecheck__(cls, instance: Any) -> bool:
        known = cls.__dict__.get("_engine")
        return type.__instancecheck__(cls, instance) or (
            known is not None and isinstance(instance, known)
        )

    def __subclasscheck__(cls, subclass: type) -> bool:
        known = cls.__dict__.get("_engine")
        return type.__subclasscheck__(cls, subclass) or (
            known is not None and type.__subclasscheck__(known, subclass)
        )


class Module(engine.Module, metaclass=_Kind):
    """The base of layers and models, with PyTorch's rules: parameters and modules are those set as
    attributes, not those in plain lists.

    >>> from numus.torch import nn
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden = nn.Linear(4, 8)
    ...         self.plain = [nn.Linear(8, 8)]
    >>> [name for name, _ in Net().named_parameters()]
    ['hidden.weight', 'hidden.bias']
    """

    _engine = engine.Module

    def __setattr__(self, name: str, given: Any) -> None:
        if isinstance(given, engine.Module) and not type.__instancecheck__(Module, given):
            adopt(given)
        elif given.__class__ in (engine.Parameter, nm.Tensor):
            given = own(given)
        elif isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, given)
            return
        super().__setattr__(name, given)

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.__dict__.items():
            if isinstance(value, (engine.Module, nm.Tensor)):
                yield name, value

    @property
    def _parameters(self) -> dict[str, Any]:
        return {n: p for n, p in self._attributes() if isinstance(p, engine.Parameter)}

    @property
    def _modules(self) -> dict[str, Any]:
        return {n: m for n, m in self._attributes() if isinstance(m, engine.Module)}

    def state_dict(self, *args: Any, prefix: str = "", keep_vars: bool = False, **_: Any) -> Any:
        """Parameters and persistent buffers by name."""
        found = super().state_dict(prefix, keep_vars=keep_vars)
        return OrderedDict((name, own(tensor)) for name, tensor in found.items())

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Any, strict: bool = True, assign: bool = False
    ) -> Any:
        """Take the values of a state dict, by name."""
        try:
            return super().load_state_dict(state_dict, strict)
        except ValueError as error:
            raise RuntimeError(str(error)) from None  # what programs for PyTorch catch

    def register_forward_hook(
        self, hook: Callable[..., Any], *, with_kwargs: bool = False, **_: Any
    ) -> Any:
        """Call `hook(module, args, output)` after `forward`."""
        if with_kwargs:
            return super().register_forward_hook(lambda m, args, out: hook(m, args, {}, out))
        return super().register_forward_hook(hook)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Any:
        """Call `hook(module, grad_input, grad_output)` when gradients went through the module."""
        return super().register_full_backward_hook(seeing_own(hook))

    def to(
        self, *args: Any, non_blocking: bool = False, memory_format: Any = None, **where: Any
    ) -> Any:
        """Parameters and buffers in another dtype (floats only), on another device, or both."""
        return super().to(*args, **where)

    def cuda(self, device: Any = 0) -> Any:
        """Parameters and buffers on an NVIDIA GPU."""
        return super().cuda(device) if isinstance(device, int) else self.to(device or "cuda")

    def type(self, dst_type: Any) -> Any:
        """Parameters and buffers in another float."""
        return self.to(dst_type)


_layers: dict[type, type] = {engine.Module: Module}


def layer(kind: type) -> type:
    """The class of this face that stands for a class of the engine's layers."""
    found = _layers.get(kind)
    if found is None:
        body: dict[str, Any] = {"_engine": kind, "__module__": "numus.torch.nn"}
        body |= {"__doc__": kind.__doc__, "__qualname__": kind.__name__}
        if kind.forward is not engine.Module.forward:  # type: ignore[attr-defined]
            body["forward"] = owning(kind.forward)  # type: ignore[attr-defined]
        own_kind = type(kind)  # lazy layers have a metaclass of their own
        meta = _Kind if own_kind is type else type("_Kind", (_Kind, own_kind), {})
        found = _layers[kind] = meta(kind.__name__, (kind, Module), body)
    return found


def adopt(module: Any) -> Any:
    """Let an engine's module and all below it be modules of this face, in place."""
    for part in list(engine.Module.modules(module)):
        if not type.__instancecheck__(Module, part):
            object.__setattr__(part, "__class__", layer(type(part)))
        for name, value in list(part.__dict__.items()):
            part.__dict__[name] = own(value) if isinstance(value, nm.Tensor) else value
    return module


def reflected(name: str, source: Any, made: dict[str, Any]) -> Callable[[str], Any]:
    """A module's `__getattr__`: names of a module of the engine, as this face's, when asked for."""

    def find(wanted: str) -> Any:
        if wanted in made:
            return made[wanted]
        if wanted.startswith("__") or not hasattr(source, wanted):
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        found = getattr(source, wanted)
        if isinstance(found, type):
            found = layer(found) if issubclass(found, engine.Module) else found
        elif callable(found):
            found = owning(found)
        made[wanted] = found
        return found

    return find
