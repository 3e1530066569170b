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


def _shared_type(ty: str) -> str:
    return "u32" if ty == "bool" else ty


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

    def write(self, s: ir.BlockReduce | ir.BlockScan) -> None:
        x = self.x
        # some drivers get bool in workgroup memory wrong: it is stored as u32
        types = [_shared_type(x.type_of(r.dtype)) for r in s.registers]
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

    def _merged(
        self, s: ir.BlockReduce | ir.BlockScan, left: list[str], right: list[str]
    ) -> list[str]:
        """Two states merged, in the scope of the caller."""
        x = self.x
        for side, names in ((s.left, left), (s.right, right)):
            for var, name, r in zip(side, names, s.registers, strict=True):
                x.bind(x.values, var, x.let(self._from_shared(r, name)))
        pairs = zip(s.merged, s.registers, strict=True)
        return [x.let(self._to_shared(r, x.cast_to(e, x.type_of(r.dtype)))) for e, r in pairs]

    def _to_shared(self, register: ir.Register, value: str) -> str:
        return f"u32({value})" if self.x.type_of(register.dtype) == "bool" else value

    def _from_shared(self, register: ir.Register, word: str) -> str:
        return f"({word} != 0u)" if self.x.type_of(register.dtype) == "bool" else word

    def _store_states(self, s: ir.BlockReduce | ir.BlockScan, arrays: list[str]) -> None:
        for array, register in zip(arrays, s.registers, strict=True):
            self.x.emit(
                f"{array}[thread] = {self._to_shared(register, self.x.registers[register])};"
            )
        self.x.emit("workgroupBarrier();")

    def _tree_reduce(self, s: ir.BlockReduce, arrays: list[str]) -> list[str]:
        """A tree over workgroup memory: each step halves the active threads."""
        x = self.x
        self._store_states(s, arrays)
        x.open(f"for (var half: u32 = {self.threads // 2}u; half > 0u; half >>= 1u)")
        x.open("if (thread < half)")
        sides = [[f"{array}[{at}]" for array in arrays] for at in ("thread", "thread + half")]
        for array, new in zip(arrays, self._merged(s, *sides), strict=True):
            x.emit(f"{array}[thread] = {new};")
        x.close()
        x.emit("workgroupBarrier();")
        x.close()
        totals = self._named(s, [f"{array}[0]" for array in arrays])
        x.emit("workgroupBarrier();")
        return totals

    def _named(self, s: ir.BlockReduce | ir.BlockScan, words: list[str]) -> list[str]:
        return [
            self.x.let(self._from_shared(r, w)) for r, w in zip(s.registers, words, strict=True)
        ]

    def _reduce_by_subgroups(self, s: ir.BlockReduce, arrays: list[str]) -> list[str]:
        """Butterfly shuffles in each subgroup, then over the subgroups' results; in order where one
        subgroup cannot hold those."""
        x = self.x
        self.uses_subgroups = True
        states = [x.fresh() for _ in arrays]
        for state, register in zip(states, s.registers, strict=True):
            x.emit(f"var {state} = {self._to_shared(register, x.registers[register])};")
        self._butterfly(s, states, "sub_size")
        x.open("if (sub_thread == 0u)")
        for array, state in zip(arrays, states, strict=True):
            x.emit(f"{array}[sub_group] = {state};")
        x.close()
        self.x.emit("workgroupBarrier();")
        x.open("if (sub_groups <= sub_size && (sub_groups & (sub_groups - 1u)) == 0u)")
        for array, state in zip(arrays, states, strict=True):
            x.emit(f"{state} = {array}[sub_thread & (sub_groups - 1u)];")
        self._butterfly(s, states, "sub_groups")
        x.close()
        x.open("else")
        for array, state in zip(arrays, states, strict=True):
            x.emit(f"{state} = {array}[0];")
        x.open("for (var other: u32 = 1u; other < sub_groups; other += 1u)")
        parts = [f"{array}[other]" for array in arrays]
        for state, new in zip(states, self._merged(s, states, parts), strict=True):
            x.emit(f"{state} = {new};")
        x.close()
        x.close()
        x.emit("workgroupBarrier();")
        return self._named(s, states)

    def _butterfly(self, s: ir.BlockReduce, states: list[str], count: str) -> None:
        """All-reduce over `count` consecutive threads of a subgroup by XOR shuffles."""
        x = self.x
        x.open(f"for (var half: u32 = {count} >> 1u; half > 0u; half >>= 1u)")
        others = [f"subgroupShuffleXor({state}, half)" for state in states]
        for state, new in zip(states, self._merged(s, states, others), strict=True):
            x.emit(f"{state} = {new};")
        x.close()

    def _scan(self, s: ir.BlockScan, arrays: list[str]) -> list[str]:
        """Exclusive scan (Hillis & Steele 1986)."""
        x = self.x
        self._store_states(s, arrays)
        x.open(f"for (var reach: u32 = 1u; reach < {self.threads}u; reach <<= 1u)")
        names = [x.fresh() for _ in arrays]
        for name, array in zip(names, arrays, strict=True):
            x.emit(f"var {name} = {array}[thread];")
        x.open("if (thread >= reach)")
        sides = [[f"{array}[{at}]" for array in arrays] for at in ("thread - reach", "thread")]
        for name, new in zip(names, self._merged(s, *sides), strict=True):
            x.emit(f"{name} = {new};")
        x.close()
        x.emit("workgroupBarrier();")
        for name, array in zip(names, arrays, strict=True):
            x.emit(f"{array}[thread] = {name};")
        x.emit("workgroupBarrier();")
        x.close()
        for array, register, start in zip(arrays, s.registers, s.initial, strict=True):
            first = x.cast_to(start, x.type_of(register.dtype))
            before = self._from_shared(register, f"{array}[select(thread - 1u, 0u, thread == 0u)]")
            x.emit(f"{x.registers[register]} = select({before}, {first}, thread == 0u);")
        totals = self._named(s, [f"{array}[{self.threads - 1}]" for array in arrays])
        x.emit("workgroupBarrier();")
        return totals
