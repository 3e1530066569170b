"""Algorithms that choose codes: scale search, GPTQ, AWQ, SpQR, HQQ, SmoothQuant, outliers."""

from numus.quant.algorithms.channel_scales import awq
from numus.quant.algorithms.column_updates import gptq, spqr
from numus.quant.algorithms.half_quadratic import hqq
from numus.quant.algorithms.outliers import Outliers, outlier_columns, smooth_scale
from numus.quant.algorithms.search import search_scales

__all__ = [
    "Outliers", "awq", "gptq", "hqq", "outlier_columns", "search_scales", "smooth_scale", "spqr",
]  # fmt: skip
