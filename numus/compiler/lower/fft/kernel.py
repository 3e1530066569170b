"""Kernels of the steps of a transform, by SIMD lanes or by threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from numus import ir
from numus.compiler.lower.axis import ZERO
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.fft.problem import FftProblem, Inner
from numus.compiler.lower.fft.steps import Step, steps_of
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex
from numus.kernels.fft.chirp import chirp_transform
from numus.kernels.fft.radices import is_in_registers
from numus.kernels.fft.shared_memory import ThreadBlock, real_shared_stockham, shared_stockham
from numus.kernels.fft.stockham import NONE, Block, Pass, Transform, stockham
from numus.kernels.fft.thread_steps import resident_blocks


@dataclass(frozen=True)
class Blocking:
    """How a step is divided into blocks."""

    width: int  # inner rows of a block
    threads: int  # of a block; 0: lanes are SIMD
    vector: int
    radices: tuple[int, ...]
    largest_odd: int  # radix of a butterfly in registers


def _kernel(p: FftProblem, step: Step, blocking: Blocking, name: str) -> LoweredKernel:
    """One step; a step of lone rows may take several as adjacent ones."""
    small = p.is_small
    e = Emitter(p.layouts, small, block_size=blocking.threads)
    e.static = bool(blocking.threads)  # they divide by sizes, and add strides to addresses
    outer, inner = step.outer, step.inner
    width, batch = blocking.width, p.val.shape[:-1]
    lone = inner == 1 and width > 1
    along_axis = lone and step.length == p.length and len(batch) > 1
    along_axis = along_axis and batch[p.inner_axis] >= width
    adjacent = lone and p.lane_axis is not None
    adjacent = adjacent and (along_axis or p.lane_axis == len(batch) - 1)
    if lone:
        inner = batch[p.inner_axis] if along_axis else outer
        outer //= inner
    g = ir.var("g")
    blocks = -(-inner // width)
    row, number = (g, ZERO) if blocks == 1 else divmod(g, e.scalar_arg(blocks))
    if outer == 1:
        row, number = ZERO, (g if blocks > 1 else ZERO)
    start = ir.mul(number, const(width))
    read, write = step.access(e)

    def at(w: Transform) -> tuple[Expr, Inner]:
        first = ir.add(start, w[0])
        if step.inner == 1 and not along_axis:
            return (ir.add(first, w[1]) if lone else row), NONE
        return row, (first, w[1])

    first_roots = None
    if blocking.radices[0] == p.layout.first_radix and step.length == p.length:
        first_roots = partial(p.first_root, e)

    def get(w: Transform, i: Expr) -> Complex:
        return read(*at(w), i)

    def get_next(w: Transform, i: Expr) -> Complex:
        return read(ir.add(row, const(1)), NONE, i)

    def put(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        return write(*at(w), k, z)

    def root(k: Expr) -> Complex:
        return p.twiddle(e, k, step.length)

    def rotation(stage: Pass, group: Expr, w: Transform, k: Expr) -> list[Complex]:
        column = ir.mul(group, const(step.columns))
        if step.are_outer:
            column = ir.add(column, ir.irem(row, const(step.columns)))
        elif step.columns > 1:
            column = ir.add(column, ir.add(*at(w)[1]))
        length = points // stage.stride * step.columns
        return p.thread_twiddle(e, ir.mul(column, k), length)

    points = p.layout.convolution or step.length
    shape = (points, blocking.radices, blocking.largest_odd, p.part, width)
    e.static = False  # any number of rows
    count, is_full = ir.minimum(ir.sub(e.dim(inner), start), const(width)), inner % width == 0
    e.static = bool(blocking.threads)
    operand_is_paired = step.is_paired or p.operand_is_paired
    if blocking.threads:
        block = ThreadBlock(
            *shape,
            *(count, is_full, blocking.threads),
            in_place=all(is_in_registers(r, blocking.largest_odd) for r in blocking.radices),
            transforms_first=(adjacent, False) if lone else step.adjacent,
            interleaved=not lone or adjacent,
            columns=step.columns > 1,
            paired=(operand_is_paired, p.result_is_paired),
        )
        if p.layout.convolution:
            chirp, spectrum = (partial(p.table_part, e, what) for what in ("chirp", "spectrum"))
            tables = (chirp, spectrum, rotation)
            body, scratch = chirp_transform(block, step.length, *tables, get, put)
        elif p.is_real:
            real_root = partial(p.real_root, e)
            body, scratch = real_shared_stockham(block, root, rotation, real_root, get, put)
        else:
            body, scratch = shared_stockham(block, root, rotation, get, put)
        e.resident_blocks = resident_blocks(block, p.complex_dtype)
    else:
        simd_block = Block(
            *shape,
            *(count, is_full, blocking.vector),
            (p.lane_axis is None, True) if lone else (not step.adjacent[0], False),
            e.scalar_arg,
            p.result_is_paired,
            first_roots,
            partial(p.real_root, e) if p.is_real else None,
            fetches=p.is_streamed,
            next_read=get_next if step.inner == width == 1 else None,
        )
        body, scratch = stockham(simd_block, root, get, put)
    e.scratch += scratch
    e.static = False  # any number of blocks
    return e.grid_kernel(name, g, body, outer * blocks, p.group.notes)


def lower_steps(
    problem: FftProblem,
    lengths: tuple[int, ...],
    blocking: Callable[[FftProblem, Step], Blocking],
) -> Kernels:
    """A kernel for each step."""
    steps = steps_of(problem, lengths)
    names = ["fft"] if len(steps) == 1 else [f"fft_step{i}" for i in range(len(steps))]
    return [
        _kernel(problem, s, blocking(problem, s), name)
        for s, name in zip(steps, names, strict=True)
    ]
