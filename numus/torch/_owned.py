"""Relabelling: what the engine returns becomes a tensor of this face, without a copy.

`Tensor` of this package has the memory layout of `numus.Tensor` and other methods, so a result
changes its class in place: it keeps its identity, its views, its gradient and its place in traces.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numus as nm

# Python's own scalars and the like, which hold no tensors
_ATOMS = frozenset({int, float, bool, complex, str, type(None), bytes})
_faces: dict[type, type] = {}  # classes of the engine to those of this face


def stands_for(engine: type, face: type) -> None:
    """Let objects of a class of the engine become objects of a class of this face."""
    _faces[engine] = face


def own(x: Any) -> Any:
    """x, its tensors labelled as this face's; containers of them are rebuilt."""
    kind = x.__class__
    face = _faces.get(kind)
    if face is not None:
        x.__class__ = face
        return x
    if kind in _ATOMS:
        return x
    if isinstance(x, tuple):
        parts = map(own, x)
        return kind(*parts) if hasattr(x, "_fields") else kind(parts)
    if kind is list:
        return [own(part) for part in x]
    if kind is dict or kind is OrderedDict:
        return kind((key, own(part)) for key, part in x.items())
    return x


# PyTorch's names of parameters that the engine calls otherwise: a name, or a position
_OTHER_NAMES: dict[str, tuple[Any, ...]] = {
    "input": (0,), "tensors": (0,), "data": (0,), "obj": (0,), "self": (0,), "other": (1,),
    "exponent": (1,), "mat1": (1,), "mat2": (-1,), "vec": (-1,), "vec2": (-1,), "tensor": (1,),
    "tensor2": (1,), "batch1": (1,), "batch2": (2,), "sections": (1,), "elements": (0,),
    "test_elements": (1,), "indices": ("index", 0), "index": (1,), "values": (1,),
    "train": ("training",), "interpolation_mode": ("mode",), "rcond": ("rtol",),
    "dim": ("axis", "axes"), "dims": ("axis", "axes"), "keepdim": ("keepdims",), "dim1": ("axis1",),
    "dim2": ("axis2",), "dim0": ("axis1",), "axis0": ("axis1",), "diagonal": ("k",),
    "offset": ("k",), "end": ("stop",), "steps": ("num",), "size": ("shape",),
    "correction": ("ddof",), "value": ("src", "fill_value"), "driver": ("lapack_driver",),
}  # fmt: skip
# Arguments that say nothing here: memory is row-major, and laid out by the compiler
_MEANINGLESS = frozenset({"layout", "memory_format", "pin_memory", "non_blocking", "sparse_grad"})
_MEANINGLESS |= {"cudnn_enable", "cudnn_enabled", "implicit"}


class Names:
    """How the keywords of a call reach the parameters of an engine's function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        kinds = inspect.Parameter
        found = list(inspect.signature(function).parameters.values())
        positional = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.at = {p.name: i for i, p in enumerate(positional) if p.kind is kinds.POSITIONAL_ONLY}
        self.order = [p.name for p in positional]
        self.keywords = {
            p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }
        self.any = any(p.kind is kinds.VAR_KEYWORD for p in found)

    def takes(self, name: str) -> bool:
        """True if a keyword of PyTorch's reaches a parameter."""
        if name in self.keywords or name in self.at or name in _MEANINGLESS or self.any:
            return True
        return any(
            other < len(self.order)
            if isinstance(other, int)
            else other in (*self.at, *self.keywords)
            for other in _OTHER_NAMES.get(name, ())
        )

    def fitted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments under the engine's names."""
        named: dict[str, Any] = {}
        placed: dict[int, Any] = {}
        for name, value in kwargs.items():
            if name in self.keywords:
                named[name] = value
            elif name in self.at:
                placed[self.at[name]] = value
            elif name not in _MEANINGLESS or self.any:
                self._assign(name, value, named, placed)
        for position in sorted(placed):
            if position == len(args):
                args = (*args, placed[position])
            else:
                named[self.order[position]] = placed[position]
        return args, named

    def _assign(self, name: str, value: Any, named: dict[str, Any], placed: dict[int, Any]) -> None:
        for other in _OTHER_NAMES.get(name, ()):
            if isinstance(other, int) and other < len(self.order):
                placed[other % len(self.order)] = value
                return
            if other in self.at:
                placed[self.at[other]] = value
                return
            if other in self.keywords:
                named[other] = value
                return
        named[name] = value  # the engine's own error names it


def owning(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the engine with PyTorch's names of parameters, `out`, and owned results."""
    names: list[Names] = []

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        out = None
        if kwargs:
            if not names:
                names.append(Names(function))
            if kwargs.get("requires_grad") is False:
                del kwargs["requires_grad"]
            if "out" in kwargs and "out" not in names[0].keywords:
                out = kwargs.pop("out")
            args, kwargs = names[0].fitted(args, kwargs)
        found = function(*args, **kwargs)
        if out is not None:
            return _stored(out, found)
        kind = found.__class__
        if kind is nm.Tensor:
            found.__class__ = _faces[kind]
            return found
        return own(found)

    return run


def _stored(out: Any, found: Any) -> Any:
    """Results written to the tensors that were given for them."""
    if isinstance(found, tuple):
        return type(found)(*(_stored(o, f) for o, f in zip(out, found, strict=True)))
    return out.copy_(found)


def seeing_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the engine calls with its tensors; it sees them as this face's."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*own(args), **own(kwargs))

    return run


def transforming(transform: Callable[..., Any]) -> Callable[..., Any]:
    """A transformation of functions: both the function and what it becomes own their tensors."""

    @functools.wraps(transform)
    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return owning(transform(seeing_own(function), *args, **kwargs))

    return run
