"""Expressions along one axis, as the lanes of a warp compute them: loads as vectors.

An element's expression is emitted once, at a variable place. Its loads of adjacent elements become
vector loads, and the expression is written out for each of them.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import AffineAnalysis
from numus.compiler.lower.emitter import Emitter
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.ir.substitution import substitute
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES
from numus.kernels.matmul.gpu.row_gemv import LoadVector

ZERO = const(0)


class VectorExpression:
    """The elements of a value with one axis longer than 1, whose extent is a multiple of `count`.

    Attributes:
        aligned: a condition for loads as vectors.
    """

    def __init__(self, e: Emitter, val: Value, count: int, name: str) -> None:
        self._at = e.variable(name, e.dim(max(val.shape)))
        index = tuple(self._at if n != 1 else ZERO for n in val.shape)
        self._element: Expr = e.value(val, index)
        self._widths: dict[Expr, int] = {}  # elements of a load
        analysis = AffineAnalysis(e)
        numbers = {slot.attr: n for n, slot in e.dims}
        self.aligned: Expr = const(True, dt.bool_)
        for load in dict.fromkeys(ir.walk(self._element, lambda x: True)):
            if load.op != "load" or len(load.args) > 1 or load.attr.dtype is dt.bool_:
                continue
            at = load.args[0]
            if (analysis.coefficients(at) or {}).get(self._at) != 1:
                continue
            first = substitute(at, {self._at: ZERO})
            if any(x.op not in _OF_SIZES for x in ir.walk(first, lambda x: True)):
                continue
            itemsize = load.attr.dtype.itemsize
            width = min(count, MAX_ACCESS_BYTES // itemsize)
            if width > 1 and ir.evaluate_size(first, numbers) % width == 0:
                self._widths[load] = width
                odd = ir.address(load.attr) & const(width * itemsize - 1)
                self.aligned = self.aligned & odd.eq(0)

    @property
    def is_load(self) -> bool:
        """An element is one that is loaded, and nothing else."""
        return self._element.op == "load"

    def load(
        self, out: list[Stmt], first: Expr, count: int, tag: str, vectorised: bool
    ) -> list[Expr]:
        """The elements from a position on, with statements that load what they need."""
        loaded: dict[Expr, list[Expr]] = {}
        for number, (load, width) in enumerate(self._widths.items() if vectorised else ()):
            begin = substitute(load.args[0], {self._at: first})
            names = [ir.var(f"{tag}_{number}_{u}", load.dtype) for u in range(count)]
            for u, name in enumerate(names):
                value = ir.load(load.attr, begin + u)
                out.append(ir.Let(name, value, vector=0 if u % width else width))
            loaded[load] = names
        return [
            substitute(self._element, {self._at: first + u, **{x: n[u] for x, n in loaded.items()}})
            for u in range(count)
        ]

    def loader(self, dtype: DType) -> LoadVector:
        """Loads of elements in a dtype, as names: several rows use each."""

        def load(out: list[Stmt], first: Expr, count: int, tag: str, vectors: bool) -> list[Expr]:
            found = self.load(out, first, count, tag, vectors)
            names = [ir.var(f"{tag}_{u}", dtype) for u in range(count)]
            out += ir.lets(names, [x.cast(dtype) for x in found])
            return names

        return load


_OF_SIZES = frozenset({"const", "scalar", "add", "sub", "mul"})
