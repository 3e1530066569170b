"""Schedules of compressed sparse rows, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable

from numus.compiler.lower.schedule import Candidate, family
from numus.compiler.lower.sparse.basis import lower_basis
from numus.compiler.lower.sparse.counting import lower_counting
from numus.compiler.lower.sparse.gpu_dotted import computes_dotted, lower_dotted
from numus.compiler.lower.sparse.gpu_product import (
    computes_even_rows,
    computes_rows,
    computes_templates,
    lower_columns,
    lower_streams,
    lower_templates,
)
from numus.compiler.lower.sparse.gustavson import (
    lower_numeric,
    lower_numeric_threads,
    lower_numeric_warps,
    lower_symbolic,
    lower_symbolic_warps,
)
from numus.compiler.lower.sparse.product import (
    ProductProblem,
    lower_blocks,
    lower_runs,
    lower_tasks,
    lower_threads,
)
from numus.compiler.lower.sparse.semi_structured import lower_semi_structured
from numus.compiler.lower.sparse.solve import (
    lower_solve,
    lower_solve_levels,
    lower_supernodes,
)


def _computes(*ops: str) -> Callable[[ProductProblem], bool]:
    return lambda p: p.val.op in ops


_SYMBOLIC = ("csr_product_counts", "csr_product_columns")


def _has_runs(p: ProductProblem) -> bool:
    return p.val.op == "csr_matmul" and p.val.params == "runs"


def _has_blocks(p: ProductProblem) -> bool:
    return p.val.op == "csr_matmul" and p.val.params == "blocks"


def _by_warps(*ops: str) -> Callable[[ProductProblem], bool]:
    """On GPUs whose blocks may be of one warp."""
    return lambda p: p.val.op in ops and p.target.subgroup_size > 0


lower_sparse = family(
    ProductProblem,
    Candidate("runs of rows", lower_runs, _has_runs),
    Candidate("blocks of columns", lower_blocks, _has_blocks),
    Candidate("rows per task", lower_tasks, _computes("csr_matmul", "csr_extreme")),
    Candidate("dense accumulator", lower_numeric, _computes("csr_masked_matmul")),
    Candidate("bitmap of a row", lower_symbolic, _computes(*_SYMBOLIC)),
    Candidate("counting sort", lower_counting, _computes("group", "csr_transpose")),
    Candidate("row by row", lower_solve, _computes("csr_solve")),
    Candidate("column by column", lower_supernodes, _computes("supernodal_solve")),
    Candidate("blocks of a basis", lower_basis, _computes("basis_products", "basis_remainder")),
)

# Other patterns than those of products are made on the CPU.
lower_sparse_gpu = family(
    ProductProblem,
    Candidate("rows by templates", lower_templates, computes_templates),
    Candidate("rows by templates with a dot product", lower_dotted, computes_dotted),
    Candidate("vectors of columns", lower_columns, computes_even_rows),
    Candidate("streamed rows", lower_streams, computes_rows),
    Candidate("element per thread", lower_threads, _computes("csr_matmul", "csr_extreme")),
    Candidate("warp per row", lower_numeric_warps, _by_warps("csr_masked_matmul")),
    Candidate("warp per row", lower_symbolic_warps, _by_warps(*_SYMBOLIC)),
    Candidate("element per thread", lower_numeric_threads, _computes("csr_masked_matmul")),
    Candidate("level by level", lower_solve_levels, _computes("csr_solve")),
    Candidate("wgmma.sp", lower_semi_structured, _computes("semi_structured_matmul")),
)
