"""Warp specialisation: warpgroups of a block that run different code, and the mbarriers between
them (Bauer et al. 2011, CudaDMA; as in CUTLASS's producers and consumers).

Only on targets with `Target.wgmma`.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus.ir.expressions import Buffer, Expr
from numus.ir.statements import Stmt

WARPGROUP = 128  # threads


@dataclass(frozen=True, slots=True)
class Mbarriers:
    """Barriers in shared memory, by the arrivals that complete a phase of each."""

    buffer: Buffer  # scratch, an int64 each
    arrivals: tuple[int, ...]


@dataclass(eq=False, slots=True)
class WarpRoles(Stmt):
    """All but the last warpgroup of a block consume, the last one produces, at the same time.

    A lanes loop, a block-wide barrier or a shuffle in one of the bodies is of its threads alone.
    `registers` are those of a thread of each role, unless they are the kernel's. Outside lanes
    loops; the last statement of a block.
    """

    consumers: list[Stmt]
    producers: list[Stmt]
    barriers: Mbarriers
    registers: tuple[int, int] | None = None

    @property
    def body(self) -> list[Stmt]:
        return [*self.consumers, *self.producers]


@dataclass(eq=False, slots=True)
class Arrive(Stmt):
    """An arrival of each warpgroup; with `copies`, two of each thread: at once, and when all
    asynchronous copies that it began are complete. Outside lanes loops."""

    barriers: Mbarriers
    index: Expr
    copies: bool = False


@dataclass(eq=False, slots=True)
class AwaitPhase(Stmt):
    """Wait until the phase of this parity is complete. Outside lanes loops."""

    barriers: Mbarriers
    index: Expr
    parity: Expr


@dataclass(eq=False, slots=True)
class WarpgroupTurn(Stmt):
    """Begin or end a turn, which the consumer warpgroups take one after the other, the first one
    first: a hint, so that tensor cores work for one while another computes. All take as many."""

    begins: bool
