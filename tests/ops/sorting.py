"""Sorting, searching, counting, sets."""

import math

import numpy as np

from ops.row import (
    ANY,
    BOOL,
    INT64,
    INTEGERS,
    REALS,
    case,
    exactly,
    op,
    same,
    x,
)

inf, nan = math.inf, math.nan
EDGES = (-2.0, -0.5, 0.1, 2.0)
ORDERED = (*REALS, *INTEGERS, "bool", "float8_e4m3fn", "float8_e5m2")
TIES = case(exactly(1, 0, 1, 0, 1, 3, 0))
NANS = case(exactly(1.0, nan, -inf, 0.0, nan, inf))
DATA = {"vmap": False}  # the shape of the result depends on the values
FEW = ("float32", "float64", "int64", "uint8", "bool")  # searches take long to compile


def argsort(a, axis=-1, descending=False):
    if not descending:
        return np.argsort(a, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
    return np.flip(a.shape[axis] - 1 - backwards, axis)


def sort(a, axis=-1, descending=False):
    return np.take_along_axis(a, argsort(a, axis, descending), axis)


def topk(a, k, dim=-1, largest=True):
    order = np.take(argsort(a, dim, largest), range(k), dim)
    return np.take_along_axis(a, order, dim), order


def searchsorted(line, values, side="left"):
    return np.searchsorted(line, values, side=side)


def histogram(a, bins=10, range=None, density=False, weights=None):
    counts, edges = np.histogram(a, bins, range, density, weights)
    return counts, edges


def lexsort(keys, axis=-1):
    return np.lexsort(keys, axis)


def segments(combine, blank):
    """A reduction over segments, one element at a time."""

    def reduced(data, ids, count):
        wide = np.float64 if data.dtype.kind == "f" else data.dtype
        out = np.full((count, *data.shape[ids.ndim :]), blank(data.dtype), wide)
        inside = (ids >= 0) & (ids < count)
        with np.errstate(all="ignore"):
            combine.at(out, ids[inside], data[inside])
        return out.astype(data.dtype)

    return reduced


def segment_mean(data, ids, count):
    sums = segments(np.add, lambda d: 0)(data.astype(np.float64), ids, count)
    found = segments(np.add, lambda d: 0)(np.ones(ids.shape), ids, count)
    with np.errstate(all="ignore"):
        return (sums / found.reshape(count, *(1,) * (sums.ndim - 1))).astype(data.dtype)


def least(dtype):
    return -inf if dtype.kind == "f" else np.iinfo(dtype).min


def most(dtype):
    return inf if dtype.kind == "f" else np.iinfo(dtype).max


IDS = np.array([2, 0, 2, -1, 1, 0, 9])
SEGMENTED = ("float32", "float64", "int32", "uint8")

ROWS = [
    # -- sorting
    op(
        "sort",
        sort,
        case(x(3, 7)),
        case(x(70), descending=True),
        case(x(5, 2), axis=0),
        case(x(0, 2)),
        values=[
            NANS,
            case(*NANS.args, descending=True),
            case(x(3, 5_000)),
            case(x(700, 20), axis=0),
        ],
        dtypes=(*ORDERED, "complex64", "complex128"),
        ulps=0,
    ),
    op(
        "argsort",
        argsort,
        case(x(3, 7)),
        case(x(70), descending=True),
        case(x(5, 2), axis=0),
        values=[TIES, case(*TIES.args, descending=True), NANS, case(x(3, 5_000), descending=True)],
        dtypes=(*ORDERED, "complex64"),
        out=INT64,
        orders=0,
    ),
    op(
        "lexsort",
        lexsort,
        case([x(9), x(9)]),
        dtypes=REALS,
        out=INT64,
        orders=0,
        values=[case([exactly(2, 1, 1), exactly(0, 1, 0)])],
    ),
    op(
        "topk",
        topk,
        case(x(3, 7), 2),
        case(x(5, 2), 3, 0, False),
        case(x(4), 0),
        values=[
            case(*TIES.args, 4),
            case(*NANS.args, 3),
            case(x(3, 400), 130),  # so many that rows are sorted
            case(x(2, 20_000), 7),  # parts of rows
        ],
        dtypes=(*FEW, "float16"),
        out=(same, INT64),
        ulps=0,
    ),
    # -- searching
    *(
        op(
            name,
            reference,
            case(x(3, 5), axis=1),
            case(x(3, 5)),
            case(x(4, 2), axis=0, keepdims=True),
            case(x()),
            case(x(0, 3), axis=1),
            values=[TIES, NANS, case(x(2, 70_000), axis=1), case(x(5_000, 20), axis=0)],
            dtypes=ORDERED,
            out=INT64,
            orders=0,
        )
        for name, reference in (("argmax", np.argmax), ("argmin", np.argmin))
    ),
    *(
        op(
            name,
            getattr(np, name),
            case(x(3, 5)),
            case(x(0, 2)),
            values=[TIES],
            dtypes=ANY,
            out=INT64,
            orders=0,
            **DATA,
        )
        for name in ("nonzero", "argwhere", "flatnonzero")
    ),
    op(
        "searchsorted",
        searchsorted,
        case(x(9, ascending=True), x(3, 4)),
        case(x(70, ascending=True), x(5), side="right"),
        case(x(0), x(2)),
        values=[case(exactly(0, 1, 1, 3), exactly(0, 1, 2, 3, 4), side="right")],
        dtypes=(*FEW, "bfloat16"),
        out=INT64,
        orders=0,
    ),
    # -- counting
    op(
        "bincount",
        np.bincount,
        case(x(20, low=0, high=6)),
        case(x(5, low=0, high=6), minlength=9),
        case(x(0)),
        dtypes=INTEGERS[:-1],
        out=INT64,
        orders=0,
        **DATA,
    ),
    op(
        "histogram",
        histogram,
        case(x(50)),
        case(x(3, 5), 4, (-1, 1)),
        case(x(0), 3),
        values=[case(exactly(*EDGES, 1.0, 9.0), exactly(*EDGES))],
        dtypes=("float32", "float64"),
        out=(INT64, same),
        relative=False,
    ),
    op(
        "digitize",
        np.digitize,
        case(x(3, 5), x(4, ascending=True)),
        case(x(5), x(4, ascending=True), right=True),
        case(x(5), np.array([2.0, 1.0, -1.0], np.float32)),
        case(x(2, 0), x(3, ascending=True)),
        dtypes=FEW[:-1],
        out=INT64,
        orders=0,
    ),
    # -- segments
    *(
        op(
            name,
            reference,
            case(x(7), IDS, 3),
            case(x(2, 3, 2), np.array([[0, 1, 0], [1, 1, 2]]), 3),
            values=[
                case(x(7, 2), IDS, 4),  # the last of them is empty
                case(x(0, 2), np.zeros(0, int), 2),
                *[case(x(60_000), np.arange(60_000) % 7, 7)] * (name != "segment_prod"),
            ],
            dtypes=SEGMENTED if name != "segment_mean" else SEGMENTED[:2],
            relative=False,
            ulps=300,
        )
        for name, reference in {
            "segment_sum": segments(np.add, lambda d: 0),
            "segment_prod": segments(np.multiply, lambda d: 1),
            "segment_max": segments(np.maximum, least),
            "segment_min": segments(np.minimum, most),
            "segment_mean": segment_mean,
        }.items()
    ),
    # -- sets
    op("unique", np.unique, case(x(3, 4)), case(x(0)), values=[TIES, NANS], dtypes=FEW, **DATA),
    *(
        op(name, getattr(np, name), case(x(3, 4)), values=[TIES], dtypes=FEW, out=out, **DATA)
        for name, out in {
            "unique_counts": (same, INT64),
            "unique_inverse": (same, INT64),
            "unique_all": (same, INT64, INT64, INT64),
        }.items()
    ),
    op(
        *("unique_values", lambda a: np.unique(a, equal_nan=False)),
        case(x(3, 4)),
        values=[TIES],
        dtypes=(*FEW, "complex64"),
        **DATA,
    ),
    op(
        "isin",
        np.isin,
        case(x(3, 4), x(5)),
        case(x(3), x(0)),
        case(x(3), x(2), invert=True),
        values=[case(*TIES.args, exactly(1, 3))],
        dtypes=FEW,
        out=BOOL,
        orders=0,
    ),
    *(
        op(
            name,
            getattr(np, name),
            case(x(7), x(5)),
            case(x(0), x(2)),
            values=[case(*TIES.args, exactly(1, 7, 3, 1))],
            dtypes=FEW,
            **DATA,
        )
        for name in ("intersect1d", "union1d", "setdiff1d", "setxor1d")
    ),
]
