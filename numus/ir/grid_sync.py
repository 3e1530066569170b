"""Atomics, warp multisplit, and flags in global memory between blocks: inside lanes loops; scratch
of the blocks of a cluster: outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from numus.ir.expressions import Buffer, Expr, const
from numus.ir.statements import Stmt


@dataclass(eq=False, slots=True)
class AtomicAdd(Stmt):
    """Relaxed atomic add of a 32- or 64-bit integer or float, without a result."""

    buffer: Buffer
    index: Expr
    value: Expr


@dataclass(eq=False, slots=True)
class WarpMultisplit(Stmt):
    """Warp-level multisplit (Ashkiani et al. 2016): `rank` is the number of earlier keys of the
    same bucket, counted in `counters[offset + bucket]`.

    `offset` is uniform in a warp and differs between warps. All threads of the block take part.
    """

    counters: Buffer  # scratch, of 32-bit integers
    offset: Expr
    bucket: Expr
    bits: int  # of bucket
    rank: Expr  # a variable of the counters' dtype


@dataclass(eq=False, slots=True)
class ClusterGather(Stmt):
    """`count` elements from `start` on of `src` of every block of a cluster
    (`Kernel.cluster_blocks`), in the order of the blocks, to `dst` of each. Both are scratch of a
    constant size. All threads of these blocks wait for each other, and see what each has stored to
    `src`; then until all have read, unless steps use parts of it `in_turns`: a `ClusterBarrier`
    follows the last one."""

    dst: Buffer
    src: Buffer
    count: int
    start: Expr = field(default_factory=lambda: const(0))
    in_turns: bool = False


@dataclass(eq=False, slots=True)
class ClusterBarrier(Stmt):
    """All threads of the blocks of a cluster wait for each other; or, with `begun`, until all of
    them run, so that their scratch may be stored to."""

    begun: bool = False


@dataclass(eq=False, slots=True)
class ClusterStore(Stmt):
    """A store to scratch of a constant size of a block of the cluster, by its number in that
    (`rank`): after a `ClusterBarrier` of begun blocks, and seen after another one. Inside lanes
    loops."""

    buffer: Buffer
    rank: Expr
    index: Expr
    value: Expr


# Only on targets with forward progress (`Target.forward_progress`): blocks of a grid start in order
# and run on, so a block may spin on flags of earlier ones.


@dataclass(eq=False, slots=True)
class SetFlag(Stmt):
    """Store of a non-zero flag word; the buffer is zeroed before the kernel. It orders no other
    memory access; with `release`, all that threads of the block stored before their last barrier
    is seen by who acquires it."""

    flags: Buffer  # of 32- or 64-bit unsigned integers
    index: Expr
    value: Expr
    release: bool = False


@dataclass(eq=False, slots=True)
class FlagRead:
    """The first `count` flag words from `index`, `stride` apart; further results are 0."""

    index: Expr
    stride: int
    count: Expr
    results: list[Expr]  # variables of the flags' dtype


@dataclass(eq=False, slots=True)
class SpinWait(Stmt):
    """Spin until all words of `reads` are non-zero, and bind them. They are set by earlier blocks,
    or by this one before this statement. `acquire`: see `SetFlag.release`."""

    flags: Buffer
    reads: list[FlagRead]
    acquire: bool = False
