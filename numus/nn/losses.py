"""Losses as modules; each is the function of the same name in `nn.functional`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

from numus.nn import functional as F
from numus.nn.layers.function_layer import FunctionLayer, layer
from numus.tensor import Tensor

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "ContrastiveLoss", "CosineEmbeddingLoss",
    "CosineSimilarity", "CrossEntropyLoss", "FocalLoss", "GaussianNLLLoss", "HingeEmbeddingLoss",
    "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PairwiseDistance", "PoissonNLLLoss",
    "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _Loss(FunctionLayer):
    """An input against a target. Weights are buffers: they move with the module."""

    def __post_init__(self) -> None:
        for name in ("weight", "pos_weight"):
            if name in self._fields:
                self.register_buffer(name, getattr(self, name))

    def forward(self, input: Any, target: Any) -> Tensor:
        return self._function(input, target, **self._options())


@layer
class _Reduced(_Loss):
    reduction: str = "mean"


class _Elementwise(_Reduced):
    def forward(self, input: Any, target: Any) -> Tensor:
        return self._function(input, target, reduction=self.reduction)


@layer
class _Weighted(_Loss):
    weight: Any = None
    reduction: str = "mean"


# -- of numbers against numbers -------------------------------------------------------------------


class MSELoss(_Elementwise, function=F.mse_loss):
    """The square of the difference."""


class L1Loss(_Elementwise, function=F.l1_loss):
    """The size of the difference."""


@layer
class SmoothL1Loss(_Reduced, function=F.smooth_l1_loss):
    """The size of the difference, rounded off to a square below beta."""

    beta: float = 1.0


@layer
class HuberLoss(_Reduced, function=F.huber_loss):
    """Half the square of the difference, straight above delta."""

    delta: float = 1.0


@layer
class PoissonNLLLoss(_Loss, function=F.poisson_nll_loss):
    """How unlikely a count is under a Poisson distribution."""

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"


@layer
class GaussianNLLLoss(FunctionLayer):
    """How unlikely a number is under a normal distribution."""

    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"

    def forward(self, input: Any, target: Any, var: Any) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, **self._options())


# -- of scores against classes and probabilities --------------------------------------------------


@layer
class CrossEntropyLoss(_Loss):
    """Scores against class indices, or probabilities of all classes."""

    weight: Any = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def forward(self, input: Any, target: Any) -> Tensor:
        options = (self.weight, self.ignore_index, self.reduction, self.label_smoothing)
        return F.cross_entropy(input, target, *options)


@layer
class NLLLoss(_Loss, function=F.nll_loss):
    """Minus logarithms of probabilities at the target classes."""

    weight: Any = None
    ignore_index: int = -100
    reduction: str = "mean"


@layer
class FocalLoss(_Loss, function=F.focal_loss):
    """Cross entropy in which what is already right counts less."""

    gamma: float = 2.0
    weight: Any = None
    ignore_index: int = -100
    reduction: str = "mean"


class BCELoss(_Weighted, function=F.binary_cross_entropy):
    """Probabilities against probabilities."""


@layer
class BCEWithLogitsLoss(_Weighted, function=F.binary_cross_entropy_with_logits):
    """Scores against probabilities."""

    pos_weight: Any = None


@layer
class KLDivLoss(_Reduced, function=F.kl_div):
    """How far a distribution is from the target."""

    log_target: bool = False


class SoftMarginLoss(_Reduced, function=F.soft_margin_loss):
    """log(1 + exp(-target * input)) for targets of 1 and -1."""


@layer
class MultiMarginLoss(_Loss, function=F.multi_margin_loss):
    """By how much other classes come nearer than the margin."""

    p: int = 1
    margin: float = 1.0
    weight: Any = None
    reduction: str = "mean"


class MultiLabelMarginLoss(_Reduced, function=F.multilabel_margin_loss):
    """The margin loss of several classes at once."""


class MultiLabelSoftMarginLoss(_Weighted, function=F.multilabel_soft_margin_loss):
    """Binary cross entropy of scores, averaged over the classes."""


@layer
class CTCLoss(FunctionLayer):
    """Sequences against shorter ones without an alignment."""

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(
        self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any
    ) -> Tensor:
        lengths = (input_lengths, target_lengths)
        return F.ctc_loss(log_probs, targets, *lengths, **self._options())


# -- of examples against each other ---------------------------------------------------------------


@layer
class _PairLoss(FunctionLayer):
    margin: float = 0.0
    reduction: str = "mean"

    def forward(self, input1: Any, input2: Any, target: Any) -> Tensor:
        return self._function(input1, input2, target, **self._options())


class CosineEmbeddingLoss(_PairLoss, function=F.cosine_embedding_loss):
    """Small angles for pairs that belong together, large ones for others."""


class MarginRankingLoss(_PairLoss, function=F.margin_ranking_loss):
    """One above the other, by a margin."""


@layer
class ContrastiveLoss(_PairLoss, function=F.contrastive_loss):
    """Pairs that belong together near, others a margin apart."""

    margin: float = 1.0


@layer
class HingeEmbeddingLoss(_Loss, function=F.hinge_embedding_loss):
    """Small distances for pairs that belong together."""

    margin: float = 1.0
    reduction: str = "mean"


class _Triplet(FunctionLayer):
    def forward(self, anchor: Any, positive: Any, negative: Any) -> Tensor:
        return self._function(anchor, positive, negative, **self._options())


@layer
class TripletMarginLoss(_Triplet, function=F.triplet_margin_loss):
    """The negative a margin farther from the anchor than the positive."""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"


@layer
class TripletMarginWithDistanceLoss(_Triplet, function=F.triplet_margin_with_distance_loss):
    """The triplet margin loss with a distance of your own."""

    _: KW_ONLY
    distance_function: Callable[[Any, Any], Tensor] | None = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"


# -- distances ------------------------------------------------------------------------------------


class _Distance(FunctionLayer):
    def forward(self, x1: Any, x2: Any) -> Tensor:
        return self._function(x1, x2, **self._options())


@layer
class CosineSimilarity(_Distance, function=F.cosine_similarity):
    """The cosine of the angle between vectors along an axis."""

    dim: int = 1
    eps: float = 1e-8


@layer
class PairwiseDistance(_Distance, function=F.pairwise_distance):
    """The p-norm of the difference along the last axis."""

    p: float = 2.0
    eps: float = 1e-6
    keepdim: bool = False
