"""NumPy's dispatch protocols (NEP 13 and NEP 18): numpy.exp(x) and numpy.mean(x) of tensors.

A ufunc of NumPy is numus's function of the same name; other functions are those of `numus.numpy`,
which have NumPy's signatures. Where NumPy writes to an array of its own (`out=`, `a += x`), and
where numus has no function of the name, the elements go to NumPy.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from numus.tensor import Tensor

_WRITERS = ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask")

_MEMORY = ("may_share_memory", "shares_memory")  # of arrays on a tensor's own memory, also


def apply_ufunc(ufunc: Any, how: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """numpy.add(x, y), numpy.add.reduce(x) and their kin."""
    own = getattr(importlib.import_module("numus"), ufunc.__name__, None)
    if own is None or _is_numpys(kwargs.get("out")) or (how == "at" and _is_numpys(inputs[0])):
        return _on_host(getattr(ufunc, how), inputs, kwargs)
    of_face = any(_is_of_face(x) for x in (*inputs, kwargs.get("out")))
    if how == "__call__" and not kwargs and not of_face:
        return own(*inputs)
    found = getattr(getattr(_face(), ufunc.__name__), how)(*inputs, **kwargs)
    return found if of_face else _given_back(found)


def apply_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """numpy.mean(x), numpy.concatenate([x, y]) and their kin."""
    path = (function.__module__ or "").split(".")[1:]
    owner: Any = _face()
    if path and path[0] in ("linalg", "fft"):
        owner, path = getattr(owner, path[0]), []
    on_host = path or function.__name__ in _MEMORY
    own = None if on_host else getattr(owner, function.__name__, None)
    writes = function.__name__ in _WRITERS and _is_numpys(args[:1])
    if own is None or writes or _is_numpys(kwargs.get("out")):
        return _on_host(function, args, kwargs)
    found = own(*args, **kwargs)
    return found if any(map(_is_of_face, args)) else _given_back(found)


def _face() -> Any:
    # imported late, and by name: `numus.numpy` stands above this layer
    return importlib.import_module("numus.numpy")


def _is_of_face(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(map(_is_of_face, x))
    return isinstance(x, _face().ndarray)


def _is_numpys(x: Any) -> bool:
    return any(isinstance(i, np.ndarray) for i in (x if isinstance(x, tuple) else (x,)))


def _on_host(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """NumPy's own function of the elements."""
    return function(*map(_hosted, args), **{key: _hosted(value) for key, value in kwargs.items()})


def _hosted(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.__array__()
    return type(x)(map(_hosted, x)) if type(x) in (list, tuple) else x


def _given_back(x: Any) -> Any:
    """Arrays of `numus.numpy` as tensors, and its scalars as tensors without axes."""
    if isinstance(x, Tensor):
        return x if x.__class__ is Tensor else Tensor(x._node)
    if isinstance(x, np.generic):
        return importlib.import_module("numus").asarray(x)
    if isinstance(x, (list, tuple)):
        made = map(_given_back, x)
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    return x
