"""Integers: common divisors, and bits packed into bytes."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.functions import api as nm
from numus.functions._base import method, operand, pair, require, wrap
from numus.functions.elementwise.output import accepts_out
from numus.functions.spelling import spelled
from numus.shapes import as_int, normal_axis
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control.while_loop import while_loop

__all__ = ["gcd", "lcm", "packbits", "unpackbits"]


def _integers(op: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    x, y = (wrap(require(op, n, "bool", "uint", "int")) for n in pair(op, x1, x2))
    if x.dtype is dt.bool_:
        raise DTypeError(f"{op}: takes integers, not booleans; cast them with astype(nm.int8)")
    a, b = nm.broadcast_arrays(x, y)
    return a, b


@method()
@accepts_out
def gcd(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The greatest common divisor of two integers, by Euclid's algorithm; gcd(0, 0) is 0.

    >>> nm.gcd(nm.asarray([12, 7]), 18).tolist()
    [6, 1]
    """
    a, b = _integers("gcd", x1, x2)

    def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = state
        done = b == 0
        return nm.where(done, a, b), nm.where(done, b, nm.fmod(a, nm.where(done, 1, b)))

    found, _ = while_loop(lambda state: nm.any(state[1] != 0), step, (a.copy(), b.copy()))
    return found if found.dtype.kind == "uint" else nm.abs(found)


@method()
@accepts_out
def lcm(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The least common multiple of two integers; 0 where one of them is 0.

    >>> nm.lcm(nm.asarray([4, 0]), 6).tolist()
    [12, 0]
    """
    a, b = _integers("lcm", x1, x2)
    divisor = gcd(a, b)
    found = nm.floor_divide(a, nm.where(divisor == 0, 1, divisor)) * b
    return found if found.dtype.kind == "uint" else nm.abs(found)


def _weights(bitorder: str, op: str, device: Any) -> Tensor:
    """The shift of each bit of a byte, in order."""
    if bitorder not in ("big", "little"):
        raise ValueError(f'{op}: bitorder must be "big" or "little", not {bitorder!r}')
    shifts = range(8) if bitorder == "little" else range(7, -1, -1)
    return nm.asarray(list(shifts), dtype=dt.uint8, device=device)


def _lanes(op: str, x: ArrayLike, axis: int | None) -> tuple[Tensor, int]:
    given = operand(op, x)
    require(op, given._node, "bool", "uint", "int")
    if axis is None:
        return nm.reshape(given, -1), 0
    at = normal_axis(axis, given.ndim, op)
    return nm.moveaxis(given, at, -1), at


@spelled
def packbits(x: ArrayLike, /, axis: int | None = None, bitorder: str = "big") -> Tensor:
    """Eight elements, zero or not, as the bits of one byte; the last byte is filled with zeros.

    Args:
        axis: along which; None takes x as one long axis.

    >>> nm.packbits(nm.asarray([1, 0, 1])).tolist()
    [160]
    """
    given, at = _lanes("packbits", x, axis)
    bits = nm.astype(given != 0, dt.uint8)
    bits = nm.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, -bits.shape[-1] % 8)])
    bits = nm.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    placed = nm.left_shift(bits, _weights(bitorder, "packbits", given.device))
    return nm.moveaxis(nm.sum(placed, -1, dtype=dt.uint8), -1, at)


@spelled
def unpackbits(
    x: ArrayLike, /, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Tensor:
    """The bits of bytes as elements that are 0 or 1.

    Args:
        count: how many bits; a negative number leaves as many out at the end.

    >>> nm.unpackbits(nm.asarray([160], dtype=nm.uint8), count=3).tolist()
    [1, 0, 1]
    """
    op = "unpackbits"
    given, at = _lanes(op, x, axis)
    if given.dtype is not dt.uint8:
        raise DTypeError(f"{op}: takes uint8, not {given.dtype.name}")
    shifts = _weights(bitorder, op, given.device)
    bits = nm.bitwise_and(nm.right_shift(nm.expand_dims(given, -1), shifts), 1)
    bits = nm.reshape(bits, (*given.shape[:-1], given.shape[-1] * 8))
    if count is not None:
        wanted = as_int(count, "count", op)
        wanted = bits.shape[-1] + wanted if wanted < 0 else wanted
        missing = max(wanted - bits.shape[-1], 0)
        bits = nm.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])[..., :wanted]
    return nm.moveaxis(bits, -1, at)
