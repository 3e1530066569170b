"""Lengths whose transforms are fast: products of small primes."""

from __future__ import annotations

from numus.errors import ShapeError
from numus.shapes import as_int

_COMPLEX_PRIMES, _REAL_PRIMES = (2, 3, 5, 7, 11), (2, 3, 5)  # SciPy's


def _is_smooth(n: int, primes: tuple[int, ...]) -> bool:
    for p in primes:
        while n % p == 0:
            n //= p
    return n == 1


def _smooth_multiples(primes: tuple[int, ...], most: int) -> list[int]:
    """All products of odd primes up to a bound, in ascending order."""
    found = [1]
    for p in primes[1:]:
        for x in list(found):
            while (x := x * p) <= most:
                found.append(x)
    return sorted(found)


def _target(op: str, target: int) -> int:
    n = as_int(target, "target", f"fft.{op}")
    if n < 1:
        raise ShapeError(f"fft.{op}: target is {n}; a transform has at least 1 point")
    return n


def next_fast_len(target: int, real: bool = False) -> int:
    """The smallest length from `target` on with prime factors 2, 3, 5 (of complex transforms also 7
    and 11) alone: pad to it where a longer transform will do.

    >>> nm.fft.next_fast_len(1021), nm.fft.next_fast_len(1021, real=True)
    (1024, 1024)
    """
    n = _target("next_fast_len", target)
    primes = _REAL_PRIMES if real else _COMPLEX_PRIMES
    if _is_smooth(n, primes):
        return n
    odd = _smooth_multiples(primes, 2 * n)
    return min(x << max(0, (-(-n // x) - 1).bit_length()) for x in odd)


def prev_fast_len(target: int, real: bool = False) -> int:
    """The largest length up to `target` with prime factors 2, 3, 5 (of complex transforms also 7
    and 11) alone.

    >>> nm.fft.prev_fast_len(1021), nm.fft.prev_fast_len(1021, real=True)
    (1008, 1000)
    """
    n = _target("prev_fast_len", target)
    odd = _smooth_multiples(_REAL_PRIMES if real else _COMPLEX_PRIMES, n)
    return max(x << (n // x).bit_length() - 1 for x in odd)
