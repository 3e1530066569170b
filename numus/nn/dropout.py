"""Dropout: elements or channels left out at random while training."""

from __future__ import annotations

from typing import Any

from numus.nn import functional as F
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{type(self).__name__}: p is a probability, not {p}")
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}" + ", inplace=True" * self.inplace


class Dropout(_Dropout):
    """Each element zero with probability p, the others divided by 1 - p. In evaluation, nothing.

    >>> from numus import nn
    >>> nn.Dropout(0.5).eval()(nm.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """

    def forward(self, x: Any) -> Tensor:
        return F.dropout(x, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Whole channels of (N, C, L) zero with probability p."""

    def forward(self, x: Any) -> Tensor:
        return F.dropout1d(x, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Whole channels of (N, C, H, W) zero with probability p."""

    def forward(self, x: Any) -> Tensor:
        return F.dropout2d(x, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Whole channels of (N, C, D, H, W) zero with probability p."""

    def forward(self, x: Any) -> Tensor:
        return F.dropout3d(x, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance of what a SELU gives."""

    def forward(self, x: Any) -> Tensor:
        return F.alpha_dropout(x, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels."""

    def forward(self, x: Any) -> Tensor:
        return F.feature_alpha_dropout(x, self.p, self.training, self.inplace)
