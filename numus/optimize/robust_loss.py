"""Robust losses of least squares (Triggs et al. 2000): outliers count for less than their square.

The cost is ½ Σ C² ρ((r / C)²). Residuals and Jacobian are scaled such that a Gauss–Newton step on
them is one of the cost: J' r' is its gradient, and J'ᵀ J' approximates its Hessian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import Tensor

Loss = Callable[[Tensor], Any]  # z -> (ρ, ρ', ρ'')
Scaled = tuple[Tensor, Tensor, Tensor]  # residuals, Jacobian, and twice the cost


def _huber(z: Tensor) -> tuple[Tensor, ...]:
    far = z > 1
    beyond = nm.where(far, z, 1.0)
    root = nm.sqrt(beyond)
    value = nm.where(far, 2 * root - 1, z)
    return value, 1 / root, nm.where(far, -0.5 / (beyond * root), 0.0)


def _soft_l1(z: Tensor) -> tuple[Tensor, ...]:
    root = nm.sqrt(1 + z)
    return 2 * z / (1 + root), 1 / root, -0.5 / (root * (1 + z))


def _cauchy(z: Tensor) -> tuple[Tensor, ...]:
    slope = 1 / (1 + z)
    return nm.log1p(z), slope, -slope * slope


def _arctan(z: Tensor) -> tuple[Tensor, ...]:
    slope = 1 / (1 + z * z)
    return nm.atan(z), slope, -2 * z * slope * slope


def linear(r: Tensor, J: Tensor) -> Scaled:
    """Squares."""
    return r, J, nm.sum(r * r)


LOSSES: dict[str, Loss] = {
    "huber": _huber,
    "soft_l1": _soft_l1,
    "cauchy": _cauchy,
    "arctan": _arctan,
}


def loss_of(op: str, loss: Any, f_scale: Any) -> Callable[[Tensor, Tensor], Scaled]:
    """What a loss makes of residuals and their Jacobian."""
    if loss == "linear":
        return linear
    rho = LOSSES.get(loss) if isinstance(loss, str) else loss
    if not callable(rho):
        names = ", ".join(("linear", *LOSSES))
        raise ValueError(f"{op}: there is no loss {loss!r}; it is {names}, or a function of z")
    scale = float(f_scale)
    if not scale > 0:
        raise ValueError(f"{op}: f_scale must be positive, but is {f_scale}")

    def scaled(r: Tensor, J: Tensor) -> Scaled:
        z = (r / scale) ** 2
        value, slope, bend = _of(op, rho, z)
        weight = slope + 2 * bend * z  # of a Gauss–Newton step; kept from being negative
        root = nm.sqrt(nm.maximum(weight, nm.finfo(r.dtype).eps))
        total = nm.sum(value) * scale**2
        return r * slope / root, J * nm.expand_dims(root, 1), total

    return scaled


def _of(op: str, rho: Loss, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found = rho(z)
    parts = tuple(nm.asarray(p, dtype=z.dtype) for p in found)
    if len(parts) != 3 or any(p.shape != z.shape for p in parts):
        shapes = [p.shape for p in parts]
        raise ShapeError(
            f"{op}: a loss gives rho, its first and its second derivative, each of shape "
            f"{z.shape}, not {shapes}"
        )
    return parts[0], parts[1], parts[2]
