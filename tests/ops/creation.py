"""Tensors from numbers."""

import numpy as np

import numus as nm
from ops.row import (
    ALL,
    DTYPE,
    FLOATS,
    INT64,
    INTEGERS,
    NUMBERS,
    case,
    op,
    x,
)

# nothing to differentiate by or to batch
PLAIN = {"dtypes": ALL, "ulps": 0, "orders": 0, "vmap": False}


def of_like(function):
    return lambda a, *args, dtype=None: function(a.shape, *args, dtype=dtype or a.dtype)


def linspace(start, stop, num=50, endpoint=True, dtype=None):
    return np.linspace(start, stop, num, endpoint)


def logspace(start, stop, num=50, base=10.0, dtype=None):
    return np.logspace(start, stop, num, base=base)


def arange(*args, dtype=None):
    return np.arange(*args)


def one_hot(a, count, dtype=None):
    return np.arange(count) == a[..., None]


ROWS = [
    op(
        "zeros",
        np.zeros,
        case((2, 3), dtype=DTYPE),
        case((), dtype=DTYPE),
        case((0, 2), dtype=DTYPE),
        **PLAIN,
    ),
    op("ones", np.ones, case((2, 3), dtype=DTYPE), case(3, dtype=DTYPE), **PLAIN),
    op("empty", np.zeros, case((2, 3), dtype=DTYPE), **PLAIN),
    op("full", np.full, case((2, 3), 1, dtype=DTYPE), case((2, 3), x(3, fixed=True)), **PLAIN),
    op("zeros_like", of_like(np.zeros), case(x(2, 3, fixed=True)), **PLAIN),
    op("ones_like", of_like(np.ones), case(x(2, 3, fixed=True)), **PLAIN),
    op("empty_like", of_like(np.zeros), case(x(2, 3, fixed=True)), **PLAIN),
    op("full_like", of_like(np.full), case(x(2, 3, fixed=True), 1), **PLAIN),
    op(
        "arange",
        arange,
        case(2, 20, 3, dtype=DTYPE),
        case(9, 2, -2, dtype=DTYPE),
        case(0, dtype=DTYPE),
        **{**PLAIN, "dtypes": (*FLOATS, *INTEGERS)},
    ),
    op(
        "linspace",
        linspace,
        case(-1, 3, 7, dtype=DTYPE),
        case(0, 1, 5, endpoint=False, dtype=DTYPE),
        case(2, 3, 1, dtype=DTYPE),
        **{**PLAIN, "dtypes": FLOATS, "ulps": 2},
    ),
    op(
        "logspace",
        logspace,
        case(-1, 2, 5, dtype=DTYPE),
        case(0, 3, 4, base=2, dtype=DTYPE),
        **{**PLAIN, "dtypes": FLOATS, "ulps": 16},
    ),
    op(
        "eye",
        lambda n, m=None, k=0, dtype=None: np.eye(n, m, k),
        case(3, dtype=DTYPE),
        case(2, 4, k=1, dtype=DTYPE),
        case(0, dtype=DTYPE),
        **PLAIN,
    ),
    op("identity", lambda n, dtype=None: np.identity(n), case(3, dtype=DTYPE), **PLAIN),
    op(
        "tri",
        lambda n, m=None, k=0, dtype=None: np.tri(n, m, k),
        case(3, dtype=DTYPE),
        case(2, 4, k=1, dtype=DTYPE),
        **PLAIN,
    ),
    op(
        "meshgrid",
        np.meshgrid,
        case(x(2), x(3), x(4)),
        case(x(2), x(3), indexing="ij"),
        dtypes=NUMBERS,
        ulps=0,
    ),
    op("one_hot", one_hot, case(x(3, 4, low=0, high=4), 5), dtypes=INTEGERS, out=INT64, orders=0),
    op("from_numpy", lambda a: a, case(x(3, 4)), call=lambda a: nm.from_numpy(a.numpy()), **PLAIN),
    op(
        "frombuffer",
        np.frombuffer,
        case(np.arange(6.0).tobytes(), nm.float64),
        dtypes=("float64",),
        orders=0,
        vmap=False,
    ),
    op("from_dlpack", lambda a: a, case(x(3, 4)), dtypes=NUMBERS, vmap=False),
]
