"""What a format of quantised tensors is, and how it is named."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.dtypes import DType
from numus.shapes import Shape
from numus.tensor import Tensor

Parts = tuple[Tensor, ...]
Layout = dict[str, tuple[Shape, DType]]  # by the name of a part


@dataclass(frozen=True)
class Format(ABC):
    """How values become codes and scales, and how these lie in memory.

    The last axis is the one that groups run along, and is padded with zeros to whole groups.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """As `nm.quant.quantize` takes it: "int4-g128"."""

    @property
    def group_size(self) -> int:
        """Values along the last axis that share their scales; 1: they share none or all."""
        return 1

    @abstractmethod
    def layout(self, shape: Shape) -> Layout:
        """Shape and dtype of every part, by name."""

    @abstractmethod
    def quantize(self, x: Tensor) -> Parts:
        """The parts, in the order of `layout`, of a float32 tensor."""

    @abstractmethod
    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        """The float32 values that the parts stand for."""


def grouped(x: Tensor, size: int) -> Tensor:
    """The last axis in groups, the last one filled with zeros: (..., groups, size)."""
    count = -(-x.shape[-1] // size)
    short = count * size - x.shape[-1]
    if short:
        x = nm.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)])
    return x.reshape(*x.shape[:-1], count, size)


def ungrouped(x: Tensor, shape: Shape) -> Tensor:
    """Groups joined, without what `grouped` filled in."""
    flat = x.reshape(*shape[:-1], x.shape[-1] * x.shape[-2])
    return flat[..., : shape[-1]] if flat.shape[-1] != shape[-1] else flat


def safe_reciprocal(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0."""
    return nm.where(x == 0, nm.zeros_like(x), 1 / nm.where(x == 0, nm.ones_like(x), x))


# -- names ----------------------------------------------------------------------------------------

_MAKERS: list[tuple[re.Pattern[str], Callable[..., Format], str]] = []


def register_format(pattern: str, make: Callable[..., Format], example: str) -> None:
    """Let names that match a pattern mean a format; `make` takes the pattern's groups."""
    _MAKERS.append((re.compile(pattern), make, example))


def as_format(what: str | Format) -> Format:
    """A format of its name.

    >>> as_format("int4-g64")
    Integers(bits=4, group=64, symmetric=True, scale_dtype=float16)
    """
    if isinstance(what, Format):
        return what
    if not isinstance(what, str):
        raise TypeError(f"a format is a name or a Format, not {type(what).__name__}")
    for pattern, make, _ in _MAKERS:
        found = pattern.fullmatch(what.lower())
        if found:
            return make(*found.groups())
    names = ", ".join(example for *_, example in _MAKERS)
    raise ValueError(f"{what!r} names no format of quantised tensors; there are {names}")


def check_parts(format: Format, shape: Shape, parts: Sequence[Any]) -> None:
    """Raise unless parts have the shapes and dtypes that a format lays down."""
    layout = format.layout(shape)
    if len(layout) != len(parts):
        raise ValueError(f"{format.name} has the parts {', '.join(layout)}, not {len(parts)}")
    for (name, (wanted, dtype)), part in zip(layout.items(), parts, strict=True):
        if tuple(part.shape) != wanted or part.dtype is not dtype:
            raise ValueError(
                f"{format.name}: {name} of a tensor of shape {shape} must be {dtype.name} of shape "
                f"{wanted}, not {part.dtype.name} of shape {tuple(part.shape)}"
            )
