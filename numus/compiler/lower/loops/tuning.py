"""Tuning numbers of pointwise kernels and reductions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopTuning:
    """Measured on one H200, and on 2-core Neoverse N1 and x86-64 (Cascade Lake class) machines."""

    # All kernels.
    small_elements: int = 1 << 13  # up to which a kernel's code is kept short
    block_elements: int = 1 << 15  # of a block of a cheap SIMD kernel, at least
    elements_per_thread: int = 16  # loads in flight that hide their latency
    blocks_per_sm: int = 16  # that saturate it while some of them wait
    concat_max_parts: int = 32  # of one kernel: code and compile time grow
    max_vector_bytes: int = 16  # of an access
    max_vector_elements: int = 8

    # Pointwise.
    tile: int = 64  # side of a SIMD tile over two loops with strided accesses
    simt_tile: int = 32  # of threads, an element each
    tiled_min_extent: int = 32  # of both loops
    light_block: tuple[int, int] = (256, 1)  # threads, and vectors of each, for little arithmetic
    heavy_block: tuple[int, int] = (128, 2)  # for more
    light_max_ops: int = 24
    gather_block: tuple[int, int] = (128, 2)  # where loads wait for indices
    unaligned_block: tuple[int, int] = (128, 8)  # threads, and elements of each
    unaligned_short_block: tuple[int, int] = (256, 4)  # of several rows
    gather_warp_vectors: int = 8  # of a thread, where a warp takes a row
    unaligned_max_ops: int = 100
    unaligned_min_extent: int = 8
    arithmetic_min_ops: int = 150  # of kernels that arithmetic bounds,
    arithmetic_block: tuple[int, int] = (128, 4)  # half as many vectors in float64,
    arithmetic_vector_bytes: int = 8  # of their accesses, or two elements;
    several_min_ops: int = 250  # from which on twice as many vectors share constants,
    long_min_ops: int = 400  # from which on an access has two elements at most
    unrolled_max_ops: int = 1000  # of kernels whose code is written once for each vector
    row_vectors_used: float = 0.7  # of the lanes of a block, at least
    row_vectors_max_itemsize: int = 2  # bytes; threads have several rows of wider elements
    row_vectors_of_thread: int = 2  # rows, which read their common operands once,
    row_vectors_shared: int = 4  # times as many of these as of others, at least
    multi_row_max_ops: int = 160  # of all rows that a block takes at a time
    multi_row_vector: int = 4  # elements
    horizontal_threads: int = 256  # of a block, an element each
    transpose_tile: int = 64
    transpose_blocks_per_sm: int = 4  # that shared memory has room for, at least
    transpose_in_flight: int = 16  # elements of a thread,
    transpose_heavy_ops: int = 32  # fewer from so many operations on

    # Rows and columns.
    thread_row: int = 16  # elements: up to which a thread takes a row by itself
    scattered_elements: int = 1 << 16  # in all, below which access order does not matter,
    scattered_min_row: int = 32  # for rows of so many
    row_max_threads: int = 256  # of a block: several rows at a time hide barriers
    reread_row_max_threads: int = 1024  # few rows at a time stay in L1 between passes
    cached_rows_per_sm: int = 2  # that shared memory has room for, at least
    few_columns: int = 16  # up to which threads go on with the next rows,
    few_columns_max_row: int = 64  # if those have so few elements
    column_vector_bytes: int = 8  # of a thread's adjacent columns: more would be fewer threads

    result_bytes_ahead: int = 1 << 11  # that stores along lanes prefetch on some CPUs
    lines_ahead: int = 4  # whose stores a SIMD loop prefetches,
    far_line_bytes: int = 1 << 10  # where it is as far to the next line

    # SIMD operations: of a lane's load with gaps, of elements that other rows have brought into a
    # cache or not, of the reduction of a row's lanes, of its vectors, and of an expensive function
    gap_load_cached: float = 0.6
    gap_load: float = 1.5
    lanes_reduce: float = 16.0
    row_vector: float = 4.0
    expensive_op: float = 16.0

    # Sub-warp rows.
    subwarp_max_row: int = 256  # elements
    subwarp_multistage_max_row: int = 128  # longer ones are worth a whole warp
    subwarp_elements_per_thread: int = 8

    # Register-resident rows.
    register_row_bytes: int = 64  # of a thread, where it can choose
    register_max_elements: int = 32  # of a thread
    register_max_words: int = 48  # of a thread that live from stage to stage
    register_few_threads: int = 512  # more leave too few blocks on an SM
    register_slack: float = 1.1  # room over the row's size that costs nothing
    packed_rows: int = 8  # of a block of one warp each, where they are many and
    packed_row_max_bytes: int = 5 << 10  # memory moves each while a block starts

    # Sums of columns beside register-resident rows.
    column_sums_max_words: int = 96  # of a thread that live from stage to stage, with the sums
    column_sums_warps_per_sm: int = 12  # that registers have room for
    column_sums_packed: int = 4  # rows of a block of one warp each

    # Windows.
    window_min_elements: int = 1 << 14  # fewer are not worth code of their own
    window_max_taps: int = 32  # of a reduction
    window_min_loads: int = 3  # of one operand
    window_max_loads: int = 128
    window_max_step: int = 4  # elements from thread to thread
    window_threads: int = 256  # of a block
    window_rows: int = 2  # of a thread, which shares the taps that they have in common

    # Broadcast reductions.
    pair_min_elements: int = 1 << 20  # in all, below which there is little to gain
    pair_min_terms: int = 32  # of a split, and of half a row
    pair_threads: int = 128  # of a block
    pair_threads_per_sm: int = 1536  # that hide the latency of arithmetic
    pair_max_unrolled: int = 16  # elements of the short axes of a row
    pair_matrix_rows: int = 32  # of a block, one after the other
    pair_max_simd_row: int = 1 << 10  # terms, whose operands stay in L1 for many rows,
    pair_min_reads: int = 16  # by at least this many of them, that are transposed before;
    pair_vectors: int = 4  # of such rows side by side
    pair_max_registers: int = 72  # of the operands and results of a thread's rows

    # Split reductions.
    split_elements: int = 1 << 15  # of a row, for one SIMD block
    serial_elements: int = 1 << 10  # summed one after the other: bounds the rounding error
    block_terms: int = 64  # of a lane's row, summed before they are added in float64,
    block_unroll: int = 8  # in pairs;
    block_vectors: int = 512  # of a row along lanes;
    nested_block_terms: int = 128  # of each lane, where the innermost loop is short;
    nested_min_terms: int = 1 << 11  # where there is only one, which stores
    few_rows: int = 16
    simt_max_row: int = 1 << 20  # elements: longer rows are split even if there are enough
    splits_per_sm: tuple[int, int] = (8, 64)  # at least and at most: a short tail, cheap combining
    split_bytes: int = 1 << 18  # in between
    two_pass_split_bytes: int = 1 << 16  # of splits that stay in L1 for a second pass
    column_splits_per_sm: int = 4
    load_elements: int = 4  # that a thread reads at once
    busy_fraction: float = 0.8  # of the best: larger blocks are fewer
    combine_rows: int = 1024  # of a SIMD block
    combine_loads: tuple[int, int] = (16, 32)  # in flight of a thread: of few, of many partials
    combine_min_unroll: int = 4  # of each of several reductions
    combine_tile_rows: int = 8  # a sector of float32, of one block
    combine_tile_threads: int = 256
    combine_min_splits: int = 32  # of fewer, a thread combines a row

    # Column reductions.
    column_block: int = 2048  # columns whose accumulators are in a scratch line
    column_unroll: int = 4  # cheap lines at a time: accumulators are loaded less often,
    # or more, of so many bytes at least, where they are added to in float64
    column_sum_unroll: tuple[tuple[int, int], ...] = ((16, 1024), (8, 512))
    column_pack_used: float = 0.94  # of threads: packing more rows is not worth combining them

    # Shifted-data variance.
    sample_fraction: int = 16  # 1/n of a column is the sample


TUNING = LoopTuning()

WARP = 32  # threads
