"""Layers with quantised weights: a module holds the parts of a `QTensor` as buffers."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn.layers.conv import Conv2d
from numus.nn.layers.embedding import Embedding
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.quant.algorithms import Outliers
from numus.quant.formats import as_format
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

__all__ = ["QConv2d", "QEmbedding", "QLinear"]

OUTLIERS = (
    *("outlier_columns", "outlier_weight"),  # whole columns
    *("single_rows", "single_columns", "single_values"),
)
FEW_ROWS = 64  # of inputs; for more, outliers are added to the unpacked weight


class _Quantized(Module):
    """Holds a quantised weight: buffers `weight_codes`, `weight_scales` …, by the format's parts.

    The state dict has these buffers; a module of the same format and shape loads them.
    """

    def _hold(self, weight: QTensor) -> None:
        self._meta = (weight.format, weight.stored_shape, weight.dtype, weight.axis)
        self._parts = [f"weight_{part}" for part in weight.format.layout(weight.stored_shape)]
        for name, part in zip(self._parts, weight.parts, strict=True):
            self.register_buffer(name, part)

    @property
    def weight(self) -> QTensor:
        """The quantised weight."""
        format, shape, dtype, axis = self._meta
        parts = tuple(getattr(self, name) for name in self._parts)
        return QTensor(format, shape, parts, dtype, axis)

    @property
    def format(self) -> str:
        """The name of the weight's format."""
        return str(self._meta[0].name)


def _empty(shape: tuple[int, ...], format: Any, device: Any) -> QTensor:
    """A weight of zeros, to be loaded into."""
    found = as_format(format)
    parts = tuple(nm.zeros(s, dtype=d, device=device) for s, d in found.layout(shape).values())
    return QTensor(found, shape, parts, nm.float32)


class QLinear(_Quantized):
    """x @ weight.T + bias with a weight of few bits, which the product reads as it is.

    >>> from numus import nn
    >>> nn.QLinear.of(nn.Linear(64, 8), "int4-g32")
    QLinear(in_features=64, out_features=8, bias=True, format=int4-g32)

    Args:
        format: as `nm.quant.quantize` takes it; the layer starts with zeros, to be loaded into.

    `activations` is what `nm.quant.matmul` rounds inputs to: None, "int8" or "fp8".
    """

    activations: str | None = None
    bias: Tensor | None
    input_order: Tensor | None
    input_scale: Tensor | None
    outlier_columns: Tensor | None
    outlier_weight: Tensor | None
    single_rows: Tensor | None
    single_columns: Tensor | None
    single_values: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        format: Any = "int4-g128",
        device: Any = None,
    ) -> None:
        shape = (out_features, in_features)
        zeros = nm.zeros((out_features,), device=device) if bias else None
        self._fill(_empty(shape, format, device), zeros)

    def _fill(self, weight: QTensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._hold(weight)
        self.register_buffer("bias", bias)
        self.register_buffer("input_order", None)
        self.register_buffer("input_scale", None)
        for name in OUTLIERS:
            self.register_buffer(name, None)

    @classmethod
    def of(
        cls,
        layer: Linear,
        weight: Any = "int4-g128",
        input_scale: Tensor | None = None,
        outliers: tuple[Tensor, Tensor] | Outliers | None = None,
    ) -> QLinear:
        """The layer with its weight rounded to a format, or given as a `QTensor`.

        Args:
            input_scale: inputs are multiplied by it (AWQ, SmoothQuant).
            outliers: columns of the input, and their weight in full, (outputs, columns); or single
                weights (SpQR).
        """
        self = cls.__new__(cls)
        given = weight if isinstance(weight, QTensor) else nm.quant.quantize(layer.weight, weight)
        if given.shape != layer.weight.shape:
            raise ShapeError(
                f"QLinear.of: a weight of shape {given.shape} for a layer of {layer.weight.shape}"
            )
        self._fill(given, None if layer.bias is None else layer.bias.detach())
        self.input_scale = input_scale
        if isinstance(outliers, Outliers):
            if outliers.values.size:
                self.single_rows, self.single_columns = outliers.rows, outliers.columns
                self.single_values = outliers.values
        elif outliers is not None:
            self.outlier_columns, self.outlier_weight = outliers
        return self

    def forward(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        if self.input_order is not None:
            x = nm.take(x, self.input_order, axis=-1)
        scaled = x if self.input_scale is None else x * self.input_scale.astype(x.dtype)
        single = self._single()
        if single is None:
            y = nm.quant.matmul(scaled, self.weight.T, activations=self.activations)
        else:
            y = self._with_single(scaled, single)
        if self.outlier_columns is not None and self.outlier_weight is not None:
            own = nm.take(x, self.outlier_columns, axis=-1)
            y = y + own @ self.outlier_weight.astype(x.dtype).T
        return y if self.bias is None else y + self.bias.astype(y.dtype)

    def _single(self) -> Outliers | None:
        rows, columns, values = self.single_rows, self.single_columns, self.single_values
        if rows is None or columns is None or values is None:
            return None
        return Outliers(rows, columns, values)

    def _with_single(self, x: Tensor, single: Outliers) -> Tensor:
        """The product of a weight with single elements in full."""
        flat = x.reshape(-1, self.in_features)
        if flat.shape[0] > FEW_ROWS and self.activations is None:
            dense = self.weight.dequantize(nm.float32) + single.dense(self.weight.shape)
            y = flat @ dense.astype(x.dtype, copy=False).T
        else:
            y = nm.quant.matmul(flat, self.weight.T, activations=self.activations)
            terms = nm.take(flat.T, single.columns, axis=0).astype(nm.float32, copy=False)
            terms = terms * single.values[:, None].astype(nm.float32)
            sums = nm.segment_sum(terms, single.rows, self.out_features)
            y = y + sums.T.astype(y.dtype, copy=False)
        return y.reshape(*x.shape[:-1], self.out_features)

    def dense_weight(self) -> Tensor:
        """The float32 weight that the layer stands for, in the order of its inputs."""
        w = self.weight.dequantize(nm.float32)
        single = self._single()
        if single is not None:
            w = w + single.dense(w.shape)
        if self.input_scale is not None:
            w = w * self.input_scale
        if self.input_order is not None:
            w = nm.take(w, nm.argsort(self.input_order), axis=1)
        if self.outlier_columns is not None and self.outlier_weight is not None:
            own = nm.zeros_like(w).at[:, self.outlier_columns]
            w = w + own.add(self.outlier_weight.astype(nm.float32))
        return w

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format}"
        )


class QEmbedding(_Quantized):
    """Rows of a quantised table: only those that are asked for are unpacked.

    >>> from numus import nn
    >>> nn.QEmbedding.of(nn.Embedding(10, 64), "int8-row")(nm.asarray([1, 2])).shape
    (2, 64)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, format: Any = "int8-row", device: Any = None
    ) -> None:
        self._fill(_empty((num_embeddings, embedding_dim), format, device))

    def _fill(self, weight: QTensor) -> None:
        self.num_embeddings, self.embedding_dim = weight.shape
        self._hold(weight)

    @classmethod
    def of(cls, layer: Embedding, weight: Any = "int8-row") -> QEmbedding:
        """The table rounded to a format, or given as a `QTensor`."""
        self = cls.__new__(cls)
        given = weight if isinstance(weight, QTensor) else nm.quant.quantize(layer.weight, weight)
        self._fill(given)
        return self

    def forward(self, indices: Any) -> Tensor:
        indices = nm.asarray(indices)
        format, (rows, width), dtype, _ = self._meta
        parts = tuple(getattr(self, name) for name in self._parts)
        if any(part.shape[:1] != (rows,) for part in parts):
            return nm.take(self.weight.dequantize(), indices, axis=0)
        flat = indices.reshape(-1)
        taken = tuple(nm.take(part, flat, axis=0) for part in parts)
        out = format.dequantize(taken, (flat.size, width)).astype(dtype)
        return out.reshape(*indices.shape, width)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, format={self.format}"


class QConv2d(_Quantized):
    """Convolution with a quantised weight: groups run over channels and taps of an output.

    >>> from numus import nn
    >>> nn.QConv2d.of(nn.Conv2d(8, 4, 3, padding=1), "int4-g32")(nm.ones((1, 8, 5, 5))).shape
    (1, 4, 5, 5)
    """

    bias: Tensor | None

    def __init__(self, *args: Any, format: Any = "int4-g32", **options: Any) -> None:
        layer = Conv2d(*args, **options)
        shape = (layer.weight.shape[0], layer.weight.size // layer.weight.shape[0])
        self._fill(layer, _empty(shape, format, layer.weight.device))

    def _fill(self, layer: Conv2d, weight: QTensor) -> None:
        self._shape = layer.weight.shape
        self._hold(weight)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups
        if layer.padding_mode != "zeros":
            raise ValueError(f"QConv2d pads with zeros, not by {layer.padding_mode!r}")

    @classmethod
    def of(cls, layer: Conv2d, weight: Any = "int4-g32") -> QConv2d:
        """The layer with its weight, (outputs, channels * taps), rounded to a format."""
        self = cls.__new__(cls)
        flat = layer.weight.detach().reshape(layer.weight.shape[0], -1)
        self._fill(
            layer, weight if isinstance(weight, QTensor) else nm.quant.quantize(flat, weight)
        )
        return self

    def forward(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        weight = self.weight.dequantize(x.dtype).reshape(self._shape)
        options = (self.stride, self.padding, self.dilation, self.groups)
        return nm.conv2d(x, weight, self.bias, *options)

    def extra_repr(self) -> str:
        return f"{self._shape[1] * self.groups}, {self._shape[0]}, format={self.format}"
