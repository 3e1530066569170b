"""Directions of descent: BFGS, L-BFGS, and nonlinear conjugate gradients (Polak-Ribière)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numus as nm
from numus.optimize.casting import cast
from numus.optimize.line_search import dot
from numus.tensor import Tensor


class Bfgs:
    """BFGS: the memory is the approximate inverse of the Hessian, and whether there is one."""

    curvature = 0.9
    unit_step = True

    def start(self, x: Tensor) -> Any:
        eye = nm.eye(x.shape[0], dtype=x.dtype, device=x.device)
        return eye + 0 * nm.sum(x), nm.zeros_like(nm.sum(x), dtype=nm.bool)

    def reset(self, memory: Any, x: Tensor) -> Any:
        return self.start(x)

    def steepest(self, x: Tensor, g: Tensor) -> Tensor:
        return -g

    def update(self, memory: Any, s: Tensor, y: Tensor, g: Tensor, x: Tensor) -> tuple[Any, Tensor]:
        H, scaled = memory
        sy = dot(s, y)
        usable = sy > 0
        rho = 1 / nm.where(usable, sy, 1.0)
        # the first guess has the scale of the first step's curvature
        H = nm.where(scaled | nm.logical_not(usable), H, H * sy * _inverse(dot(y, y)))
        Hy = H @ y
        row, column = nm.expand_dims(s, 0), nm.expand_dims(s, 1)
        cross = nm.expand_dims(Hy, 1) * row
        new = H + (1 + rho * dot(y, Hy)) * rho * column * row - rho * (cross + cross.mT)
        H = nm.where(usable, new, H)
        return (H, scaled | usable), -(H @ g)


def _inverse(x: Tensor) -> Tensor:
    return 1 / nm.where(x > 0, x, 1.0)


class Pairs(NamedTuple):
    """The last steps and changes of the gradient, in a ring of m, and products among them, the
    oldest first; a pair that is not in use has a zero on the diagonal of `sy`."""

    rows: Tensor  # steps, then changes: (2 m, n)
    sy: Tensor  # products of steps with changes that are not older: (m, m)
    yy: Tensor
    scale: Tensor
    oldest: Tensor  # the ring's entry to be replaced next


class Lbfgs:
    """L-BFGS: the inverse of the Hessian by m pairs, in its compact form (Byrd, Nocedal and
    Schnabel 1994): products of the pairs with three vectors in place of the two-loop recursion's
    4 m dependent ones."""

    curvature = 0.9
    unit_step = True

    def __init__(self, m: int) -> None:
        self.m = m

    def start(self, x: Tensor) -> Any:
        rows = nm.zeros((2 * self.m, x.shape[0]), dtype=x.dtype, device=x.device) + 0 * nm.sum(x)
        return self._empty(rows, nm.zeros_like(nm.sum(x), dtype=nm.int32))

    def reset(self, memory: Any, x: Tensor) -> Any:
        return self._empty(memory.rows, memory.oldest)

    def _empty(self, rows: Tensor, oldest: Tensor) -> Pairs:
        square = nm.zeros((self.m, self.m), dtype=rows.dtype, device=rows.device)
        return Pairs(rows, square, square, nm.ones_like(square[0, 0]), oldest)

    def steepest(self, x: Tensor, g: Tensor) -> Tensor:
        return -g

    def update(self, memory: Any, s: Tensor, y: Tensor, g: Tensor, x: Tensor) -> tuple[Any, Tensor]:
        m, old = self.m, memory
        sy, yy = dot(s, y), dot(y, y)
        usable = sy > float(nm.finfo(s.dtype).eps) * yy
        ring = nm.arange(m, device=s.device)
        order = (old.oldest + 1 + ring) % m  # the oldest first, after the new pair came
        fresh = ring == m - 1
        by_y, by_g = nm.sum(old.rows * y, axis=1), nm.sum(old.rows * g, axis=1)
        products = [part[order] for part in (by_y[:m], by_y[m:], by_g[:m], by_g[m:])]
        column, changes, p, q = (
            nm.where(fresh, new, part)
            for new, part in zip((sy, yy, dot(s, g), dot(y, g)), products, strict=True)
        )
        used = (nm.diagonal(old.sy)[nm.minimum(ring + 1, m - 1)] != 0) | fresh
        column, changes, p, q = (nm.where(used, v, 0.0) for v in (column, changes, p, q))
        pairs = Pairs(
            self._placed(old, s, y),
            _shifted(old.sy, column, nm.zeros_like(column)),
            _shifted(old.yy, changes, changes),
            sy * _inverse(yy),
            cast((old.oldest + 1) % m, nm.int32),
        )
        top, bottom = self._coefficients(pairs, p, q)
        back = (ring - old.oldest - 1) % m  # where each entry of the ring is in that order
        others = nm.concat([nm.where(ring == old.oldest, 0.0, c[back]) for c in (top, bottom)])
        d = pairs.scale * g + others @ old.rows + top[-1] * s + bottom[-1] * y
        kept = nm.tree.map(lambda a, b: nm.where(usable, a, b), pairs, old)
        return kept, -nm.where(usable, d, g)

    def remember(self, old: Pairs, s: Tensor, y: Tensor) -> Pairs:
        """The pairs with another, without products."""
        return old._replace(
            rows=self._placed(old, s, y), oldest=cast((old.oldest + 1) % self.m, nm.int32)
        )

    def _placed(self, old: Pairs, s: Tensor, y: Tensor) -> Tensor:
        """The rows with the oldest pair replaced."""
        at = nm.expand_dims(nm.arange(2 * self.m, device=s.device), 1)
        rows = nm.where(at == old.oldest, s, old.rows)
        return nm.where(at == old.oldest + self.m, y, rows)

    def _coefficients(self, pairs: Pairs, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """How much of each step and change is in the product with a vector whose products with the
        steps are p, with the changes q."""
        diagonal = nm.diagonal(pairs.sy)
        R = nm.triu(pairs.sy) + nm.diag(cast(diagonal == 0, p.dtype))
        u = nm.linalg.solve_triangular(R, nm.expand_dims(p, 1))[:, 0]
        inner = diagonal * u + pairs.scale * (nm.sum(pairs.yy * u, axis=1) - q)
        top = nm.linalg.solve_triangular(R, nm.expand_dims(inner, 1), trans=1)[:, 0]
        return top, -pairs.scale * u

    def product(self, pairs: Pairs, g: Tensor) -> Tensor:
        """The inverse of the Hessian times g; the pairs' rows are in order, the oldest first."""
        by_g = pairs.rows @ g
        parts = self._coefficients(pairs, by_g[: self.m], by_g[self.m :])
        return pairs.scale * g + nm.concat(list(parts)) @ pairs.rows


def _shifted(square: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """A matrix of products without its first row and column, and with new last ones."""
    left = nm.concat([square[1:, 1:], nm.expand_dims(row[:-1], 0)])
    return nm.concat([left, nm.expand_dims(column, 1)], 1)


class ConjugateGradients:
    """Polak and Ribière's directions, started anew where they would turn back."""

    curvature = 0.4
    unit_step = False

    def start(self, x: Tensor) -> Any:
        return nm.zeros_like(x)  # the last direction

    def reset(self, memory: Any, x: Tensor) -> Any:
        return self.start(x)

    def steepest(self, x: Tensor, g: Tensor) -> Tensor:
        return -g

    def update(self, memory: Any, s: Tensor, y: Tensor, g: Tensor, x: Tensor) -> tuple[Any, Tensor]:
        before = g - y
        last = s * nm.sqrt(dot(before, before) * _inverse(dot(s, s)))
        last = nm.where(dot(memory, memory) > 0, memory, last)
        beta = nm.maximum(0.0, dot(y, g) * _inverse(dot(before, before)))
        d = -g + beta * last
        return d, d
