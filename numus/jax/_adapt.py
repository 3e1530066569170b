"""What makes a function of numus one of JAX's: dtypes of 32 bits by default, and its arguments.

JAX computes in 32 bits unless `jax_enable_x64` is set: NumPy arrays of 64 bits become tensors of 32
where they enter. Arguments that guide XLA alone (`precision=`, `indices_are_sorted=`) mean nothing
here and are let pass.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.dtypes import DType
from numus.tensor import Tensor

Function = Callable[..., Any]

_NARROW = {
    dt.float64: dt.float32,
    dt.int64: dt.int32,
    dt.uint64: dt.uint32,
    dt.complex128: dt.complex64,
}
# Python's types and the abstract types of NumPy that name a dtype
_PYTHON = {float: dt.float32, int: dt.int32, complex: dt.complex64, bool: dt.bool_}
_HINTS = frozenset(
    "precision out_sharding indices_are_sorted unique_indices promote_integers overwrite_input "
    "symmetrize_input kind optimize assume_unique assume_unique_indices preferred_element_type "
    "out order copy".split()
)


class Config:
    """`jax.config`: `jax_enable_x64` has an effect, other names of options are kept."""

    def __init__(self) -> None:
        self.jax_enable_x64 = False
        self.jax_debug_nans = False

    def update(self, name: str, value: Any) -> None:
        """Set an option."""
        setattr(self, name, value)

    @property
    def x64_enabled(self) -> bool:
        return self.jax_enable_x64


config = Config()


def canonical_dtype(dtype: Any) -> DType:
    """The dtype that JAX would use: of 32 bits, unless `jax_enable_x64` is set."""
    found = _PYTHON.get(dtype) if isinstance(dtype, type) else None
    if found is not None and not config.jax_enable_x64:
        return found
    wanted = dt.as_dtype(dtype)
    return wanted if config.jax_enable_x64 else _NARROW.get(wanted, wanted)


def to_tensor(x: Any, dtype: Any = None, **options: Any) -> Tensor:
    """An array-like as a tensor of a canonical dtype."""
    if dtype is not None:
        return nm.asarray(x, dtype=canonical_dtype(dtype), **options)
    if isinstance(x, Tensor) and not options:
        return x
    made = nm.asarray(x, **options)
    wanted = canonical_dtype(made.dtype)
    return made if wanted is made.dtype else nm.astype(made, wanted)


def _entering(x: Any) -> Any:
    """An argument: NumPy's arrays become tensors, also in a list of them."""
    if isinstance(x, (np.ndarray, np.generic)):
        return to_tensor(x)
    if isinstance(x, (list, tuple)) and any(isinstance(e, (np.ndarray, np.generic)) for e in x):
        return type(x)(_entering(e) for e in x)
    return x


def narrowed(found: Any) -> Any:
    """A result: indices and counts of 64 bits become those of 32."""
    if isinstance(found, Tensor):
        wanted = canonical_dtype(found.dtype)
        return found if wanted is found.dtype else nm.astype(found, wanted)
    if type(found) in (tuple, list):
        return type(found)(map(narrowed, found))
    return found


def adapt(function: Function, renames: dict[str, str] | None = None) -> Function:
    """A function of numus with JAX's arguments."""
    renames = renames or {}

    @functools.wraps(function)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {
                renames.get(name, name): _entering(x)
                for name, x in kwargs.items()
                if name not in _HINTS and not (name in ("out", "where", "mode") and x is None)
            }
            if kwargs.get("dtype") is not None:
                kwargs["dtype"] = canonical_dtype(kwargs["dtype"])
        return narrowed(function(*map(_entering, args), **kwargs))

    return adapted


def forwarder(
    module: str, names: Iterable[str], source: Function, renames: dict[str, dict[str, str]]
) -> tuple[Function, Function]:
    """`__getattr__` and `__dir__` of a module whose names are those of numus, adapted."""
    listed = frozenset(names)

    def find(name: str) -> Any:
        if name not in listed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        found = source(name)
        is_function = callable(found) and not isinstance(found, (type, ModuleType, DType))
        if is_function:
            found = adapt(found, renames.get(name))
        if not hasattr(builtins, name):  # `bool`, `max`: the module's own functions use Python's
            setattr(sys.modules[module], name, found)
        return found

    def listing() -> list[str]:
        own = [n for n in vars(sys.modules[module]) if not n.startswith("_")]
        return sorted({*own, *listed})

    return find, listing
