"""Workgroup reductions and scans: fixed trees over subgroup shuffles and workgroup memory."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.codegen.wgsl.expressions import Expressions

SUBGROUP_BUILTINS = (
    "@builtin(subgroup_invocation_id) sub_thread: u32",
    "@builtin(subgroup_size) sub_size: u32",
    "@builtin(subgroup_id) sub_group: u32",
    "@builtin(num_subgroups) sub_groups: u32",
)
_SHUFFLED = ("f32", "i32", "u32")
Collective = ir.BlockReduce | ir.BlockScan


class WorkgroupReduce:
    """Writes `BlockReduce`, `BlockScan` and reductions of lanes."""

    def __init__(
        self, x: Expressions, threads: int, shared_array: Callable[[str, int], str]
    ) -> None:
        self.x, self.threads, self.shared_array = x, threads, shared_array
        self.uses_subgroups = False

    def reduce(self, e: ir.Expr) -> None:
        """Write a reduction of lanes ahead of the statement that contains it."""
        x = self.x
        op, register = e.attr
        left, right, total = (ir.var(name, e.dtype) for name in ("left", "right", "total"))
        merged = ir.make(op, e.dtype, (left, right))
        self.write(ir.BlockReduce([register], [left], [right], [merged], [total]))
        x.memoise(e, x.values[total])

    def write(self, s: Collective) -> None:
        x = self.x
        # some drivers get bool in workgroup memory wrong: it is stored as u32
        types = [x.type_of(r.dtype).replace("bool", "u32") for r in s.registers]
        by_subgroups = x.target.subgroups and all(ty in _SHUFFLED for ty in types)
        arrays = [self.shared_array(ty, types[:i].count(ty)) for i, ty in enumerate(types)]
        if isinstance(s, ir.BlockScan):
            totals = self._scan(s, arrays)
        elif by_subgroups:
            totals = self._reduce_by_subgroups(s, arrays)
        else:
            totals = self._tree_reduce(s, arrays)
        x.invalidate(s.registers)
        for var, total in zip(s.results, totals, strict=True):
            x.bind(x.values, var, total)

    def _merged(self, s: Collective, left: list[str], right: list[str]) -> list[str]:
        """Two states merged, in the scope of the caller."""
        x = self.x
        for var, name in zip((*s.left, *s.right), (*left, *right), strict=True):
            x.bind(x.values, var, x.let(self._from_shared(var, name)))
        return [x.let(self._to_shared(e, x.cast_to(e, x.type_of(e.dtype)))) for e in s.merged]

    def _to_shared(self, e: ir.Expr | ir.Register, value: str) -> str:
        return f"u32({value})" if self.x.type_of(e.dtype) == "bool" else value

    def _from_shared(self, e: ir.Expr | ir.Register, word: str) -> str:
        return f"({word} != 0u)" if self.x.type_of(e.dtype) == "bool" else word

    def _own(self, s: Collective) -> list[str]:
        return [self._to_shared(r, self.x.registers[r]) for r in s.registers]

    def _assign(self, to: list[str], values: list[str], index: str = "", keyword: str = "") -> None:
        at = f"[{index}]" if index else ""
        for name, value in zip(to, values, strict=True):
            self.x.emit(f"{keyword}{name}{at} = {value};")

    def _barrier(self) -> None:
        self.x.emit("workgroupBarrier();")

    def _totals(self, s: Collective, words: list[str]) -> list[str]:
        pairs = zip(s.registers, words, strict=True)
        return [self.x.let(self._from_shared(r, word)) for r, word in pairs]

    def _tree_reduce(self, s: ir.BlockReduce, arrays: list[str]) -> list[str]:
        """A tree over workgroup memory: each step halves the active threads."""
        x = self.x
        self._assign(arrays, self._own(s), "thread")
        self._barrier()
        with x.block(f"for (var half: u32 = {self.threads // 2}u; half > 0u; half >>= 1u)"):
            with x.block("if (thread < half)"):
                sides = (_elements(arrays, at) for at in ("thread", "thread + half"))
                self._assign(arrays, self._merged(s, *sides), "thread")
            self._barrier()
        totals = self._totals(s, _elements(arrays, "0"))
        self._barrier()
        return totals

    def _reduce_by_subgroups(self, s: ir.BlockReduce, arrays: list[str]) -> list[str]:
        """Butterfly shuffles in each subgroup, then over the subgroups' results; in order where one
        subgroup cannot hold those."""
        x = self.x
        self.uses_subgroups = True
        states = [x.fresh() for _ in arrays]
        self._assign(states, self._own(s), keyword="var ")
        self._butterfly(s, states, "sub_size")
        with x.block("if (sub_thread == 0u)"):
            self._assign(arrays, states, "sub_group")
        self._barrier()
        with x.block("if (sub_groups <= sub_size && (sub_groups & (sub_groups - 1u)) == 0u)"):
            self._assign(states, _elements(arrays, "sub_thread & (sub_groups - 1u)"))
            self._butterfly(s, states, "sub_groups")
        with x.block("else"):
            self._assign(states, _elements(arrays, "0"))
            with x.block("for (var other: u32 = 1u; other < sub_groups; other += 1u)"):
                self._assign(states, self._merged(s, states, _elements(arrays, "other")))
        self._barrier()
        return self._totals(s, states)

    def _butterfly(self, s: ir.BlockReduce, states: list[str], count: str) -> None:
        """All-reduce over `count` consecutive threads of a subgroup by XOR shuffles."""
        with self.x.block(f"for (var half: u32 = {count} >> 1u; half > 0u; half >>= 1u)"):
            others = [f"subgroupShuffleXor({state}, half)" for state in states]
            self._assign(states, self._merged(s, states, others))

    def _scan(self, s: ir.BlockScan, arrays: list[str]) -> list[str]:
        """Exclusive scan (Hillis & Steele 1986)."""
        x = self.x
        self._assign(arrays, self._own(s), "thread")
        self._barrier()
        with x.block(f"for (var reach: u32 = 1u; reach < {self.threads}u; reach <<= 1u)"):
            names = [x.fresh() for _ in arrays]
            self._assign(names, _elements(arrays, "thread"), keyword="var ")
            with x.block("if (thread >= reach)"):
                sides = (_elements(arrays, at) for at in ("thread - reach", "thread"))
                self._assign(names, self._merged(s, *sides))
            self._barrier()
            self._assign(arrays, names, "thread")
            self._barrier()
        previous = _elements(arrays, "select(thread - 1u, 0u, thread == 0u)")
        for word, register, start in zip(previous, s.registers, s.initial, strict=True):
            first = x.cast_to(start, x.type_of(register.dtype))
            before = self._from_shared(register, word)
            x.emit(f"{x.registers[register]} = select({before}, {first}, thread == 0u);")
        totals = self._totals(s, _elements(arrays, str(self.threads - 1)))
        self._barrier()
        return totals


def _elements(arrays: list[str], index: str) -> list[str]:
    return [f"{array}[{index}]" for array in arrays]
