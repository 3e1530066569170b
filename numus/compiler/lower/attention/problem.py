"""The attention problem that all schedules share, and how they read and write its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower import output_views
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.attention.operands import BackwardOperands, Matrix, Operands, PerQuery, Score
from numus.target import Target


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """The forward pass (outputs "out", "lse" or both), or gradients by operand ("q", "k", "v")."""

    outputs: dict[str, Value]

    @staticmethod
    def of(group: FusionGroup, layouts: Layouts, target: Target) -> AttentionProblem:
        forward = {"attention": "out", "attention_lse": "lse"}
        outputs = {forward[v.op]: v for v in group.members if v.op in forward}
        for v in group.members:
            if v.op == "attention_grad" and output_views.output_views(group, v):
                outputs[v.params.which] = v
        return AttentionProblem(group, layouts, target, outputs)

    def only(self, *names: str) -> AttentionProblem:
        """The part of the problem with these outputs."""
        return replace(self, outputs={x: self.outputs[x] for x in names if x in self.outputs})

    @property
    def value(self) -> Value:
        return self.outputs.get("out") or next(iter(self.outputs.values()))

    @property
    def is_forward(self) -> bool:
        return self.group.kind == "attention"

    @property
    def notes(self) -> tuple[str, ...]:
        if self.is_forward:
            return self.group.notes
        return tuple(f"{v.op} of {v.params.which}" for v in self.outputs.values())

    @property
    def inputs(self) -> dict[str, Value]:
        return dict(zip(self.value.params.names, self.value.inputs, strict=True))

    @property
    def causal(self) -> bool:
        return bool(self.value.params.causal)

    @property
    def batch(self) -> int:
        """Matrices: batch × heads."""
        return self.inputs["q"].shape[0]

    @property
    def dims(self) -> tuple[int, int, int, int]:
        """Queries, keys, head_dim and value_dim: 0 where the log-sum-exp alone is computed."""
        _, queries, head_dim = self.inputs["q"].shape
        value_dim = 0 if list(self.outputs) == ["lse"] else self.inputs["v"].shape[2]
        return queries, self.inputs["k"].shape[1], head_dim, value_dim

    @property
    def score_operands(self) -> int:
        """Operands with an element for each score: bias, dropout mask."""
        return sum(name in self.inputs for name in ("bias", "keep"))

    @property
    def wgmma_dtype(self) -> DType | None:
        """Dtype of the operands, where wgmma multiplies it."""
        dtypes = {v.dtype for name, v in self.inputs.items() if name in tuple("qkvg")}
        halves = len(dtypes) == 1 and dtypes <= {dt.bfloat16, dt.float16}
        return dtypes.pop() if halves and self.target.wgmma else None


class AttentionKernel(Protocol):
    scratch: list[ir.Buffer]

    def body(self) -> list[Stmt]: ...


class Reader:
    """The inputs of an attention primitive by name, as functions of indices."""

    def __init__(self, problem: AttentionProblem, e: Emitter, dtype: DType) -> None:
        self.problem, self.inputs, self.e, self.dtype = problem, problem.inputs, e, dtype

    def element(self, name: str, *index: Expr, mask: Expr | None = None) -> Expr:
        x = self.inputs[name]
        found: Expr = self.e.value(x, _broadcast(x, index), mask)
        return found

    def value(self, name: str, *index: Expr, mask: Expr | None = None) -> Expr:
        return self.element(name, *index, mask=mask).cast(self.dtype)

    def matrix(self, name: str) -> Score:
        return lambda n, row, column: self.value(name, n, row, column)

    def per_query(self, name: str) -> Callable[[Expr, Expr, Expr], Expr]:
        return lambda n, i, mask: self.value(name, n, i, mask=mask)

    def store(self, output: str, index: tuple[Expr, ...], value: Expr) -> list[Stmt]:
        """Nothing, where that output is not asked for."""
        v = self.problem.outputs.get(output)
        if v is None:
            return []
        return output_views.store(self.e, self.problem.group, v, _broadcast(v, index), value)

    def kernel(self, name: str, k: AttentionKernel, grid: int) -> LoweredKernel:
        body = k.body()
        self.e.scratch += k.scratch
        return self.e.grid_kernel(name, ir.var("g"), body, grid, self.problem.notes)

    def write(self, output: str, n: Expr, row: Expr, column: Expr, value: Expr) -> list[Stmt]:
        return self.store(output, (n, row, column), value)

    def forward_operands(self, matrix: Callable[[str], Matrix]) -> Operands[Matrix]:
        return Operands(
            q=matrix("q"),
            k=matrix("k"),
            v=matrix("v") if "out" in self.problem.outputs else None,
            scale=self.value("scale"),
            bias=self.matrix("bias") if "bias" in self.inputs else None,
            keep=self.matrix("keep") if "keep" in self.inputs else None,
            write=partial(self.write, "out"),
            write_lse=lambda n, i, x: self.store("lse", (n, i), x),
            causal=self.problem.causal,
        )

    def backward_operands(
        self, matrix: Callable[[str], Matrix], per_query: Callable[[str], PerQuery]
    ) -> BackwardOperands[Matrix, PerQuery]:
        return BackwardOperands(
            q=matrix("q"),
            k=matrix("k"),
            v=matrix("v"),
            g=matrix("g"),
            scale=self.value("scale"),
            lse=per_query("lse"),
            delta=per_query("delta"),
            bias=self.matrix("bias") if "bias" in self.inputs else None,
            keep=self.matrix("keep") if "keep" in self.inputs else None,
            writes={name: partial(self.write, name) for name in self.problem.outputs},
            causal=self.problem.causal,
        )


def _broadcast(v: Value, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(ir.const(0) if n == 1 else i for n, i in zip(v.shape, index, strict=True))
