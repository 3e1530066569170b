"""Reductions, statistics, normalisations, running reductions."""

import math
import warnings

import numpy as np
import scipy.special

from ops.row import (
    ALL,
    ANY,
    BOOL,
    COMPLEX_FRACTIONS,
    FRACTIONS,
    INT64,
    NARROWEST,
    NUMBERS,
    REALS,
    case,
    counting,
    exactly,
    fraction,
    op,
    real,
    x,
)

inf, nan = math.inf, math.nan
SUMS = {"relative": False, "ulps": 8}
LONG_SUMS = {"relative": False, "ulps": 64}  # one after the other, down columns and in scans
GAPS = (1.0, nan, 3.0, nan, -2.0)


def reduction(name, reference, low=-2.0, high=2.0, empty=True, large=None, **options):
    """A function of an array and some of its axes."""

    def of(*shape, **arguments):
        return case(x(*shape, low=low, high=high), **arguments)

    cases = [
        of(3, 5, axis=1),
        of(2, 3, 4, axis=(0, -1), keepdims=True),
        of(37),
        of(),
        of(0, 3, axis=1),
        of(300, 3, axis=0),
    ]
    values = [*options.pop("values", []), *([of(0, 3, axis=0)] if empty else [])]
    if large is not None:  # enough to be split between threads, and columns enough for vectors
        for shape, axis in (((2, 70_000), 1), ((5_000, 20), 0), ((90_000,), None)):
            values.append(case(x(*shape, low=large[0], high=large[1]), axis=axis))
    return op(name, reference, *cases, values=values, **options)


def running(name, reference, low=-2.0, high=2.0, large=None, **options):
    """A function of an array and one axis."""
    cases = [
        case(x(3, 5, low=low, high=high), axis=1),
        case(x(4, 2, 3, low=low, high=high), axis=0),
        case(x(70, low=low, high=high), axis=-1),
        case(x(0, 3), axis=0),
    ]
    if large is not None:
        longer = [case(x(90_000, low=large[0], high=large[1]), axis=0)]
        longer.append(case(x(700, 30, low=large[0], high=large[1]), axis=0))
        options["values"] = [*options.get("values", []), *longer]
    return op(name, reference, *cases, **options)


def rows_of(name, reference, **options):
    """A function that keeps the shape and works along axes: softmax and its kin."""
    cases = [
        case(x(3, 5)),
        case(x(2, 3, 4), axis=(0, 1)),
        case(x(70), axis=0),
        case(x(2, 0)),
    ]
    values = [case(exactly(-1e3, 1e3, 998.0)), case(x(3, 5000)), case(x(600, 20), axis=0)]
    return op(name, reference, *cases, values=values, relative=False, **options)


def layer_norm(a, weight=None, bias=None, eps=1e-5, axis=None):
    axes = -1 if axis is None else axis
    if weight is not None:
        axes = tuple(range(-weight.ndim, 0))
    out = (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + eps)
    return out * (1 if weight is None else weight) + (0 if bias is None else bias)


def exact_cumsum(a, *args, **options):
    """np.cumsum, but that its own rounding errors do not add up over long axes."""
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(a.dtype.kind, a.dtype)
    return np.cumsum(a.astype(wide), *args, **options)


def rms_norm(a, weight=None, eps=None, axis=None):
    axes = -1 if axis is None else axis
    mean = np.mean(a * a, axis=axes, keepdims=True)
    return a / np.sqrt(mean + (eps or 0)) * (1 if weight is None else weight)


def channels(a, part):
    return part.reshape(-1, *(1,) * (a.ndim - 2))


def batch_norm(a, mean=None, var=None, weight=None, bias=None, training=False, eps=1e-5):
    if training or mean is None:
        axes = (0, *range(2, a.ndim))
        mean, var = a.mean(axes), a.var(axes)
    out = (a - channels(a, mean)) / np.sqrt(channels(a, var) + eps)
    out = out * (1 if weight is None else channels(a, weight))
    return out + (0 if bias is None else channels(a, bias))


def group_norm(a, groups, weight=None, bias=None, eps=1e-5):
    out = layer_norm(a.reshape(len(a), groups, a[0].size // groups if len(a) else 1), eps=eps)
    out = out.reshape(a.shape) * (1 if weight is None else channels(a, weight))
    return out + (0 if bias is None else channels(a, bias))


def instance_norm(a, mean=None, var=None, weight=None, bias=None, eps=1e-5):
    return group_norm(a, a.shape[1], weight, bias, eps)


def vector_norm(a, ord=2, axis=None, keepdims=False):
    if isinstance(axis, tuple):
        moved = np.moveaxis(a, axis, range(len(axis)))
        lines = moved.reshape(-1, *moved.shape[len(axis) :])
        out = np.linalg.norm(lines, ord, axis=0)
        return np.expand_dims(out, sorted(i % a.ndim for i in axis)) if keepdims else out
    a = a if axis is not None else a.reshape(-1)
    return np.linalg.norm(a, ord, axis=0 if axis is None else axis, keepdims=keepdims)


def average(a, axis=None, weights=None, keepdims=False):
    return np.average(a, axis=axis, weights=weights, keepdims=keepdims)


def cumulated(ufunc):
    def apply(a, axis=None):
        return ufunc.accumulate(a.reshape(-1) if axis is None else a, 0 if axis is None else axis)

    return apply


def logsumexp(a, axis=None, keepdims=False):
    if a.size == 0:
        return np.log(np.sum(np.exp(a), axis=axis, keepdims=keepdims))
    return scipy.special.logsumexp(a, axis=axis, keepdims=keepdims)


def softmax(a, axis=-1):
    return scipy.special.softmax(a, axis) if a.size else a


def log_softmax(a, axis=-1):
    return scipy.special.log_softmax(a, axis) if a.size else a


def quietly(function):
    """NumPy's means of nothing warn; ours do not."""

    def apply(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return apply


def corrected(function):
    """NumPy's functions of variance with our names."""

    def apply(a, axis=None, correction=0, keepdims=False):
        return quietly(function)(a, axis=axis, ddof=correction, keepdims=keepdims)

    return apply


def var_mean(a, axis=None, correction=0, keepdims=False):
    return corrected(np.var)(a, axis, correction, keepdims), quietly(np.mean)(
        a, axis=axis, keepdims=keepdims
    )


_DISPERSION = [case(x(3, 5), axis=1, correction=1), case(x(7), correction=0.5)]

ROWS = [
    # -- sums, extremes, truth
    reduction("sum", np.sum, large=(0.5, 1.5), dtypes=ALL[:-2], out=counting, **LONG_SUMS),
    reduction("prod", np.prod, 0.5, 1.5, dtypes=(*NUMBERS, "bool"), out=counting, **SUMS),
    reduction("count_nonzero", np.count_nonzero, large=(-2, 2), dtypes=ANY, out=INT64, orders=0),
    reduction(
        "nansum", np.nansum, values=[case(exactly(*GAPS))], dtypes=NUMBERS, out=counting, **SUMS
    ),
    reduction(
        *("max", np.max),
        empty=False,
        large=(-9, 9),
        values=[case(exactly(1.0, nan, 3.0)), case(exactly(1.0, inf, -inf))],
        dtypes=(*REALS, "bool"),
        aliases=["amax"],
    ),
    reduction(
        *("min", np.min),
        empty=False,
        large=(-9, 9),
        values=[case(exactly(1.0, nan, 3.0)), case(exactly(1.0, inf, -inf))],
        dtypes=(*REALS, "bool"),
        aliases=["amin"],
    ),
    reduction("ptp", np.ptp, empty=False, dtypes=REALS),
    reduction(
        *("nanmax", quietly(np.nanmax)),
        empty=False,
        values=[case(exactly(*GAPS)), case(exactly(nan, nan))],
        dtypes=(*REALS, *NARROWEST),
    ),
    reduction(
        *("nanmin", quietly(np.nanmin)),
        empty=False,
        values=[case(exactly(*GAPS)), case(exactly(nan, nan))],
        dtypes=(*REALS, *NARROWEST),
    ),
    reduction("any", np.any, dtypes=ANY, out=BOOL, orders=0, values=[case(exactly(0.0, nan))]),
    reduction("all", np.all, dtypes=ANY, out=BOOL, orders=0, values=[case(exactly(0.0, nan))]),
    # -- norms
    op(
        "vector_norm",
        vector_norm,
        case(x(3, 5), axis=1),
        case(x(2, 3, 4), axis=(0, 2), keepdims=True),
        case(x(7), ord=3),
        case(x(7), ord=1),
        case(x(3, 4), ord=inf, axis=0),
        case(x(3, 4), ord=-inf, axis=0),
        case(x(7), ord=-1.5),
        case(x()),
        values=[case(exactly(0.0, 3.0, 0.0), ord=0), case(exactly(0.0, 0.0))],
        dtypes=COMPLEX_FRACTIONS,
        out=real,
        **SUMS,
    ),
    op(
        "norm",
        lambda a, ord=None, axis=None: vector_norm(a, 2 if ord in (None, "fro") else ord, axis),
        case(x(3, 5)),
        case(x(3, 5), "fro", 1),
        case(x(7), 1),
        case(x(0, 3), axis=0),
        dtypes=COMPLEX_FRACTIONS,
        out=real,
        **SUMS,
    ),
    # -- statistics
    reduction(
        "mean",
        quietly(np.mean),
        large=(0.5, 1.5),
        dtypes=COMPLEX_FRACTIONS,
        out=fraction,
        **LONG_SUMS,
    ),
    reduction("var", corrected(np.var), dtypes=COMPLEX_FRACTIONS, out=real, **SUMS).replace(
        cases=(*_DISPERSION, case(x(2, 3, 4), axis=(0, 2), keepdims=True), case(x(0, 3), axis=1))
    ),
    reduction("std", corrected(np.std), dtypes=COMPLEX_FRACTIONS, out=real, **SUMS).replace(
        cases=(*_DISPERSION, case(x(2, 3, 4), axis=(0, 2), keepdims=True), case(x(0, 3), axis=1)),
        values=(case(exactly(2.0, 2.0, 2.0)),),
    ),
    op(
        "var_mean",
        var_mean,
        *_DISPERSION,
        case(x(300, 3), axis=0),
        dtypes=COMPLEX_FRACTIONS,
        out=(real, fraction),
        **SUMS,
    ),
    reduction("nanmean", quietly(np.nanmean), values=[case(exactly(*GAPS))], **SUMS),
    op(
        "average",
        average,
        case(x(3, 5), axis=1, weights=x(5, low=0.5, high=2)),
        case(x(3, 5), weights=x(3, 5, low=0.5, high=2)),
        case(x(3, 5), axis=0, keepdims=True),
        **SUMS,
    ),
    # -- softmax and its kin
    reduction(
        *("logsumexp", logsumexp),
        large=(-3, 3),
        values=[
            case(exactly(-1e3, 1e3, 998.0)),
            case(exactly(-inf, -inf)),
            case(exactly(inf, 1.0)),
        ],
        dtypes=FRACTIONS,
        out=fraction,
        **SUMS,
    ),
    rows_of("softmax", softmax, ulps=8),
    rows_of("softmin", lambda a, axis=-1: softmax(-a, axis), ulps=8),
    rows_of("log_softmax", log_softmax, ulps=8),
    op(
        "layer_norm",
        layer_norm,
        case(x(3, 8), x(8), x(8)),
        case(x(2, 3, 4), x(3, 4), eps=0.1),
        case(x(4, 6), axis=0),
        case(x(3, 70)),
        case(x(0, 3)),
        relative=False,
        ulps=32,
    ),
    op(
        "rms_norm",
        rms_norm,
        case(x(3, 8), x(8)),
        case(x(2, 3, 4), eps=0.1, axis=(1, 2)),
        case(x(3, 70)),
        case(x(0, 3)),
        relative=False,
        ulps=16,
    ),
    op(
        "batch_norm",
        batch_norm,
        case(x(4, 3), training=True),
        case(x(4, 3, 5), None, None, x(3), x(3)),
        case(x(2, 3, 2, 2), x(3, fixed=True), x(3, low=0.5, fixed=True), x(3), eps=0.1),
        relative=False,
        ulps=32,
    ),
    op(
        "Tensor.batch_norm_2d",
        lambda a, w, b, m, v, eps, t: batch_norm(a, m, v, w, b, t, eps=eps),
        case(x(2, 3, 2, 2), x(3), x(3), x(3, fixed=True), x(3, low=0.5, fixed=True), 0.1, False),
        values=[case(x(2, 3, 2, 2), x(3), x(3), x(3), x(3, low=0.5), 0.1, True)],
        relative=False,
        ulps=32,
    ),
    op(
        "group_norm",
        group_norm,
        case(x(2, 4, 3), 2),
        case(x(2, 6), 3, x(6), x(6), eps=0.1),
        case(x(1, 4, 3, 2), 2),
        relative=False,
        ulps=32,
    ),
    op(
        "instance_norm",
        instance_norm,
        case(x(2, 3, 5)),
        case(x(2, 3, 2, 2), None, None, x(3), x(3), eps=0.1),
        relative=False,
        ulps=32,
    ),
    # -- running reductions
    running(
        *("cumulative_sum", np.cumulative_sum),
        values=[case(exactly(1, 2, 3), include_initial=True)],
        dtypes=(*NUMBERS, "bool"),
        out=counting,
        **SUMS,
    ),
    running(
        *("cumulative_prod", np.cumulative_prod, 0.5, 1.5),
        values=[case(exactly(1, 2, 3), include_initial=True), case(exactly(2, 0, 3, 0, 1))],
        dtypes=(*NUMBERS, "bool"),
        out=counting,
        **SUMS,
    ),
    running(
        *("cumsum", exact_cumsum),
        values=[case(x(2, 3))],
        large=(0.1, 0.6),  # whose sums don't come near the largest float16
        dtypes=NUMBERS,
        out=counting,
        **LONG_SUMS,
    ),
    running(
        *("cumprod", np.cumprod, 0.5, 1.5),
        values=[case(x(2, 3)), case(exactly(2, 0, 3, 0, 1))],
        dtypes=NUMBERS,
        out=counting,
        **SUMS,
    ),
    running("cummax", cumulated(np.maximum), large=(-9, 9), dtypes=(*REALS, "bool")),
    running(
        *("cummin", cumulated(np.minimum)),
        values=[case(x(2, 3)), case(exactly(3.0, 1.0, nan, 0.0))],
        dtypes=(*REALS, "bool"),
    ),
    running(
        *("logcumsumexp", cumulated(np.logaddexp)),
        values=[case(exactly(-1e3, 1e3, 998.0)), case(exactly(-inf, -inf, 0.0))],
        dtypes=FRACTIONS,
        out=fraction,
        **SUMS,
    ),
    op(
        "diff",
        np.diff,
        case(x(3, 5)),
        case(x(5, 3), axis=0, n=2, prepend=x(1, 3)),
        case(x(4), append=1.0),
        case(x(0, 3), axis=1),
        dtypes=(*NUMBERS, "bool"),
        relative=False,
    ),
]
