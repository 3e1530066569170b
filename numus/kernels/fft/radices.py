"""Radices of a transform: which lengths have a mixed-radix form, and in which order they pass."""

from __future__ import annotations

import functools
import math

LARGEST_RADIX = 16  # of the butterflies that live in registers: 2, 3, 4, 5, 7, 8, 11, 13, 16
MAX_PRIME = 199  # larger prime factors go through Bluestein's convolution
MAX_THREAD_PRIME = 61  # and these where threads transform them, which are as many as the rest


@functools.lru_cache(maxsize=4096)
def prime_factors(n: int) -> tuple[int, ...]:
    """In ascending order."""
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return (*found, n) if n > 1 else tuple(found)


def is_mixed_radix(n: int, threads: bool = False) -> bool:
    """Every prime factor has a butterfly, in registers or as a loop."""
    return all(p <= (MAX_THREAD_PRIME if threads else MAX_PRIME) for p in prime_factors(n))


def is_in_registers(radix: int, largest_odd: int) -> bool:
    """A butterfly of this radix is unrolled; others are loops over a prime."""
    return radix % 2 == 0 or max(prime_factors(radix), default=1) <= largest_odd


@functools.lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    found = {1}
    for p in prime_factors(n):
        found |= {d * p for d in found}
    return tuple(sorted(found))


@functools.lru_cache(maxsize=4096)
def even_factors(n: int, largest: int, least: int = 2) -> tuple[int, ...]:
    """Factors of at most `largest`, as few and as even as they can be, in ascending order; none
    where a prime is larger."""
    if n == 1:
        return ()
    found: list[tuple[int, ...]] = [(n,)] if n <= largest else []
    for d in divisors(n):
        if least <= d <= largest and d * d <= n and (rest := even_factors(n // d, largest, d)):
            found.append((d, *rest))
    return min(found, key=lambda x: (len(x), sum(r * r for r in x)), default=())


@functools.lru_cache(maxsize=4096)
def radices_of(n: int, largest: int, largest_odd: int) -> tuple[int, ...]:
    """The radices of the passes, of which there are as few as can be: each is a way through memory.
    Where `largest_odd` is smaller than `largest`, odd primes stay apart: few kernels serve many
    lengths.

    Primes above `largest_odd`, which are done by a loop, come last, since they read each operand
    many times; if there is nothing else, a pass of radix 1 brings the operands to scratch memory.
    """
    factors = prime_factors(n)
    apart = [p for p in factors if p > min(largest, max(2, largest_odd))]
    if largest_odd < largest:
        apart = [p for p in factors if p > 2]
    joined = even_factors(n // math.prod(apart), largest)
    loops = [p for p in apart if p > largest_odd]
    radices = [*reversed(joined), *(p for p in apart if p <= largest_odd)]
    return tuple([*radices, *loops] if radices or not loops else [1, *loops])


@functools.lru_cache(maxsize=4096)
def split(n: int, limit: int) -> tuple[int, ...]:
    """Factors of at most `limit` (where a divisor allows it), as few and as even as they can be,
    the smaller of two first: its points lie furthest apart."""
    if n <= limit:
        return (n,)
    parts = 2
    while limit**parts < n:
        parts += 1
    even = n ** (1 / parts)
    small = [d for d in divisors(n) if 1 < d <= limit]
    if not small:
        return (n,)
    # the smallest divisor from the even share on, else the largest below it
    first = min((d for d in small if d >= even * 0.999), default=small[-1])
    rest = split(n // first, limit)
    return (*rest, first) if len(rest) == 1 and rest[0] < first else (first, *rest)
