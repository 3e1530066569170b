"""Quantised tensors: formats of few bits, and products that read them (docs/quantization.md)."""

from typing import TYPE_CHECKING, Any

from numus.quant.algorithms import (
    Outliers,
    awq,
    gptq,
    hqq,
    outlier_columns,
    search_scales,
    smooth_scale,
    spqr,
)
from numus.quant.floats import MX, NVFP4, BlockFP8
from numus.quant.formats import Format
from numus.quant.gguf import load_gguf, save_gguf
from numus.quant.gguf_blocks import Affine, Symmetric
from numus.quant.gguf_superblocks import Superblocks
from numus.quant.integers import Integers
from numus.quant.nf4 import NF4
from numus.quant.products import matmul
from numus.quant.q8 import Q8
from numus.quant.qtensor import QTensor, dequantize, quantize

if TYPE_CHECKING:
    from numus.nn.quantized.models import (
        LayerReport,
        QuantizationReport,
        load_quantized,
        quantize_,
        save_quantized,
    )

_OF_MODELS = "LayerReport QuantizationReport load_quantized quantize_ save_quantized".split()

__all__ = [
    "MX", "NF4", "NVFP4", "Q8", "Affine", "BlockFP8", "Format", "Integers", "LayerReport",
    "Outliers", "QTensor", "QuantizationReport", "Superblocks", "Symmetric", "awq", "dequantize",
    "gptq", "hqq", "load_gguf", "load_quantized", "matmul", "outlier_columns", "quantize",
    "quantize_", "save_gguf", "save_quantized", "search_scales", "smooth_scale", "spqr",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What stands on layers is imported when it is asked for: `numus.nn` stands on this package."""
    if name not in _OF_MODELS:
        raise AttributeError(f"module 'numus.quant' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("numus.nn.quantized.models"), name)
