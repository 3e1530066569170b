"""Input scales folded into the layer before (AWQ, SmoothQuant): running a model, they cost nothing.

Layers that read the same inputs, as the queries, keys and values of attention do, get one scale:
they are rounded together. The layer before, a norm or a linear layer, takes the scale into its
weight and bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.nn.layers.linear import Linear
from numus.nn.layers.norm import LayerNorm, RMSNorm
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.nn.quantized.calibration import InputStatistics
from numus.nn.quantized.layers import QLinear
from numus.quant import algorithms
from numus.quant.integers import Integers
from numus.tensor import Tensor

__all__ = ["fold_input_scale_"]


def fold_input_scale_(before: Module, *layers: QLinear) -> None:
    """Multiply what `before` gives by the input scale of layers that read it, and drop theirs.

    >>> import numus as nm
    >>> from numus import nn
    >>> norm = nn.LayerNorm(64)
    >>> layer = nn.QLinear.of(nn.Linear(64, 8), "int4-g32", input_scale=nm.full(64, 2.0))
    >>> nn.fold_input_scale_(norm, layer)
    >>> float(norm.weight[0]), layer.input_scale
    (2.0, None)

    Args:
        before: a `LayerNorm`, `RMSNorm` or `Linear` whose output nothing else reads.
        layers: with equal input scales.
    """
    if not layers or any(x.input_scale is None for x in layers):
        raise ValueError("fold_input_scale_: each layer must have an input scale")
    scales = [np.asarray(x.input_scale) for x in layers]
    if any(s.shape != scales[0].shape or not np.allclose(s, scales[0]) for s in scales):
        raise ValueError(
            "fold_input_scale_: layers have different input scales; quantize_(fold=...) rounds "
            "those with the same inputs together"
        )
    scale = layers[0].input_scale
    assert scale is not None
    scale_output_(before, scale)
    for layer in layers:
        layer.input_scale = None


def scale_output_(before: Module, scale: Tensor) -> None:
    """Multiply the channels that a layer gives."""
    if not isinstance(before, LayerNorm | RMSNorm | Linear):
        raise TypeError(
            f"an input scale folds into LayerNorm, RMSNorm or Linear, not {type(before).__name__}"
        )
    weight = before.weight
    if weight is None:
        raise ValueError(f"{before!r} has no weight that an input scale could fold into")
    if weight.shape[0] != scale.shape[0]:
        raise ShapeError(f"{weight.shape[0]} outputs of {before!r} for {scale.shape[0]} inputs")
    own = scale.astype(weight.dtype)
    by = own[:, None] if weight.ndim == 2 else own
    before.weight = Parameter(weight.detach() * by)
    bias = getattr(before, "bias", None)
    if bias is not None:
        before.bias = Parameter(bias.detach() * own)


def rounded_together(
    layers: Sequence[Linear], format: Integers, how: str, seen: InputStatistics
) -> tuple[list[QLinear], Tensor]:
    """Layers of the same inputs by AWQ or SmoothQuant, and the scale of these inputs."""
    weight = nm.concat([x.weight.detach() for x in layers])
    if how == "awq":
        q, scale = algorithms.awq(weight, seen.hessian, seen.magnitude, format)
    else:
        found = algorithms.smooth_scale(seen.largest, weight).astype(np.float32)
        by = nm.asarray(found, device=weight.device)
        q, scale = nm.quant.quantize(weight * by, format), 1 / by
    found_layers, start = [], 0
    for layer in layers:
        stop = start + layer.weight.shape[0]
        found_layers.append(QLinear.of(layer, q[start:stop], input_scale=scale))
        start = stop
    return found_layers, scale
