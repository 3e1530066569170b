"""Random graphs of primitives, compiled, against the reference device.

    [NUMUS_DEVICE=cuda] python tests/compiler/fuzz.py --seed 1000 --seconds 600

A program is a list of instructions, made from a seed alone. Most values are small integers in
whatever dtype, so that sums in any order are exact and results must agree bit for bit; what is not
(`exact` is false: a quotient, a softmax) is compared with a tolerance and never decides anything.
Programs that fail are made shorter, and printed as instructions.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

from fuzz_graphs import REFERENCE, Op, Program, disagreement, run
from fuzz_programs import make


def shorter(program: Program, seconds: float = 60) -> Program:
    """A smaller program that still disagrees."""
    end = time.monotonic() + seconds
    best = program
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for candidate in _smaller(best):
            if time.monotonic() > end:
                break
            candidate = _needed(candidate)
            try:
                improved = disagreement(candidate) is not None
            except Exception:  # it is no program at all
                continue
            if improved:
                best = candidate
                break
    return best


def _smaller(p: Program) -> Iterator[Program]:
    for i in p.roots + p.held:
        yield replace(p, roots=[i], held=[])
        for k in p.ops[i].inputs:
            yield replace(p, roots=[k], held=[])
    if p.held:
        yield replace(p, held=[])
    for i in p.roots:
        yield replace(p, roots=[k for k in p.roots if k != i])
    plain = [replace(op, force=False, tracked=False) for op in p.ops]
    if plain != p.ops:
        yield replace(p, ops=plain)
    for i in reversed(range(len(p.ops))):
        op = p.ops[i]
        for k in op.inputs:  # let those that use it use its input instead
            yield replace(p, ops=[_renamed(q, i, k) for q in p.ops])
    everything = list(range(len(p.ops)))
    values = run(replace(p, roots=everything, held=[]), REFERENCE)
    for i in reversed(everything):
        if p.ops[i].inputs and i not in p.roots:
            ops = list(p.ops)
            ops[i] = Op("array", (), (values[i],), p.ops[i].exact)
            yield replace(p, ops=ops)


def _renamed(op: Op, old: int, new: int) -> Op:
    return replace(op, inputs=tuple(new if k == old else k for k in op.inputs))


def _needed(p: Program) -> Program:
    """The program without what nothing needs."""
    keep = {*p.roots, *p.held}
    for i in reversed(range(len(p.ops))):
        if i in keep:
            keep.update(p.ops[i].inputs)
    number = {i: n for n, i in enumerate(sorted(keep))}
    ops = [
        replace(p.ops[i], inputs=tuple(number[k] for k in p.ops[i].inputs)) for i in sorted(keep)
    ]
    return Program(ops, [number[i] for i in p.roots], [number[i] for i in p.held], p.small_blocks)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--only", action="store_true", help="run just this seed")
    given = arguments.parse_args()
    end = time.monotonic() + given.seconds
    failed = done = 0
    for seed in itertools.count(given.seed):
        program = make(seed)
        found = disagreement(program)
        done += 1
        if found is not None:
            failed += 1
            print(f"seed {seed}: {found}", flush=True)
            small = shorter(_needed(program))
            print(f"seed {seed}: {disagreement(small)}\n{small}\n", flush=True)
        if given.only or time.monotonic() > end:
            break
    print(f"{done} programs, {failed} failed; last seed {seed}")


if __name__ == "__main__":
    main()
