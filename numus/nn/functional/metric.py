"""Losses of examples against each other: near or far, above or below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn.functional._tools import measured, reduced
from numus.nn.functional.layers import pairwise_distance
from numus.tensor import Tensor

__all__ = [
    "contrastive_loss", "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


@measured
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cos for pairs that belong together (target 1), cos above a margin for others (-1)."""
    input2, target = nm.asarray(input2), nm.asarray(target)
    if not input1.ndim or not input2.ndim:
        raise ShapeError("cosine_embedding_loss: takes vectors (N,) or (…, N), not single numbers")
    lengths = nm.sum(input1 * input1, axis=-1) + 1e-12, nm.sum(input2 * input2, axis=-1) + 1e-12
    cosine = nm.sum(input1 * input2, axis=-1) / nm.sqrt(lengths[0] * lengths[1])
    dissimilar = nm.where(target == -1, nm.clip(cosine - margin, 0.0), 0.0)
    return reduced(
        nm.where(target == 1, 1 - cosine, dissimilar), reduction, "cosine_embedding_loss"
    )


@measured
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """By how much input1 is not above input2 (target 1) or below it (-1), and a margin more."""
    short = -nm.asarray(target) * (input1 - nm.asarray(input2)) + margin
    return reduced(nm.clip(short, 0.0), reduction, "margin_ranking_loss")


@measured
def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """A distance for pairs that belong together (target 1), for others what it lacks to it."""
    target = nm.asarray(target)
    near = nm.where(target != -1, input, 0.0)
    far = nm.where(target != 1, nm.clip(margin - input, 0.0), 0.0)
    return reduced(near + far, reduction, "hinge_embedding_loss")


def _triplet(
    distance: Callable[[Any, Any], Tensor],
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float,
    swap: bool,
) -> Tensor:
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = nm.minimum(far, distance(positive, negative))
    return nm.clip(near - far + margin, 0.0)


@measured
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """By how much the negative is not a margin farther from the anchor than the positive.

    Args:
        swap: take the positive for the anchor where that is harder.
    """

    def distance(a: Any, b: Any) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    if margin <= 0:
        raise ValueError(f"triplet_margin_loss: margin must be positive, it is {margin}")
    loss = _triplet(distance, anchor, nm.asarray(positive), nm.asarray(negative), margin, swap)
    return reduced(loss, reduction, "triplet_margin_loss")


def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a distance of your own."""
    distance = pairwise_distance if distance_function is None else distance_function
    loss = _triplet(distance, anchor, positive, negative, margin, swap)
    return reduced(loss, reduction, "triplet_margin_with_distance_loss")


@measured
def contrastive_loss(
    input1: Any, input2: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Squared distance of pairs (target 1), squared max(margin - distance, 0) of others (0)."""
    target = nm.asarray(target).astype(input1.dtype, copy=False)
    distance = pairwise_distance(input1, input2)
    far = nm.clip(margin - distance, 0.0)
    loss = target * distance * distance + (1 - target) * far * far
    return reduced(loss, reduction, "contrastive_loss")
