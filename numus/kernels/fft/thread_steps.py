"""Transforms by threads: the steps of a length, the radices of a step, the size of a block."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from numus import dtypes as dt
from numus.dtypes import DType
from numus.kernels.fft.radices import even_factors, is_in_registers, prime_factors, split
from numus.kernels.fft.shared_memory import ThreadBlock, padded
from numus.target import Target

SM_REGISTERS = 1 << 16
SM_SHARED_BYTES = 227 << 10
SM_THREADS = 2048


@dataclass(frozen=True)
class ThreadTuning:
    """Measured on one H200: 2^24 points of complex64 take 0.253 ms in blocks of 4096 points, 0.231
    in blocks of 2048, and 0.264 with 8 points of a thread instead of 16."""

    max_length: int = 8192  # points of a row in shared memory
    column_points: int = 4096  # of a block of the longest columns
    block_points: int = 2048  # of other blocks: several fill a multiprocessor
    min_columns: int = 8  # of a block: accesses of 64 bytes
    min_part: int = 256  # points of a column, where a block has room for four
    max_thread_length: int = 16  # rows that take two passes, so that threads share accesses
    min_threads: int = 32
    max_threads: int = 512
    thread_points: int = 16
    largest_radix: int = 16
    max_register_prime: int = 61
    max_wide_register_prime: int = 43  # of complex128
    max_cached_roots: int = 4096  # of a table that stays in the cache of a multiprocessor
    overhead_registers: int = 24  # of a thread, besides its points
    min_registers: int = 64
    max_ctas: int = 32  # on a multiprocessor


TUNING = ThreadTuning()


def max_threads(target: Target) -> int:
    return max(target.block_size, min(target.max_block_size, TUNING.max_threads))


def largest_odd(dtype: DType, target: Target) -> int:
    """The largest prime with a butterfly in registers."""
    if target.static_shared:
        return 13
    wide = dt.real_of(dtype).itemsize > 4
    return TUNING.max_wide_register_prime if wide else TUNING.max_register_prime


def max_points(n: int, dtype: DType, target: Target) -> int:
    """Points of a block's shared memory, a power of two. Two blocks share a multiprocessor, unless
    a block's memory is all there is to know."""
    most = target.shared_bytes if target.static_shared else target.shared_bytes // 2
    loops = max(prime_factors(n), default=1) > largest_odd(dtype, target)
    points = 2
    while (1 + loops) * dtype.itemsize * padded(2 * points) <= most:
        points *= 2
    return min(points, TUNING.thread_points * max_threads(target))


def step_lengths(n: int, dtype: DType, target: Target, columns: bool) -> tuple[int, ...]:
    """Of rows, or of columns: adjacent ones of a block fill whole accesses."""
    points = max_points(n, dtype, target)
    part = min(TUNING.column_points, points) // TUNING.min_columns
    part = max(part, min(TUNING.min_part, points // 4), 2)
    whole = points // TUNING.min_columns if columns else min(TUNING.max_length, points)
    if n <= max(whole, part if columns else 2):
        return (n,)
    return split(n, part)


def step_radices(n: int, alone: bool, largest_odd: int) -> tuple[int, ...]:
    """Radices of passes, large primes last: loops over these read each operand many times, from
    shared memory. Of short rows they are smaller: with a pass more, adjacent threads access
    adjacent points."""
    largest = 4 if alone and n <= TUNING.max_thread_length else TUNING.largest_radix
    large = [p for p in prime_factors(n) if p > largest]
    smooth = n // math.prod(large)
    radices = (*reversed(even_factors(smooth, largest)), *large)
    return radices if is_in_registers(radices[0], largest_odd) else (1, *radices)


def all_step_lengths(n: int, dtype: DType, target: Target) -> tuple[int, ...]:
    """The lengths of steps of rows and of columns."""
    found = (step_lengths(n, dtype, target, columns) for columns in (False, True))
    return tuple(dict.fromkeys(length for lengths in found for length in lengths))


@functools.lru_cache(maxsize=4096)
def rotation_lengths(n: int, dtype: DType, target: Target) -> tuple[int, ...]:
    """L of all factors exp(-2 pi i k / L) of the passes of a transform."""
    found: dict[int, None] = {}
    for columns in (False, True):
        lengths = step_lengths(n, dtype, target, columns)
        whole = n
        for length in lengths:
            rest = whole
            for r in step_radices(length, len(lengths) == 1, largest_odd(dtype, target)):
                if rest > r:
                    found[rest] = None
                rest //= r
            whole //= length
    return tuple(found)


def low_roots(length: int) -> int:
    """B of factors of this length: of exponents a B + b, those of a B and of b are in tables."""
    return 1 << (length.bit_length() + 1) // 2


def block_width(length: int, rows: int, columns: bool, dtype: DType, target: Target) -> int:
    """Transforms of a block, a power of two."""
    most = max_points(length, dtype, target)
    width = 1
    while 2 * width <= rows and 2 * width * length <= most:
        if (not columns or width >= TUNING.min_columns) and (
            2 * width * length > TUNING.block_points
        ):
            break
        width *= 2
    return width


def block_threads(points: int, target: Target) -> int:
    threads = TUNING.min_threads
    while threads < max_threads(target) and TUNING.thread_points * threads < points:
        threads *= 2
    return threads


def resident_blocks(block: ThreadBlock, dtype: DType) -> int:
    """Blocks that a multiprocessor's registers and shared memory have room for."""
    words, threads = dt.real_of(dtype).itemsize // 4, block.threads
    points = max(block.points_of_thread if block.in_place else 0, *block.radices)
    registers = words * max(2 * points + TUNING.overhead_registers, TUNING.min_registers)
    shared = dtype.itemsize * padded(block.length * block.width) + 1024
    rooms = SM_REGISTERS // (threads * registers), SM_SHARED_BYTES // shared, SM_THREADS // threads
    return max(1, min(*rooms, TUNING.max_ctas))
