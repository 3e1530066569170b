"""Quantised tensors: formats of few bits, and products that read them (docs/quantization.md)."""

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

__all__ = [
    "MX", "NF4", "NVFP4", "Q8", "Affine", "BlockFP8", "Format", "Integers", "QTensor",
    "Superblocks", "Symmetric", "dequantize", "load_gguf", "matmul", "quantize", "save_gguf",
]  # fmt: skip
