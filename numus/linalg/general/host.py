"""Functions whose kernels CPUs have: operands of other devices are copied there, results back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from numus.functions._base import wrap
from numus.primitives.structure import transfer
from numus.runtime.devices import Device
from numus.runtime.devices import device as device_named
from numus.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def _mapped(f: Callable[[Tensor], Tensor], x: Any) -> Any:
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, (tuple, list)):
        parts = [_mapped(f, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


def _at(place: Device) -> Callable[[Tensor], Tensor]:
    return lambda x: wrap(transfer(x._node, place))


def hosted(function: Callable[P, R]) -> Callable[P, R]:
    """Computed on the host, derivatives too: a copy of each operand there, of each result back."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        places = [x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        place = next((p for p in places if p.runtime.target.simt), None)
        if place is None:
            return function(*args, **kwargs)
        there = _at(device_named("cpu"))
        given = {name: _mapped(there, x) for name, x in kwargs.items()}
        found = function(*_mapped(there, args), **given)
        return _mapped(_at(place), found)

    return call
