"""Tuning numbers of fusion."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FusionTuning:
    """Measured on one H200, and on 2-core Neoverse N1 and x86-64 (Cascade Lake class) machines."""

    max_members: int = 64  # of a group
    max_expensive_members: int = 6  # exp, sin and the like; code to compile goes with them
    # Expressions of more code than this, in plain operations, are cut into pieces of at least ...
    max_code_size: int = 384
    min_piece_size: int = 96
    expensive_code_size: int = 8  # of exp, sin and the like
    expensive_piece_size: int = 24  # of these in a piece: they are most of what is compiled

    # Rows of several stages: enough of them to run in parallel, or short ones.
    multistage_min_rows: int = 16
    multistage_max_row: int = 1 << 16  # elements
    multistage_max_column: int = 1 << 10  # of a row that is a column, a few of which L2 holds

    # Column reductions keep nothing in registers. Those of more than so many elements a row, too
    # large for caches in all, need several blocks for every SM.
    column_min_row: int = 64
    column_min_elements: int = 1 << 16
    column_blocks_per_sm: int = 4
    strided_row_bytes: int = 12  # of shared memory for an element of a row with gaps

    # Large pointwise results that share only scalars, in one kernel.
    large_pointwise_elements: int = 1 << 16
    max_scalar_siblings: int = 6

    # Sums of columns beside reductions of rows.
    column_sums_min_columns: int = 256
    column_sums_max_columns: int = 2048
    column_sums_min_rows: int = 16  # for each multiprocessor
    column_sums_max_members: int = 3  # before others join

    # Elements of a large row, of which one is read ahead of a kernel that may overwrite the row.
    picked_row_elements: int = 64

    # Nested reductions, which are expressions of their terms.
    nested_max_terms: int = 256  # whose operands are kept in registers, or close to them
    nested_max_ops: int = 512  # of all terms
    nested_max_elements: int = 16  # of a row that a thread computes with one nested reduction
    nested_min_results: int = 1 << 18  # fewer are stored as quickly
    nested_max_users: int = 4  # that compute the terms, each for itself

    # Products with one vector, whose warps compute its reductions.
    row_statistic_max_elements: int = 1 << 13
    row_statistic_max_ops: int = 8  # values as long as the vector

    # Materialisation.
    max_index_maps: int = 8  # by which views read a value before it is stored: each copies its code
    wgmma_min_extent: int = 128  # of M, N and K, so that operands are worth relayout kernels
    attention_tile_rows: int = 64  # of a thread block: more rows are read by several
    scalar_max_users: int = 3  # kernels that compute an expensive scalar each for itself
    few_updates: int = 32  # of a scatter on GPUs, which are worth no kernel of their own
    sparse_reads: int = 2  # of an element by a sparse product, on average, before it is stored
    slow_repeats: int = 256  # rows for each of which a vector of divisions is computed again
    slow_vector_repeats: int = 64  # by which GPUs read an element of a vector of divisions,
    slow_vector_min_elements: int = 1 << 20  # in all, before it is stored
    # operations that are recomputed rather than stored, by the number of operands in memory
    recompute_max_ops: dict[int, int] = field(default_factory=lambda: {1: 5, 2: 4})
    recomputed_op_cost: int = 6  # plain operations that exp and the like count as, where
    cpu_recomputed_min_bytes: int = 8 << 20  # values are so large that CPUs wait for memory
    load_cost: int = 12  # plain operations that cost more than a load,
    gpu_load_cost: int = 32  # and where threads wait for memory anyway


TUNING = FusionTuning()
