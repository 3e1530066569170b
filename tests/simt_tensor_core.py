"""Tensor-core operations (mma.sync, wgmma) of the SIMT interpreter."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import simt_expressions
from simt_async import GARBAGE, Bindings

from numus import ir

CONSUMER_THREADS = 256
_LANES = np.arange(32)


def _wide(dtype: Any) -> Any:
    return np.int64 if dtype.is_integer else np.float64


def _elements(words: Any, dtype: Any) -> Any:
    """The elements of words, along a new last axis."""
    raw = np.ascontiguousarray(words)[..., None]
    return raw.view(dtype.np) if dtype.itemsize < raw.dtype.itemsize else raw


def mma_sync(block: Any, s: ir.MmaSync, c: Any) -> None:
    threads = block.kernel.block_size
    assert len(c.ids) == threads, "a divergent MMA"
    a_tile, b_tile = (
        [_elements(np.broadcast_to(block.value(e, c), threads), s.dtype) for e in side]
        for side in (s.a, s.b)
    )
    per, warps = a_tile[0].shape[-1], threads // 32
    a = np.zeros((warps, 16, 8 * per), _wide(s.dtype))
    b = np.zeros((warps, 8 * per, 8), _wide(s.dtype))
    line, word = (_LANES // 4)[:, None], (_LANES % 4)[:, None]
    for j, x in enumerate(a_tile):
        k = (word + j // 2 * 4) * per + np.arange(per)
        a[:, line + j % 2 * 8, k] = x.reshape(warps, 32, per)
    for j, y in enumerate(b_tile):
        k = (word + j * 4) * per + np.arange(per)
        b[:, k, line] = y.reshape(warps, 32, per)
    for warp, product in enumerate(a @ b):
        _add(block, s.accumulators, 32 * warp, product)


def _add(block: Any, accumulators: list[ir.Register], first: int, product: Any) -> None:
    """Add 16 rows to the accumulators of a warp."""
    for i, register in enumerate(accumulators):
        values = block.registers[register][first : first + 32]
        values[...] = values + product[_places(i)]


@functools.cache
def _places(number: int) -> tuple[Any, Any]:
    """(rows, columns) of an accumulator in the threads of a warp."""
    return _LANES // 4 + number // 2 % 2 * 8, _LANES % 4 * 2 + number // 4 * 8 + number % 2


@functools.cache
def _swizzled(k_major: bool, rows: int, depth: int, itemsize: int) -> Any:
    """The offset of every element of a swizzled tile, as [row][k]."""
    chunk = 16 // itemsize
    row, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    inner = k % chunk if k_major else row % chunk
    mn, at = ir.var("mn"), ir.var("k")
    env = {mn: row if k_major else row - inner, at: k - inner if k_major else k}
    offset = ir.swizzle(k_major, mn, at, depth, itemsize)
    return simt_expressions.evaluate(offset, None, Bindings(env), {}) + inner


def wgmma_tile(block: Any, s: ir.WgmmaTile, c: Any) -> None:
    dtype = s.scratch.dtype
    itemsize = dtype.itemsize
    depth = ir.SWIZZLE_BYTES // itemsize

    def tile(start: int, rows: int, k_major: bool, own: Any = dtype) -> Any:
        at = start + _swizzled(k_major, rows, depth, itemsize)
        found = block.memory[s.scratch][at]
        return (found if own is dtype else found.view(own.np)).astype(_wide(own))

    if s.accumulate is not None and int(block.value(s.accumulate, c)) == 0:
        _clear(block, s.accumulators)
    a_tile = tile(0, s.m, s.k_major[0])
    b_tile = tile(s.m * depth, s.n, s.k_major[1], s.b_dtype or dtype)
    _wgmma(block, s.accumulators, a_tile, b_tile)


def mainloop(block: Any, s: ir.WgmmaMainloop, c: Any) -> None:
    begin, k_tiles = (int(block.value(e, c)) for e in (s.k_start, s.k_tiles))

    def tile(o: ir.TmaTensor) -> Any:
        if o.im2col is not None:
            return _pixels(block, o, o.im2col, begin, k_tiles, c)
        depth = o.row_bytes // o.buffer.dtype.itemsize
        start = begin * o.row_bytes // ir.SWIZZLE_BYTES
        inner, outer, batches = (int(block.value(e, c)) for e in o.extents)
        row_stride, batch_stride = (int(block.value(e, c)) for e in o.strides)
        first, batch = int(block.value(o.mn_offset, c)), int(block.value(o.batch, c))
        assert 0 <= batch < batches
        assert row_stride * o.buffer.dtype.itemsize % 16 == 0
        assert o.k_major or o.buffer.dtype.itemsize == 2, "only 16-bit tiles may be MN-major"
        out = np.zeros((o.tile_mn, k_tiles * depth), _wide(o.buffer.dtype))
        memory, origin = block.memory[o.buffer], block.origins[o.buffer]
        ks, begins = np.arange(start, start + k_tiles * depth), first
        if o.origin is not None:
            origins = []
            for number in range(k_tiles):
                here = type(c)({**c.env, o.k_tile: np.int64(number)}, c.ids)
                origins.append([int(block.value(e, here)) for e in o.origin])
            quick, slow = np.repeat(np.array(origins).reshape(-1, 2), depth, axis=0).T
            ks, begins = (quick, slow) if o.k_major else (slow, quick)
            ks = ks + np.arange(k_tiles * depth) % depth
        for i in range(o.tile_mn):
            line = np.full_like(ks, begins) + i
            quick, slow = (ks, line) if o.k_major else (line, ks)
            inside = (quick < inner) & (slow < outer) & (quick >= 0) & (slow >= 0)
            at = origin + batch * batch_stride * (batches > 1) + slow * row_stride + quick
            out[i, inside] = memory[at[inside]]
        return out

    block.memory[s.scratch].view(np.uint8)[:] = GARBAGE
    if s.zero_init:
        assert k_tiles > 0
        _clear(block, s.accumulators)
    a_tiles, b_tiles = tile(s.a), tile(s.b)
    if s.metadata is not None:
        a_tiles = _unpacked(block, s, a_tiles, begin, c)
    if s.scales is None:
        _wgmma(block, s.accumulators, a_tiles, b_tiles)
        return
    threads = np.arange(CONSUMER_THREADS)
    for number in range(k_tiles):
        at = {s.scales.lane: threads, s.scales.k_tile: np.int64(number)}
        here = type(c)({**c.env, **at}, threads)
        rows = [np.broadcast_to(block.value(e, here), threads.shape) for e in s.scales.rows]
        depth = ir.SWIZZLE_BYTES // s.b.buffer.dtype.itemsize
        along = slice(number * depth, (number + 1) * depth)
        before = [block.registers[r].copy() for r in s.accumulators]
        _clear(block, s.accumulators)
        _wgmma(block, s.accumulators, a_tiles[:, along], b_tiles[:, along])
        for i, (register, old) in enumerate(zip(s.accumulators, before, strict=True)):
            part = block.registers[register][:CONSUMER_THREADS] * rows[i // 2 % 2]
            block.registers[register] = old
            block.registers[register][:CONSUMER_THREADS] += part


def _pixels(block: Any, o: ir.TmaTensor, i: ir.Im2col, begin: int, k_tiles: int, c: Any) -> Any:
    """The tiles of TMA's im2col mode as (row, k): the box of pixels is walked one by one."""
    dtype, axes = o.buffer.dtype, len(i.steps)
    depth = o.row_bytes // dtype.itemsize
    channels, *space, images = (int(block.value(e, c)) for e in i.extents)
    strides = [int(block.value(e, c)) for e in i.strides]
    low, high, most = {2: (-128, 127, 256), 3: (-16, 15, 32)}[axes]
    assert all(low <= x <= high for x in (*i.lower, *i.upper))
    assert all(1 <= x <= 8 for x in i.steps)
    assert all(s * dtype.itemsize % 16 == 0 for s in strides)
    ends = [n + upper for n, upper in zip(space, i.upper, strict=True)]  # exclusive
    memory, origin = block.memory[o.buffer], block.origins[o.buffer]

    def part(at: list[int], rows: int) -> Any:
        """Pixels of adjacent windows, by channels."""
        channel, first, image, taps = at[0], at[1 : 1 + axes], at[1 + axes], at[2 + axes :]
        assert all(0 <= tap < most for tap in taps)
        inside = zip(first, i.lower, ends, strict=True)
        assert all(lower <= x < end for x, lower, end in inside), "a tile outside its box"
        out, where = np.zeros((rows, depth), _wide(dtype)), list(first)
        quick = channel + np.arange(depth)
        for row in range(rows):
            pixel = [x + tap for x, tap in zip(where, taps, strict=True)]
            if image < images and all(0 <= x < n for x, n in zip(pixel, space, strict=True)):
                linear = sum(x * s for x, s in zip((*pixel, image), strides, strict=True))
                present = quick < channels
                out[row, present] = memory[origin + linear + quick[present]]
            for axis in range(axes):
                where[axis] += i.steps[axis]
                if where[axis] < ends[axis]:
                    break
                where[axis] = i.lower[axis]
            else:
                image += 1
        return out

    tiles = []
    for number in range(k_tiles):
        here = type(c)({**c.env, i.k: np.int64(begin + number * depth)}, c.ids)
        at = [[int(block.value(e, here)) for e in one] for one in i.at]
        if o.k_major:
            tiles.append(part(at[0], o.tile_mn))
        else:  # rows are k
            tiles.append(np.concatenate([part(one, depth) for one in at], axis=1).T)
    return np.concatenate(tiles, axis=1)


def _unpacked(block: Any, s: ir.WgmmaMainloop, stored: Any, begin: int, c: Any) -> Any:
    """The tile of an A with 2:4 sparsity, with its zeros."""
    m = s.metadata
    assert m is not None
    assert s.a.k_major
    assert s.a.row_bytes == ir.SPARSE_SWIZZLE_BYTES
    numbers = (m.first_byte, m.rows, m.row_bytes, s.a.mn_offset)
    first_byte, rows, row_bytes, first = (int(block.value(e, c)) for e in numbers)
    assert not first_byte % m.load_bytes
    assert not row_bytes % m.load_bytes
    assert not block.value(s.k_tiles, c) * 8 % m.load_bytes
    assert not begin % 64
    row = np.minimum(first + np.arange(s.a.tile_mn), rows - 1)[:, None]
    group = np.arange(stored.shape[1] // 2)
    at = first_byte + row * row_bytes + begin // 8 + group // 2
    nibble = block.memory[m.buffer][block.origins[m.buffer] + at] >> group % 2 * 4
    out = np.zeros((len(stored), group.size, 4), stored.dtype)
    for i, position in enumerate((nibble & 3, nibble >> 2 & 3)):
        np.put_along_axis(out, position.astype(np.int64)[..., None], stored[:, i::2, None], axis=2)
    return out.reshape(len(stored), -1)


def _clear(block: Any, accumulators: list[ir.Register]) -> None:
    for register in accumulators:
        block.registers[register] = np.zeros(block.kernel.block_size, register.dtype.np)


def _wgmma(block: Any, accumulators: list[ir.Register], a_tile: Any, b_tile: Any) -> None:
    product = a_tile @ b_tile.T
    own, band = 2 * len(accumulators), len(a_tile) // 16  # columns of a warp, warps along m
    assert product.size == 16 * own * (CONSUMER_THREADS // 32)
    for warp in range(CONSUMER_THREADS // 32):
        n, m = divmod(warp, band)
        part = product[16 * m : 16 * m + 16, own * n : own * n + own]
        _add(block, accumulators, 32 * warp, part)


STATEMENTS = (ir.MmaSync, ir.WgmmaTile, ir.WgmmaMainloop)


def statement(block: Any, s: ir.Stmt, c: Any) -> None:
    if isinstance(s, ir.MmaSync):
        mma_sync(block, s, c)
        return
    assert c.ids is None, "a divergent wgmma"
    if isinstance(s, ir.WgmmaTile):
        wgmma_tile(block, s, c)
    elif isinstance(s, ir.WgmmaMainloop):
        mainloop(block, s, c)


def target_of(target: Any, capability: int) -> Any:
    """The interpreter's target with an NVIDIA GPU's capabilities."""
    import dataclasses

    from numus.runtime.cuda.properties import capability_fields

    fields = {**capability_fields(capability), "forward_progress": False}
    return dataclasses.replace(target, block_size=256, shared_bytes=200 << 10, **fields)
