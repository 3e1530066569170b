"""Dropout: elements or channels left out at random while training."""

from __future__ import annotations

from typing import Any

from numus.nn import functional as F
from numus.nn.layers.function_layer import UnaryLayer, layer
from numus.tensor import Tensor

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


@layer
class _Dropout(UnaryLayer):
    p: float = 0.5
    inplace: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.p <= 1.0:
            raise ValueError(f"{type(self).__name__}: p={self.p} must be between 0 and 1")

    def forward(self, x: Any) -> Tensor:
        return self._function(x, self.p, self.training, self.inplace)


class Dropout(_Dropout, function=F.dropout):
    """Each element zero with probability p, the others divided by 1 - p. In evaluation, nothing.

    >>> from numus import nn
    >>> nn.Dropout(0.5).eval()(nm.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """


class Dropout1d(_Dropout, function=F.dropout1d):
    """Whole channels of (N, C, L) zero with probability p."""


class Dropout2d(_Dropout, function=F.dropout2d):
    """Whole channels of (N, C, H, W) zero with probability p."""


class Dropout3d(_Dropout, function=F.dropout3d):
    """Whole channels of (N, C, D, H, W) zero with probability p."""


class AlphaDropout(_Dropout, function=F.alpha_dropout):
    """Dropout that keeps mean and variance of what a SELU gives."""


class FeatureAlphaDropout(_Dropout, function=F.feature_alpha_dropout):
    """AlphaDropout of whole channels."""
