"""Tensor: numus.Tensor with PyTorch's methods.

A class of the same layout, so that results of the engine are relabelled (`_owned.py`), never
wrapped. Methods whose meaning is the engine's own are its functions; those that PyTorch defines
otherwise are in `_functions.py`. docs/design/0020 has the reasons.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numus as nm
from numus.functions.lazy import LazyMethod
from numus.graph import Node
from numus.torch._owned import own, owning, stands_for

_BASE = nm.Tensor


class Size(tuple[int, ...]):
    """A shape: a tuple that counts elements.

    >>> import numus.torch as torch
    >>> torch.zeros(2, 3).size().numel()
    6
    """

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return nm.shapes.size_of(self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Size(found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


class _Count(int):
    """`x.size`: called, PyTorch's method; as a number, what the engine reads."""

    _shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        return Size(self._shape) if dim is None else self._shape[dim]


class _Kind(type):
    """Tensors of the engine are instances as well: they become some when they are touched."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, _BASE) if cls is Tensor else type.__instancecheck__(cls, instance)
        )


class Tensor(_BASE, metaclass=_Kind):
    """An n-dimensional array with PyTorch's methods.

    >>> import numus.torch as torch
    >>> x = torch.Tensor([[1.0, 3.0], [4.0, 2.0]])
    >>> x.max(1).indices.tolist(), x.size(0), x.transpose(0, 1).tolist()
    ([1, 0], 2, [[1.0, 4.0], [3.0, 2.0]])
    """

    __slots__ = ()

    def __init__(self, *data: Any, device: Any = None) -> None:
        if len(data) == 1 and data[0].__class__ is Node:
            super().__init__(data[0])
            return
        if len(data) == 1 and not isinstance(data[0], int):
            values = nm.asarray(data[0], dtype=nm.float32, device=device, copy=True)
        else:
            values = nm.zeros(data or (0,), device=device)
        super().__init__(values.detach()._node)

    @property
    def shape(self) -> Any:
        """The extents of its axes."""
        return Size(self._node.shape)

    @property
    def size(self) -> Any:
        """`x.size()`, the shape; `x.size(dim)`, one extent."""
        count = _Count(nm.shapes.size_of(self._node.shape))
        count._shape = self._node.shape
        return count

    @property
    def data(self) -> Any:
        """The elements without history: each sees what is written to the other."""
        return own(self.detach())

    @data.setter
    def data(self, values: Any) -> None:
        from numus.nn.parameter import replace

        replace(self, nm.asarray(values))

    def __iter__(self) -> Iterator[Any]:
        return map(own, _BASE.__iter__(self))

    def __reduce__(self) -> Any:
        return _restored, _BASE.__reduce__(self)

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return repr(self)


stands_for(_BASE, Tensor)


def _restored(rebuild: Callable[..., Any], args: Any) -> Any:
    """A tensor from what `__reduce__` kept."""
    return own(rebuild(*args))


# -- what the engine's class has ------------------------------------------------------------------

_OPERATORS = """
    add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod
""".split()
_COMPARISONS = "lt le gt ge eq ne neg pos abs invert getitem copy deepcopy round".split()
_KEPT = frozenset(vars(Tensor)) | {"rebind", "rebind_alone", "assign"}


def _owned_operator(name: str) -> None:
    function = getattr(_BASE, name, None)
    if function is None:
        return

    def run(self: Any, *args: Any) -> Any:
        found = function(self, *args)
        if found.__class__ is _BASE:
            found.__class__ = Tensor
            return found
        return own(found)

    run.__name__ = name
    run.__doc__ = function.__doc__
    setattr(Tensor, name, run)


class Later:
    """A method or property that is made when it is first used."""

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self.make = make

    def __get__(self, instance: Any, owner: type) -> Any:
        made = self.make()
        setattr(Tensor, self.name, made)
        return made.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        self.__get__(instance, type(instance))
        setattr(instance, self.name, value)


def _inherited(name: str) -> Any:
    """The engine's method or property, its results owned."""
    found = vars(_BASE)[name]
    if isinstance(found, LazyMethod):
        importlib.import_module(found.module)
        found = vars(_BASE)[name]
    if isinstance(found, property):
        get = found.fget
        assert get is not None
        return property(lambda self: own(get(self)), found.fset, doc=found.__doc__)
    return owning(found)


for _name in _OPERATORS:
    for _form in ("__{}__", "__r{}__", "__i{}__"):
        _owned_operator(_form.format(_name))
for _name in _COMPARISONS:
    _owned_operator(f"__{_name}__")
for _name in vars(_BASE):
    if not _name.startswith("_") and _name not in _KEPT:
        setattr(Tensor, _name, Later(_name, partial(_inherited, _name)))
