"""Functions of modules that are loaded late and are differentiated; NumPy has more cases of all of
them in tests/functions/test_numpy_names.py."""

import numpy as np

from ops.row import case, fraction, op, x

FEW = {"dtypes": ("float32", "float64")}


def cov(a, **kwargs):
    return np.cov(a, **kwargs)


def embedded(a):
    return np.stack([np.diag(line) for line in a])


def reduced(function):
    """A reduction of NumPy's with numus's names of arguments."""
    return lambda a, *args, correction=0, **kwargs: function(a, *args, ddof=correction, **kwargs)


ROWS = [
    op(
        "quantile",
        np.quantile,
        case(x(3, 5), [0.1, 0.5], axis=1),
        case(x(7), 0.3, method="hazen"),
        dtypes=("float32", "float64", "float16", "int32"),
        out=fraction,
        ulps=16,
        orders=1,
    ),
    op("median", np.median, case(x(4, 3), axis=0, keepdims=True), **FEW, ulps=16, orders=1),
    op("nanquantile", np.nanquantile, case(x(3, 5), 0.3, axis=1), **FEW, ulps=16, orders=1),
    op("nanvar", reduced(np.nanvar), case(x(3, 4), axis=1, correction=1), **FEW, ulps=16),
    op("cov", cov, case(x(3, 5)), **FEW, ulps=32, relative=False),
    op("corrcoef", np.corrcoef, case(x(2, 5)), **FEW, ulps=64, relative=False),
    op("gradient", np.gradient, case(x(6), 0.5, edge_order=2), **FEW, ulps=32, relative=False),
    op(
        "interp",
        np.interp,
        case(x(5), x(4, ascending=True, fixed=True), x(4)),
        **FEW,
        ulps=16,
        relative=False,
        orders=1,
    ),
    op("convolve", np.convolve, case(x(6), x(3), "same"), **FEW, ulps=16, relative=False),
    op("diag_embed", embedded, case(x(2, 3)), **FEW, ulps=0),
    op(
        "div",
        lambda a, b, rounding_mode: np.trunc(a / b),
        case(x(5), x(5, low=0.5, high=0.9), rounding_mode="trunc"),
        dtypes=("float32", "float64", "int32"),
        orders=0,
    ),
    op("ldexp", np.ldexp, case(x(3), np.array([2, -1, 0], np.int32)), **FEW, ulps=0),
]
