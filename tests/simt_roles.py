"""Warp specialisation of the SIMT interpreter: each role runs in a thread of its own."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import simt_async

from numus import ir

TIMEOUT = 60  # seconds: a deadlock


class Mbarrier:
    """Phases that complete after a number of arrivals."""

    def __init__(self, arrivals: int, changed: threading.Condition) -> None:
        self.arrivals, self.changed = arrivals, changed
        self.arrived = self.phases = 0

    def arrive(self, count: int) -> None:
        with self.changed:
            self.arrived += count
            assert self.arrived <= self.arrivals, "more arrivals than a phase takes"
            if self.arrived == self.arrivals:
                self.arrived, self.phases = 0, self.phases + 1
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        assert parity in (0, 1)
        with self.changed:
            # the phase before the first one has parity 1
            assert self.changed.wait_for(lambda: self.phases % 2 != parity, TIMEOUT), "a deadlock"


def run(block: Any, s: ir.WarpRoles, c: Any) -> None:
    changed = threading.Condition()
    barriers = [Mbarrier(n, changed) for n in s.barriers.arrivals]
    consumers = block.threads - ir.WARPGROUP
    problems: list[BaseException] = []

    def role(body: list[ir.Stmt], threads: int) -> threading.Thread:
        own = copy.copy(block)
        own.threads, own.mbarriers = threads, barriers
        own.pipeline = simt_async.Pipeline(own)
        context = type(c)(dict(c.env))

        def go() -> None:
            try:
                with np.errstate(all="ignore"):
                    own.block(body, context)
            except BaseException as problem:
                problems.append(problem)

        return threading.Thread(target=go)

    running = [role(s.consumers, consumers), role(s.producers, ir.WARPGROUP)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if problems:
        raise problems[0]


def statement(block: Any, s: ir.Stmt, c: Any) -> None:
    assert c.ids is None, "divergent warp roles"
    if isinstance(s, ir.WarpRoles):
        run(block, s, c)
    elif isinstance(s, ir.Arrive):
        if s.copies:
            block.pipeline.complete()
        count = 2 * block.threads if s.copies else block.threads // ir.WARPGROUP
        block.mbarriers[int(block.value(s.index, c))].arrive(count)
    elif isinstance(s, ir.AwaitPhase):
        block.mbarriers[int(block.value(s.index, c))].wait(int(block.value(s.parity, c)))


STATEMENTS = (ir.WarpRoles, ir.Arrive, ir.AwaitPhase, ir.WarpgroupTurn)
