"""Products by the units of NVIDIA GPUs, as the imitated machine does them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tile_machine import GARBAGE

from numus import ir

WORKERS = 256


def _wide(dtype: Any) -> Any:
    return np.int64 if dtype.is_integer else np.float64


def _elements(words: Any, dtype: Any) -> Any:
    """Words side by side as the elements they hold, along a new last axis."""
    raw = np.ascontiguousarray(words)[..., None]
    return raw.view(dtype.np) if dtype.itemsize < raw.dtype.itemsize else raw


def warp_product(group: Any, s: ir.MmaSync, c: Any) -> None:
    threads = group.kernel.block_size
    assert len(c.ids) == threads, "some threads are missing"
    left, right = (
        [_elements(np.broadcast_to(group.value(e, c), threads), s.dtype) for e in side]
        for side in (s.a, s.b)
    )
    per = left[0].shape[-1]
    for first in range(0, threads, 32):
        a = np.zeros((16, 8 * per), _wide(s.dtype))
        b = np.zeros((8 * per, 8), _wide(s.dtype))
        for t in range(32):
            line, word = t // 4, t % 4
            for j, x in enumerate(left):
                k = (word + j // 2 * 4) * per
                a[line + j % 2 * 8, k : k + per] = x[first + t]
            for j, y in enumerate(right):
                k = (word + j * 4) * per
                b[k : k + per, line] = y[first + t]
        _add(group, s.accumulators, first, a @ b)


def _add(group: Any, sums: list[ir.Register], first: int, product: Any) -> None:
    """16 rows of a product to the sums of the 32 threads that have them."""
    for t in range(32):
        for i, register in enumerate(sums):
            row = t // 4 + i // 2 % 2 * 8
            column = t % 4 * 2 + i // 4 * 8 + i % 2
            held = group.registers[register]
            held[first + t] = (held[first + t] + product[row, column]).astype(held.dtype)


def tile_slice(group: Any, s: ir.WgmmaTile, c: Any) -> None:
    dtype = s.scratch.dtype
    itemsize = dtype.itemsize
    depth, run = ir.SWIZZLE_BYTES // itemsize, 16 // itemsize

    def tile(start: int, lines: int, along: bool) -> Any:
        out = np.zeros((lines, depth), _wide(dtype))
        for line in range(lines):
            for k in range(depth):
                lead = (line, k - k % run) if along else (line - line % run, k)
                place = ir.swizzle(along, *map(ir.const, lead), depth, itemsize)
                where = int(group.value(place, c)) + (k % run if along else line % run)
                out[line, k] = group.memory[s.scratch][start + where]
        return out

    if s.accumulate is not None and int(group.value(s.accumulate, c)) == 0:
        _clear(group, s.accumulators)
    left = tile(0, s.m, s.k_major[0])
    _tiles(group, s.accumulators, left, tile(s.m * depth, s.n, s.k_major[1]))


def tile_sum(group: Any, s: ir.WgmmaMainloop, c: Any) -> None:
    start, slices = (int(group.value(e, c)) for e in (s.k_start, s.k_tiles))
    depth = ir.SWIZZLE_BYTES // s.a.buffer.dtype.itemsize

    def tile(o: ir.TmaTensor) -> Any:
        neighbours, lines, matrices = (int(group.value(e, c)) for e in o.extents)
        step, far = (int(group.value(e, c)) for e in o.strides)
        first, matrix = int(group.value(o.mn_offset, c)), int(group.value(o.batch, c))
        assert 0 <= matrix < matrices
        assert step * o.buffer.dtype.itemsize % 16 == 0
        assert o.k_major or o.buffer.dtype.itemsize == 2, "tile units turn nothing else"
        out = np.zeros((o.tile_mn, slices * depth), _wide(o.buffer.dtype))
        memory, origin = group.memory[o.buffer], group.origins[o.buffer]
        ks, begins = np.arange(start, start + slices * depth), first
        if o.origin is not None:
            places = []
            for number in range(slices):
                here = type(c)({**c.env, o.k_tile: np.int64(number)}, c.ids)
                places.append([int(group.value(e, here)) for e in o.origin])
            quick, slow = np.repeat(np.array(places).reshape(-1, 2), depth, axis=0).T
            ks, begins = (quick, slow) if o.k_major else (slow, quick)
            ks = ks + np.arange(slices * depth) % depth
        for i in range(o.tile_mn):
            line = np.full_like(ks, begins) + i
            quick, slow = (ks, line) if o.k_major else (line, ks)
            inside = (quick < neighbours) & (slow < lines) & (quick >= 0) & (slow >= 0)
            at = origin + matrix * far * (matrices > 1) + slow * step + quick
            out[i, inside] = memory[at[inside]]
        return out

    group.memory[s.scratch].view(np.uint8)[:] = GARBAGE
    if s.zero_init:
        assert slices > 0
        _clear(group, s.accumulators)
    _tiles(group, s.accumulators, tile(s.a), tile(s.b))


def _clear(group: Any, sums: list[ir.Register]) -> None:
    for register in sums:
        group.registers[register] = np.zeros(group.kernel.block_size, register.dtype.np)


def _tiles(group: Any, sums: list[ir.Register], left: Any, right: Any) -> None:
    product = left @ right.T
    own, band = 2 * len(sums), len(left) // 16  # columns of a warp, warps below each other
    assert product.size == 16 * own * (WORKERS // 32)
    for warp in range(WORKERS // 32):
        across, down = divmod(warp, band)
        part = product[16 * down : 16 * down + 16, own * across : own * across + own]
        _add(group, sums, 32 * warp, part)


KINDS = (ir.MmaSync, ir.WgmmaTile, ir.WgmmaMainloop)


def statement(group: Any, s: ir.Stmt, c: Any) -> None:
    if isinstance(s, ir.MmaSync):
        warp_product(group, s, c)
        return
    assert c.ids is None, "threads may not be all here"
    if isinstance(s, ir.WgmmaTile):
        tile_slice(group, s, c)
    elif isinstance(s, ir.WgmmaMainloop):
        tile_sum(group, s, c)


def facts_of(target: Any, capability: int) -> Any:
    """The imitated machine's target with an NVIDIA GPU's units."""
    import dataclasses

    from numus.runtime.cuda.properties import capability_fields

    fields = {**capability_fields(capability), "forward_progress": False}
    return dataclasses.replace(target, block_size=256, shared_bytes=200 << 10, **fields)
