"""Thread blocks of GPU attention: the rows that one keeps, and the rows that it streams."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr
from numus.kernels.attention.operands import BackwardOperands, Operands
from numus.kernels.common.smem_tiles import Matrix, Vector

_NONE = ir.const(0)
FwdOperands = Operands[Matrix]
BwdOperands = BackwardOperands[Matrix, Vector]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Compile-time tile sizes."""

    threads: int
    rows: int  # queries (backward: or keys) of a thread block
    block: int  # keys (or queries) of a main-loop iteration
    head_dim: int  # rounded up
    value_dim: int
    persistent: bool = False  # a block per multiprocessor loops over the tasks


@dataclass(slots=True)
class Sizes:
    """Launch arguments."""

    queries: Expr
    keys: Expr
    head_dim: Expr  # of the backward pass
    value_dim: Expr
    tasks: Expr  # of each matrix
    all_tasks: Expr = _NONE  # of a persistent kernel
    blocks: Expr = _NONE
    rounds: Expr = _NONE


class ForwardBlock:
    """Queries from `first` to `last`, which see `visible` keys."""

    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: FwdOperands) -> None:
        self.tiling, self.s, self.o, self.dtype = tiling, s, o, dtype
        self.place(g // s.tasks, g % s.tasks)

    def place(self, n: Expr, task: Expr) -> None:
        self.n, s = n, self.s
        # longest blocks first: under a causal mask, later queries see more keys
        self.first = (s.tasks - 1 - task) * self.tiling.rows
        self.last = ir.minimum(self.first + self.tiling.rows, s.queries)
        self.visible = ir.minimum(s.keys, self.last) if self.o.causal else s.keys


class BackwardBlock:
    """A resident tile of queries (for dq) or keys (for dk and dv), and streamed blocks of the
    others."""

    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: BwdOperands) -> None:
        self.tiling, self.s, self.o, self.dtype = tiling, s, o, dtype
        self.by_query, self.needs_ds = "q" in o.writes, o.needs_ds
        self.n, task = g // s.tasks, g % s.tasks
        self.resident, self.streamed = ("k", "v"), ("q", "g")
        self.rows, self.streamed_rows = s.keys, s.queries
        if self.by_query:
            # longest blocks first: under a causal mask, later queries (and earlier keys)
            task = s.tasks - 1 - task
            self.resident, self.streamed = self.streamed, self.resident
            self.rows, self.streamed_rows = self.streamed_rows, self.rows
        self.first = task * tiling.rows
        self.end = ir.minimum(self.first + tiling.rows, self.rows)
        if self.by_query and o.causal:
            self.streamed_rows = ir.minimum(s.keys, self.end)
        self.columns = {"q": tiling.head_dim, "k": tiling.head_dim}
        self.columns |= {"v": tiling.value_dim, "g": tiling.value_dim}
        self.scratch: list[ir.Buffer] = []

    def scaled(self, name: str, value: Expr) -> Expr:
        """An element of the gradient of q, k or v from its accumulator."""
        return value if name == "v" else value * self.o.scale
