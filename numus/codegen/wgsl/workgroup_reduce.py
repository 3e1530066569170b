"""Threads that merge what they have in registers, by subgroups and memory that they share."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.codegen.wgsl.expressions import Values

# Arguments of a shader that merges by subgroups.
BUILTINS = (
    "@builtin(subgroup_invocation_id) sub_thread: u32",
    "@builtin(subgroup_size) sub_size: u32",
    "@builtin(subgroup_id) sub_group: u32",
    "@builtin(num_subgroups) sub_groups: u32",
)
_SHUFFLED = ("f32", "i32", "u32")


def _shared_type(ty: str) -> str:
    return "u32" if ty == "bool" else ty


class Across:
    """Writes `Combine`, `Scan` and reductions of lanes."""

    def __init__(
        self,
        x: Values,
        threads: int,
        shared_array: Callable[[str, int], str],
    ) -> None:
        self.x, self.threads, self.shared_array = x, threads, shared_array
        self.by_subgroups = False  # whether any merging was

    def reduce(self, e: ir.Expr) -> None:
        """Write a reduction of lanes, so that what it is part of finds it."""
        x = self.x
        op, register = e.attr
        left, right, total = (ir.var(name, e.dtype) for name in ("left", "right", "total"))
        merged = ir.make(op, e.dtype, (left, right))
        self.write(ir.BlockReduce([register], [left], [right], [merged], [total]))
        x.keep(e, x.values[total])

    def write(self, s: ir.BlockReduce | ir.BlockScan) -> None:
        x = self.x
        # memory that threads share holds no bool that every driver gets right: a word instead
        types = [_shared_type(x.type_of(r.dtype)) for r in s.registers]
        by_subgroups = x.target.subgroups and all(ty in _SHUFFLED for ty in types)
        arrays = [self.shared_array(ty, types[:i].count(ty)) for i, ty in enumerate(types)]
        if isinstance(s, ir.BlockScan):
            totals = self._scan(s, arrays)
        elif by_subgroups:
            totals = self._combine_subgroups(s, arrays)
        else:
            totals = self._combine(s, arrays)
        self._finish(s, totals)

    def _finish(self, s: ir.BlockReduce | ir.BlockScan, totals: list[str]) -> None:
        x = self.x
        x.forget(s.registers)
        for var, total in zip(s.results, totals, strict=True):
            x.remember(x.values, var, total)

    def _merged(
        self, s: ir.BlockReduce | ir.BlockScan, left: list[str], right: list[str]
    ) -> list[str]:
        """What two states come to, in the scope of the caller."""
        x = self.x
        for side, names in ((s.left, left), (s.right, right)):
            for var, name, r in zip(side, names, s.registers, strict=True):
                x.remember(x.values, var, x.new(self._own(r, name)))
        pairs = zip(s.merged, s.registers, strict=True)
        return [x.new(self._word(r, x.carried(e, x.type_of(r.dtype)))) for e, r in pairs]

    def _word(self, register: ir.Register, value: str) -> str:
        """A register's value as it is put into shared memory."""
        return f"u32({value})" if self.x.type_of(register.dtype) == "bool" else value

    def _own(self, register: ir.Register, word: str) -> str:
        """The reverse."""
        return f"({word} != 0u)" if self.x.type_of(register.dtype) == "bool" else word

    def _lay_out(self, s: ir.BlockReduce | ir.BlockScan, arrays: list[str]) -> None:
        for array, register in zip(arrays, s.registers, strict=True):
            self.x.do(f"{array}[thread] = {self._word(register, self.x.registers[register])};")
        self.x.do("workgroupBarrier();")

    def _combine(self, s: ir.BlockReduce, arrays: list[str]) -> list[str]:
        """Halves of the group, down to one thread: a fixed tree."""
        x = self.x
        self._lay_out(s, arrays)
        x.open(f"for (var half: u32 = {self.threads // 2}u; half > 0u; half >>= 1u)")
        x.open("if (thread < half)")
        sides = [[f"{array}[{at}]" for array in arrays] for at in ("thread", "thread + half")]
        for array, new in zip(arrays, self._merged(s, *sides), strict=True):
            x.do(f"{array}[thread] = {new};")
        x.close()
        x.do("workgroupBarrier();")
        x.close()
        totals = self._named(s, [f"{array}[0]" for array in arrays])
        x.do("workgroupBarrier();")
        return totals

    def _named(self, s: ir.BlockReduce | ir.BlockScan, words: list[str]) -> list[str]:
        return [self.x.new(self._own(r, w)) for r, w in zip(s.registers, words, strict=True)]

    def _combine_subgroups(self, s: ir.BlockReduce, arrays: list[str]) -> list[str]:
        """Halves of each subgroup by exchange; then halves of what the subgroups have, likewise: a
        fixed tree. Where one subgroup cannot hold that, it is merged in order."""
        x = self.x
        self.by_subgroups = True
        states = [x.name() for _ in arrays]
        for state, register in zip(states, s.registers, strict=True):
            x.do(f"var {state} = {self._word(register, x.registers[register])};")
        self._halves(s, states, "sub_size")
        x.open("if (sub_thread == 0u)")
        for array, state in zip(arrays, states, strict=True):
            x.do(f"{array}[sub_group] = {state};")
        x.close()
        self.x.do("workgroupBarrier();")
        x.open("if (sub_groups <= sub_size && (sub_groups & (sub_groups - 1u)) == 0u)")
        for array, state in zip(arrays, states, strict=True):
            x.do(f"{state} = {array}[sub_thread & (sub_groups - 1u)];")
        self._halves(s, states, "sub_groups")
        x.close()
        x.open("else")
        for array, state in zip(arrays, states, strict=True):
            x.do(f"{state} = {array}[0];")
        x.open("for (var other: u32 = 1u; other < sub_groups; other += 1u)")
        parts = [f"{array}[other]" for array in arrays]
        for state, new in zip(states, self._merged(s, states, parts), strict=True):
            x.do(f"{state} = {new};")
        x.close()
        x.close()
        x.do("workgroupBarrier();")
        return self._named(s, states)

    def _halves(self, s: ir.BlockReduce, states: list[str], count: str) -> None:
        """Merge the states of so many neighbouring threads of a subgroup; all of them know it."""
        x = self.x
        x.open(f"for (var half: u32 = {count} >> 1u; half > 0u; half >>= 1u)")
        others = [f"subgroupShuffleXor({state}, half)" for state in states]
        for state, new in zip(states, self._merged(s, states, others), strict=True):
            x.do(f"{state} = {new};")
        x.close()

    def _scan(self, s: ir.BlockScan, arrays: list[str]) -> list[str]:
        """Each thread merges with the one `reach` before it, which has merged as many already."""
        x = self.x
        self._lay_out(s, arrays)
        x.open(f"for (var reach: u32 = 1u; reach < {self.threads}u; reach <<= 1u)")
        names = [x.name() for _ in arrays]
        for name, array in zip(names, arrays, strict=True):
            x.do(f"var {name} = {array}[thread];")
        x.open("if (thread >= reach)")
        sides = [[f"{array}[{at}]" for array in arrays] for at in ("thread - reach", "thread")]
        for name, new in zip(names, self._merged(s, *sides), strict=True):
            x.do(f"{name} = {new};")
        x.close()
        x.do("workgroupBarrier();")
        for name, array in zip(names, arrays, strict=True):
            x.do(f"{array}[thread] = {name};")
        x.do("workgroupBarrier();")
        x.close()
        for array, register, start in zip(arrays, s.registers, s.initial, strict=True):
            first = x.carried(start, x.type_of(register.dtype))
            before = self._own(register, f"{array}[select(thread - 1u, 0u, thread == 0u)]")
            x.do(f"{x.registers[register]} = select({before}, {first}, thread == 0u);")
        totals = self._named(s, [f"{array}[{self.threads - 1}]" for array in arrays])
        x.do("workgroupBarrier();")
        return totals
