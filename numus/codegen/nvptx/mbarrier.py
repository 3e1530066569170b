"""mbarriers in shared memory, by their 32-bit addresses; where `blocks` exceeds 1, those of all
blocks of a cluster are arrived at."""

from __future__ import annotations

from collections.abc import Iterable

from numus.codegen.nvptx import cluster
from numus.codegen.nvptx.context import KernelContext


def initialise(r: KernelContext, barriers: Iterable[tuple[str, int]], blocks: int = 1) -> None:
    """By the first thread, for the whole CTA: (address, arrivals that complete a phase)."""
    with r.t.conditional(r.is_first, "first"):
        for address, arrivals in barriers:
            r.asm(
                f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", "r,~{memory}", f"i32 {address}"
            )
        r.asm("fence.mbarrier_init.release.cluster;", "~{memory}")
    if blocks > 1:
        cluster.barrier(r)
    else:
        r.barrier()


def wait(r: KernelContext, address: str, parity: str) -> None:
    """Spin until the phase of this parity completes."""
    text = (
        "{ .reg .pred over; again: mbarrier.try_wait.parity.shared::cta.b64 over, [$0], $1; "
        "@over bra passed; bra again; passed: }"
    )
    r.asm(text, "r,r,~{memory}", f"i32 {address}, i32 {parity}")


def arrive(r: KernelContext, address: str, condition: str, blocks: int = 1) -> None:
    """Of threads for which the condition holds, at the mbarrier of each block."""
    flag = r.t.new(f"zext i1 {condition} to i32")
    if blocks > 1:
        text = (
            "{ .reg .pred tells; .reg .b32 there; setp.ne.b32 tells, $1, 0; "
            "mapa.shared::cluster.u32 there, $0, $2; "
            "@tells mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        )
        for rank in range(blocks):
            r.asm(text, "r,r,r,~{memory}", f"i32 {address}, i32 {flag}, i32 {rank}")
        return
    text = (
        "{ .reg .pred tells; setp.ne.b32 tells, $1, 0; "
        "@tells mbarrier.arrive.shared::cta.b64 _, [$0]; }"
    )
    r.asm(text, "r,r,~{memory}", f"i32 {address}, i32 {flag}")


def arrive_with_copies(r: KernelContext, address: str) -> None:
    """Twice: at once, and when the copies that the thread began are complete."""
    text = (
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0]; "
        "mbarrier.arrive.shared::cta.b64 _, [$0];"
    )
    r.asm(text, "r,~{memory}", f"i32 {address}")
