"""Softmax over very many classes, of which few are frequent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn.functional.classification import checked_classes
from numus.nn.layers.containers import ModuleList, Sequential
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class ASMoutput(NamedTuple):
    """The logarithms of the targets' probabilities, and their mean's negative."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Classes in clusters by how frequent they are: the head tells the frequent ones and the
    clusters apart, each cluster its own classes, with fewer numbers the rarer they are.

    Args:
        cutoffs: where clusters begin; classes before the first are told apart by the head.
        div_value: by how much each cluster is narrower than the one before.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        ends = [*cutoffs, n_classes]
        if len(ends) < 2 or ends[0] < 1 or any(a >= b for a, b in itertools.pairwise(ends)):
            raise ValueError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs {list(cutoffs)} are numbers that increase, "
                f"from 1 to {n_classes - 1} at most"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = ends
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = ends[0]
        self.n_clusters = len(ends) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        options = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **options)
        self.tail = ModuleList()
        for i, (start, stop) in enumerate(itertools.pairwise(ends)):
            width = int(in_features // div_value ** (i + 1))
            self.tail.append(
                Sequential(
                    Linear(in_features, width, bias=False, **options),
                    Linear(width, stop - start, bias=False, **options),
                )
            )

    def reset_parameters(self) -> None:
        """Draw first values."""
        self.head.reset_parameters()
        for projection in self.tail:
            for layer in projection:
                layer.reset_parameters()

    def forward(self, input: Any, target: Any) -> ASMoutput:
        """Inputs (N, in_features) against classes (N,), or one example without N.

        Shapes do not depend on the targets, so a step can be traced: every cluster looks at every
        example.
        """
        x, target = nm.asarray(input), nm.asarray(target)
        if x.ndim not in (1, 2) or target.shape != x.shape[:-1]:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: inputs of shape {x.shape} and targets of shape "
                f"{target.shape} are not (N, {self.in_features}) and (N,)"
            )
        target = checked_classes(type(self).__name__, target, self.n_classes, target.shape, 0)
        head = nm.log_softmax(self.head(x), axis=-1)
        head_index, output = target, nm.zeros_like(head[..., 0])
        for i, (start, stop) in enumerate(itertools.pairwise(self.cutoffs)):
            inside = (target >= start) & (target < stop)
            head_index = nm.where(inside, self.shortlist_size + i, head_index)
            logs = nm.log_softmax(self.tail[i](x), axis=-1)
            chosen = nm.clip(target - start, 0, stop - start - 1)
            found = nm.take_along_axis(logs, chosen[..., None], axis=-1)[..., 0]
            output = output + nm.where(inside, found, 0.0)
        output = output + nm.take_along_axis(head, head_index[..., None], axis=-1)[..., 0]
        return ASMoutput(output, -output.mean())

    def log_prob(self, input: Any) -> Tensor:
        """The logarithms of the probabilities of all classes."""
        x = nm.asarray(input)
        head = F.log_softmax(self.head(x), -1)
        parts = [head[..., : self.shortlist_size]]
        for i, projection in enumerate(self.tail):
            cluster = head[..., self.shortlist_size + i, None]
            parts.append(cluster + F.log_softmax(projection(x), -1))
        return nm.concat(parts, axis=-1)

    def predict(self, input: Any) -> Tensor:
        """The most probable class of each example."""
        return nm.argmax(self.log_prob(input), axis=-1)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.n_classes}, cutoffs={self.cutoffs[:-1]}"
