"""Stages of a TMA pipeline in shared memory: tiles of A and B, full and empty mbarriers."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.codegen.llvm.builder import IRBuilder

CONSUMER_THREADS = 256  # two warpgroups; the producer warp follows


class Stages:
    """Addresses of the stages of a mainloop in its scratch buffer (a shared-memory pointer)."""

    def __init__(self, t: IRBuilder, s: ir.WgmmaMainloop, scratch: str) -> None:
        self.t, self.count = t, s.stages
        self.a_bytes = s.a.tile_mn * s.a.row_bytes
        self.b_bytes = s.b.tile_mn * s.b.row_bytes
        self.a = t.new(f"ptrtoint ptr addrspace(3) {scratch} to i32")
        self.b = self._offset(self.a, s.stages * self.a_bytes)
        self.full = self._offset(self.b, s.stages * self.b_bytes)
        self.empty = self._offset(self.full, 8 * s.stages)

    def _offset(self, base: str, nbytes: int) -> str:
        return self.t.new(f"add i32 {base}, {nbytes}")

    def address(self, base: str, nbytes: int, stage: str) -> str:
        """The element of a stage in an array of `nbytes` elements."""
        return self.t.new(f"add i32 {base}, {self.t.new(f'mul i32 {stage}, {nbytes}')}")

    def at(self, k_tile: str) -> tuple[str, str]:
        """(stage, phase parity) of a k tile (i32)."""
        t = self.t
        phase = t.new(f"udiv i32 {k_tile}, {self.count}")
        return t.new(f"urem i32 {k_tile}, {self.count}"), t.new(f"and i32 {phase}, 1")

    def previous(self, k_tile: str) -> str:
        """The stage of the k tile before."""
        return self.at(self.t.new(f"sub i32 {k_tile}, 1"))[0]

    def advance(self) -> None:
        """To the next k tile."""


class PersistentStages(Stages):
    """Stages that run on from one output tile to the next: counted in local variables."""

    def __init__(self, t: IRBuilder, s: ir.WgmmaMainloop, scratch: str) -> None:
        super().__init__(t, s, scratch)
        self.stage, self.phase = t.alloca("i32"), t.alloca("i32")
        for slot in (self.stage, self.phase):
            t.do(f"store i32 0, ptr {slot}")

    def at(self, k_tile: str) -> tuple[str, str]:
        stage, phase = (self.t.new(f"load i32, ptr {slot}") for slot in (self.stage, self.phase))
        return stage, phase

    def previous(self, k_tile: str) -> str:
        stage, _ = self.at(k_tile)
        first = self.t.new(f"icmp eq i32 {stage}, 0")
        return self.t.new(f"select i1 {first}, i32 {self.count - 1}, i32 {self._offset(stage, -1)}")

    def advance(self) -> None:
        t = self.t
        stage, phase = self.at("")
        last = t.new(f"icmp eq i32 {stage}, {self.count - 1}")
        following = t.new(f"select i1 {last}, i32 0, i32 {self._offset(stage, 1)}")
        t.do(f"store i32 {following}, ptr {self.stage}")
        phase = t.new(f"xor i32 {phase}, {t.new(f'zext i1 {last} to i32')}")
        t.do(f"store i32 {phase}, ptr {self.phase}")


@dataclass(frozen=True, slots=True)
class Role:
    """Warp specialisation of a persistent kernel: consumer or producer."""

    is_consumer: bool
    stages: PersistentStages
