"""Layers without parameters of their own: linear maps, embeddings, dropout, norms, distances."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.functions._base import as_number
from numus.functions.autocast import lowers
from numus.functions.linear.matmul import matmul_transposed
from numus.functions.template_cache import templated_rows
from numus.nn.functional._tools import in_place, measured, rounds_once, vector
from numus.shapes import as_shape
from numus.tensor import Tensor

__all__ = [
    "alpha_dropout", "batch_norm", "bilinear", "channel_shuffle", "cosine_similarity", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "embedding", "embedding_bag", "feature_alpha_dropout",
    "group_norm", "instance_norm", "layer_norm", "linear", "local_response_norm", "normalize",
    "one_hot", "pad", "pairwise_distance", "pdist", "rms_norm",
]  # fmt: skip

batch_norm = nm.batch_norm
group_norm = nm.group_norm
instance_norm = nm.instance_norm
one_hot = nm.one_hot


# -- products -------------------------------------------------------------------------------------


@templated_rows(1)
@lowers
def linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias: the weight has a row for every output."""
    try:
        y = matmul_transposed(input, weight)
    except ShapeError as error:
        raise ShapeError(
            f"linear: a weight of shape {weight.shape} takes inputs whose last axis has "
            f"{weight.shape[-1]} elements, not shape {nm.asarray(input).shape}"
        ) from error
    return y if bias is None else y + bias


@lowers
def bilinear(input1: Any, input2: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input1 @ weight[k] @ input2 for every output k."""
    try:
        y = nm.einsum("...i,kij,...j->...k", input1, weight, input2)
    except ShapeError as error:
        first, second = nm.asarray(input1).shape, nm.asarray(input2).shape
        raise ShapeError(
            f"bilinear: a weight of shape {weight.shape} takes inputs whose last axes have "
            f"{weight.shape[1]} and {weight.shape[2]} elements, not shapes {first} and {second}"
        ) from error
    return y if bias is None else y + bias


def embedding(
    input: Any,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of the weight at indices of any shape; the row `padding_idx` gets no gradient.

    Args:
        max_norm: rows that are looked up are shortened to this `norm_type`-norm first, in place.
        scale_grad_by_freq: gradients of rows are divided by how often they were looked up.
        sparse: taken for PyTorch's sake; gradients are dense.
    """
    indices = _indices("embedding", input)
    if max_norm is not None:
        norm_type = as_number(norm_type, "norm_type", "embedding")
        _shorten(weight, indices, as_number(max_norm, "max_norm", "embedding"), norm_type)
    rows = nm.embedding_lookup(weight, indices)
    if not weight.requires_grad:
        return rows
    if scale_grad_by_freq:
        counts = nm.bincount(indices.reshape((-1,)), minlength=weight.shape[0])
        rows = _with_gradient_over(rows, counts[indices][..., None].astype(rows.dtype, copy=False))
    if padding_idx is None:
        return rows
    padding = padding_idx % weight.shape[0]
    return nm.where((indices == padding)[..., None], rows.detach(), rows)


def _indices(op: str, input: Any) -> Tensor:
    indices = nm.asarray(input)
    if not indices.dtype.is_integer:
        raise DTypeError(
            f"{op}: indices must be integers, not {indices.dtype.name}; cast them with "
            "astype(nm.int64)"
        )
    return indices


def _shorten(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> None:
    """Rows that are about to be looked up, no longer than max_norm."""
    with nm.no_grad():
        at = indices.reshape((-1,))
        rows = weight.detach()[at]
        length = nm.vector_norm(rows, axis=-1, keepdims=True, ord=norm_type)
        weight[at] = nm.where(length > max_norm, rows * (max_norm / (length + 1e-7)), rows)


def _with_gradient_over(x: Tensor, divisor: Tensor) -> Tensor:
    """x itself; its gradient is divided."""

    @nm.custom_vjp
    def same(x: Tensor) -> Tensor:
        return x

    same.defvjp(lambda x: (x, None), lambda _, g: (g / divisor,))
    out: Tensor = same(x)
    return out


def embedding_bag(
    input: Any,
    weight: Tensor,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or largest of the rows in each bag of indices: a row of a matrix, or what lies
    between two `offsets` into a vector. The row `padding_idx` is left out.
    """
    if mode not in ("sum", "mean", "max") or (per_sample_weights is not None and mode != "sum"):
        raise ValueError(
            f"embedding_bag: mode {mode!r} is sum, mean or max, and per_sample_weights are for sums"
        )
    if scale_grad_by_freq and mode == "max":
        raise ValueError("embedding_bag: scale_grad_by_freq is for sums and means")
    indices = _indices("embedding_bag", input)
    if (indices.ndim == 2) == (offsets is not None) or indices.ndim not in (1, 2):
        raise ShapeError(
            f"embedding_bag: takes a matrix of indices, or a vector and offsets, not shape "
            f"{indices.shape}{' and offsets' * (offsets is not None)}"
        )
    if indices.ndim == 2:
        count, size = indices.shape
        bags = nm.repeat(nm.arange(count, device=indices.device), size)
    else:
        starts = nm.asarray(offsets)
        count = starts.shape[0] - include_last_offset
        positions = nm.arange(indices.shape[0], device=indices.device)
        # an index belongs to the last bag that begins at it or before
        bags = nm.searchsorted(starts[:count], positions, side="right") - 1
    flat = indices.reshape((-1,))
    rows = embedding(flat, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * nm.asarray(per_sample_weights).reshape((-1, 1))
    counted = nm.ones(flat.shape, dtype=rows.dtype, device=flat.device)
    if padding_idx is not None:
        counts = flat != padding_idx % weight.shape[0]
        counted = counts.astype(rows.dtype, copy=False)
        rows = nm.where(counts[:, None], rows, -nm.inf if mode == "max" else 0.0)
    sizes = nm.segment_sum(counted, bags, num_segments=count)[:, None]
    if mode == "max":
        largest = nm.segment_max(rows, bags, num_segments=count)
        return nm.where(sizes > 0, largest, 0.0)
    total = nm.segment_sum(rows, bags, num_segments=count)
    return total / nm.maximum(sizes, 1.0) if mode == "mean" else total


# -- dropout --------------------------------------------------------------------------------------


@in_place
def dropout(input: Any, p: float = 0.5, training: bool = True, *, key: Any = None) -> Tensor:
    """input with each element zero with probability p, the others divided by 1 - p."""
    return nm.random.dropout(input, p, training, key=key)


def _channels(op: str, input: Any, axes: int, p: float, training: bool, key: Any) -> Tensor:
    """Whole channels left out: the axes before the last `axes` draw, those are drawn for."""
    x = nm.asarray(input)
    if x.ndim not in (axes + 1, axes + 2):
        raise ShapeError(
            f"{op}: takes (N, C{', …' * bool(axes)}) or (C{', …' * bool(axes)}) with {axes} axes "
            f"after the channels, not shape {x.shape}"
        )
    shape = (*x.shape[: x.ndim - axes], *(1,) * axes)
    scale = nm.random.dropout(nm.ones(shape, dtype=x.dtype, device=x.device), p, training, key=key)
    return x * scale


@in_place
def dropout1d(input: Any, p: float = 0.5, training: bool = True, *, key: Any = None) -> Tensor:
    """Whole channels of (N, C, L) zero with probability p."""
    return _channels("dropout1d", input, 1, p, training, key)


@in_place
def dropout2d(input: Any, p: float = 0.5, training: bool = True, *, key: Any = None) -> Tensor:
    """Whole channels of (N, C, H, W) zero with probability p."""
    return _channels("dropout2d", input, 2, p, training, key)


@in_place
def dropout3d(input: Any, p: float = 0.5, training: bool = True, *, key: Any = None) -> Tensor:
    """Whole channels of (N, C, D, H, W) zero with probability p."""
    return _channels("dropout3d", input, 3, p, training, key)


_FLOOR = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


def _alpha(x: Tensor, shape: tuple[int, ...], p: float, training: bool, key: Any) -> Tensor:
    if not training or p == 0:
        return x
    mask = nm.random.dropout_mask(shape, p, device=x.device, key=key)
    if p == 1:
        return x * 0.0
    scale = ((1 - p) * (1 + p * _FLOOR**2)) ** -0.5
    return nm.where(mask, x, _FLOOR) * scale - scale * p * _FLOOR


@in_place
def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, *, key: Any = None) -> Tensor:
    """Dropout that keeps mean and variance of what a selu gives."""
    x = nm.asarray(input)
    return _alpha(x, x.shape, p, training, key)


@in_place
def feature_alpha_dropout(
    input: Any, p: float = 0.5, training: bool = False, *, key: Any = None
) -> Tensor:
    """`alpha_dropout` of whole channels (N, C, ...)."""
    x = nm.asarray(input)
    return _alpha(x, (*x.shape[:2], *(1,) * (x.ndim - 2)), p, training, key)


# -- norms ----------------------------------------------------------------------------------------


@functools.lru_cache
def _last_axes(count: int) -> tuple[int, ...]:
    return tuple(range(-count, 0))


def _trailing(op: str, x: Tensor, shape: Any) -> tuple[int, ...]:
    if shape.__class__ is not tuple or set(map(type, shape)) != {int}:
        shape = as_shape(shape, op)
    if not shape or x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError(f"{op}: normalized_shape {shape} does not end the shape {x.shape}")
    return _last_axes(len(shape))


def layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """input with mean 0 and variance 1 over its last axes, scaled and shifted."""
    x = nm.asarray(input)
    axes = _trailing("layer_norm", x, normalized_shape)
    return nm.layer_norm(x, weight, bias, eps, axis=axes)


def rms_norm(
    input: Any, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """input over the root of the mean of its squares over the last axes, scaled."""
    x = nm.asarray(input)
    axes = _trailing("rms_norm", x, normalized_shape)
    return nm.rms_norm(x, weight, eps, axis=axes)


@measured
def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """input over its p-norm along an axis."""
    order = as_number(p, "p", "normalize")
    length = nm.vector_norm(vector(input), axis=dim, keepdims=True, ord=order)
    return input / nm.clip(length if input.ndim else length[0], eps)


@rounds_once
def local_response_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """input (N, C, ...) over a power of the sum of squares of `size` neighbouring channels."""
    squares = input * input
    widths = [(0, 0)] * input.ndim
    widths[1] = (size // 2, (size - 1) // 2)
    windows = nm.sliding_window_view(nm.pad(squares, widths), size, axis=1)
    return input / (k + alpha * windows.mean(axis=-1)) ** beta


# -- distances ------------------------------------------------------------------------------------


@measured
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis of their common shape."""
    x1, x2 = (vector(x) for x in nm.broadcast_arrays(x1, nm.asarray(x2)))
    lengths = [nm.clip(nm.vector_norm(x, axis=dim), eps) for x in (x1, x2)]
    return nm.sum(x1 * x2, axis=dim) / (lengths[0] * lengths[1])


@measured
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""
    order = as_number(p, "p", "pairwise_distance")
    difference = vector(x1 - nm.asarray(x2) + eps)
    return nm.vector_norm(difference, axis=-1, keepdims=keepdim, ord=order)


@measured
def pdist(input: Any, p: float = 2.0) -> Tensor:
    """The p-norm of the difference of every two rows (N, M): N * (N - 1) / 2 of them."""
    if input.ndim != 2:
        raise ShapeError(f"pdist: takes a matrix, not shape {input.shape}")
    first, second = np.triu_indices(input.shape[0], 1)
    order = as_number(p, "p", "pdist")
    return nm.vector_norm(input[first] - input[second], axis=-1, ord=order)


# -- padding --------------------------------------------------------------------------------------

_PADDING = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def channel_shuffle(input: Any, groups: int) -> Tensor:
    """Channels (the second axis) of `groups` groups, one of each group in turn."""
    x = nm.asarray(input)
    count = x.shape[1] if x.ndim > 1 else 0
    if groups < 1 or x.ndim < 3 or count % groups:
        raise ShapeError(
            f"channel_shuffle: {groups} groups do not share the channels of shape {x.shape}"
        )
    parts = x.reshape((x.shape[0], groups, count // groups, *x.shape[2:]))
    return parts.swapaxes(1, 2).reshape(x.shape)


def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """input with room around it: pad = (left, right, top, bottom, ...), the last axis first."""
    x = nm.asarray(input)
    if len(pad) % 2 or len(pad) > 2 * x.ndim or mode not in _PADDING:
        raise ValueError(
            f"pad: takes pairs for the last axes and a mode of {', '.join(_PADDING)}, not "
            f"{tuple(pad)} and {mode!r} for shape {x.shape}"
        )
    widths = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    cuts = [(max(-a, 0), max(-b, 0)) for a, b in widths]  # negative widths take away
    lead = x.ndim - len(widths)
    x = x[(..., *(slice(a, n - b) for (a, b), n in zip(cuts, x.shape[lead:], strict=True)))]
    widths = [(0, 0)] * lead + [(max(a, 0), max(b, 0)) for a, b in widths]
    options: dict[str, Any] = {}
    if mode == "constant":
        options["constant_values"] = 0.0 if value is None else value
    return nm.pad(x, widths, mode=_PADDING[mode], **options)
