"""A cycle of GMRES: Arnoldi's basis of a Krylov space, and the least squares problem on it.

Modified Gram–Schmidt in its compact form (Björck 1994; Świrydowicz, Langou, Ananthan, Yang & Thomas
2021): the projections off all vectors V of the basis, one after the other, are I - V T Vᴴ with
T = (I + L)⁻¹ and L the strictly lower triangle of VᴴV. The basis is read twice for a new vector:
for its products with that vector and the last one, and for the sum that is taken away.

The rotations that make the Hessenberg matrix triangular are kept as one unitary matrix. Vectors are
rows here, (columns of the right-hand side, vector, n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.sparse.linalg.iterative.basis import combined, products, reads_few, remainder
from numus.sparse.linalg.iterative.driver import Problem, Progress, State, norm, ratio
from numus.tensor import Tensor


@dataclass(frozen=True)
class ArnoldiTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    stages: int = 4  # of a cycle, each a loop that reads the vectors there may be by its end
    min_stage_bytes: int = 1 << 20  # of vectors: smaller ones stay in cache


TUNING = ArnoldiTuning()


def _index(at: Tensor) -> Tensor:
    return at.reshape(1).astype(nm.int64)


def _row(x: Tensor, at: Tensor) -> Tensor:
    """One slice of the second axis."""
    return nm.take(x, _index(at), axis=1)[:, 0]


def _set_row(x: Tensor, at: Tensor, row: Tensor) -> Tensor:
    """x with one slice of its second axis replaced, in its memory."""
    return nm.index_copy(x, 1, _index(at), row[:, None])


@dataclass(frozen=True)
class Cycle:
    """Steps of a problem: `restart` of the Krylov space, then `errors` given directions."""

    p: Problem
    progress: Progress
    restart: int
    errors: int
    flexible: bool

    @property
    def size(self) -> int:
        return self.restart + self.errors

    def _start(self, x: Tensor) -> State:
        p, size = self.p, self.size
        r = p.b - p.system.apply(x)
        n, columns = r.shape
        beta = norm(r)
        v = (r * ratio(nm.ones_like(beta), beta)).mT

        def empty(*shape: int) -> Tensor:
            return nm.zeros((columns, *shape), dtype=r.dtype, device=r.device)

        unit = nm.eye(size + 1, dtype=r.dtype, device=r.device)
        zero = nm.zeros((), dtype=nm.int32, device=r.device)
        state = {
            "last": v,
            "basis": _set_row(empty(size + 1, n), zero, v),
            "projections": empty(size + 1, size + 1),  # T
            "rotations": empty(size + 1, size + 1) + unit,
            "triangle": empty(size, size) + unit[:-1, :-1],  # its columns as rows
            "beta": beta,
        }
        if self.flexible:
            state["directions"] = empty(size, n)
        return state

    def _step(self, s: State, j: Tensor, z: Tensor, stop: int) -> State:
        """One more vector of the basis, below number `stop`, and one more column of the triangle;
        z is the direction that is multiplied, (n, columns)."""
        v, w = s["last"], self.p.system.apply(z).mT
        some = s["basis"] if reads_few(v) else s["basis"][:, :stop]
        rest = ((0, 0), (0, self.size + 1 - some.shape[1]))
        along, earlier = (nm.pad(x, rest) for x in products(some, j + 1, w, v))
        numbers = nm.arange(self.size + 1, dtype=nm.int32, device=w.device)
        earlier = nm.where(numbers < j, earlier, 0)
        lower = nm.conj(earlier) if earlier.dtype.is_complex else earlier
        own = (numbers == j).astype(w.dtype) - combined(s["projections"], lower)
        projections = _set_row(s["projections"], j, own)
        h = nm.sum(projections * along[:, None], axis=-1)
        whole = norm(w.mT)
        w = remainder(some, j + 1, h[:, : some.shape[1]], w)
        size = norm(w.mT)
        floor = 4 * nm.finfo(size.dtype).eps * whole
        size = nm.where(size <= floor, 0, size)
        h = _set_row(h, j + 1, size.astype(h.dtype))
        following = w * ratio(nm.ones_like(size), size)[:, None]
        # all earlier rotations at once, then the one that makes entry j + 1 zero
        rotated = nm.sum(s["rotations"] * h[:, None], axis=-1)
        a, b = _row(rotated, j), _row(rotated, j + 1)
        a = nm.where((size == 0) & (nm.abs(a) <= floor), 0, a)  # of a singular matrix
        length = nm.sqrt(nm.square(nm.abs(a)) + nm.square(nm.abs(b)))
        c, d = (ratio(nm.conj(x), length)[:, None] for x in (a, b))
        first, second = _row(s["rotations"], j), _row(s["rotations"], j + 1)
        combined_rows = nm.stack(
            [c * first + d * second, nm.conj(c) * second - nm.conj(d) * first], axis=1
        )
        both = nm.concatenate([_index(j), _index(j + 1)])
        column = nm.where(numbers == j, length[:, None].astype(h.dtype), rotated)
        column = nm.where(numbers == j + 1, 0, column)
        new = {
            **s,
            "last": following,
            "basis": _set_row(s["basis"], j + 1, following),
            "projections": projections,
            "rotations": nm.index_copy(s["rotations"], 1, both, combined_rows),
            "triangle": _set_row(s["triangle"], j, column[:, :-1]),
        }
        if self.flexible:
            new["directions"] = _set_row(s["directions"], j, z.mT)
        return new

    def _change(self, s: State, errors: Tensor, length: Tensor, count: Tensor) -> Tensor:
        """What the first `count` steps add to the solution of each column, (n, columns)."""
        right = (s["rotations"][:, :-1, 0] * s["beta"][:, None]).astype(s["basis"].dtype)
        numbers = nm.arange(self.size, dtype=nm.int32, device=right.device)
        inside = numbers < count[:, None]
        right = nm.where(inside, right, 0)
        triangle = s["triangle"].mT
        unit = nm.eye(self.size, dtype=triangle.dtype, device=triangle.device)
        triangle = nm.where(inside[:, None] & inside[:, :, None], triangle, unit)
        triangle = nm.where((unit != 0) & (triangle == 0), 1, triangle)
        y = nm.linalg.solve_triangular(triangle, right[:, :, None])[:, :, 0]
        if self.flexible:
            return combined(s["directions"], y).mT
        of_krylov = nm.where(numbers < length, y, 0)
        less = nm.pad(-of_krylov, ((0, 0), (0, 1)))
        step = remainder(s["basis"], nm.max(count), less, nm.zeros_like(s["last"]))
        out = self.p.precondition(step.mT)
        for i in range(self.errors):
            out = out + (errors[:, i] * _row(nm.pad(y, ((0, 0), (0, 1))), length + i)[:, None]).mT
        return out

    def run(
        self, x: Tensor, length: Tensor, errors: Tensor, kept: Tensor, now: State
    ) -> tuple[Tensor, Tensor, State]:
        """What a cycle of `length` steps, and of the `kept` first errors, adds to x; the number of
        steps of each column; the progress."""
        p, progress = self.p, self.progress

        def loop(c: dict[str, Any], stop: int, last: Tensor, direction: Any) -> dict[str, Any]:
            def goes_on(c: dict[str, Any]) -> Tensor:
                inside = (c["at"] < last) & (c["at"] < stop)
                return progress.goes_on(c["progress"]) & inside

            def body(c: dict[str, Any]) -> dict[str, Any]:
                at, s, now = c["at"], c["state"], c["progress"]
                new = self._step(s, at, direction(s, at), stop)
                estimate = s["beta"] * nm.abs(_row(new["rotations"], at + 1)[:, 0])
                count = nm.where(progress.active(now), at + 1, c["count"])
                now = progress.advanced(now, estimate, nm.isfinite(estimate))
                return {"state": new, "progress": now, "at": at + 1, "count": count}

            found: dict[str, Any] = nm.while_loop(goes_on, body, c)
            return found

        c: dict[str, Any] = {
            "state": self._start(x),
            "progress": now,
            "at": nm.zeros_like(now["step"]),
            "count": nm.zeros_like(now["iterations"]),
        }
        for stop in self._stages():
            c = loop(c, stop, length, lambda s, at: p.precondition(s["last"].mT))
        if self.errors:
            c = loop(c, self.size, length + kept, lambda s, at: _row(errors, at - length).mT)
        change = self._change(c["state"], errors, length, c["count"])
        return change, c["count"], c["progress"]

    def _stages(self) -> list[int]:
        """Where the loops of a cycle end."""
        n, columns = self.p.b.shape
        if reads_few(self.p.b):
            return [self.restart]
        nbytes = self.restart * n * columns * self.p.b.dtype.itemsize
        count = max(1, min(TUNING.stages, self.restart, nbytes // TUNING.min_stage_bytes))
        return [self.restart * (i + 1) // count for i in range(count)]
