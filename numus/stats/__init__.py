"""Statistics: moments, ranks, correlation, tests, densities, resampling; SciPy's names.

Functions reduce over `axis`, differentiate where the statistic does, and run on every device.
"""

# ruff: noqa: F403
from numus.functions.reduction.correlation import corrcoef, cov
from numus.functions.reduction.histograms_nd import histogram2d, histogramdd
from numus.functions.reduction.nan_reductions import nanprod, nanstd, nanvar
from numus.functions.reduction.quantiles import (
    median,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from numus.stats import association, binned, density, descriptive, hypothesis, resampling
from numus.stats.association import *
from numus.stats.binned import *
from numus.stats.density import *
from numus.stats.descriptive import *
from numus.stats.hypothesis import *
from numus.stats.resampling import *

__all__ = [
    "corrcoef", "cov", "histogram2d", "histogramdd", "median", "nanmedian", "nanpercentile",
    "nanprod", "nanquantile", "nanstd", "nanvar", "percentile", "quantile",
]  # fmt: skip
for _room in (association, binned, density, descriptive, hypothesis, resampling):
    __all__ += _room.__all__
