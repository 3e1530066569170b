"""Reading and writing at indices."""

import numpy as np

import numus as nm
from ops.row import ALL, NUMBERS, REALS, case, op, x

EXACT = {"dtypes": ALL, "ulps": 0, "signs": True}
FEW = {"dtypes": (*NUMBERS, "bool"), "ulps": 0}
LINES = np.array([[0, 2, 1], [2, 2, 0]])  # an index for every element, one place twice
POINTS = np.array([3, -1, 0, 3])
MANY = np.random.default_rng(0).integers(0, 50, (400, 20))
MASK = np.array([True, False, True, True])


def getitem(a, index):
    return a[index]


def setitem(a, index, value):
    a = a.copy()
    a[index] = value
    return a


def take_along(a, dim, index):
    return np.take_along_axis(a, index, dim)


def scattered(a, dim, index, src, reduce=None, include_self=True):
    """PyTorch's scatter, one element after the other."""
    out = a.copy()
    ufunc = {None: None, "add": np.add, "sum": np.add, "mean": np.add}
    ufunc |= {"prod": np.multiply, "multiply": np.multiply, "amax": np.maximum, "amin": np.minimum}
    count = np.full(a.shape, int(include_self))
    for place in np.ndindex(index.shape):
        at = list(place)
        at[dim] = index[place]
        at = tuple(at)
        value = src if np.ndim(src) == 0 else src[place]
        first = count[at] == 0
        out[at] = value if reduce is None or first else ufunc[reduce](out[at], value)
        count[at] += 1
    if reduce == "mean":
        divide = np.divide if out.dtype.kind in "fc" else np.floor_divide
        out = divide(out, np.maximum(count, 1)).astype(out.dtype)
    return out


def scatter_add(a, dim, index, src):
    return scattered(a, dim, index, src, "add")


def index_add(a, dim, index, source, alpha=1):
    out = a.copy()
    where = (slice(None),) * dim + (index,)
    np.add.at(out, where, (alpha * source).astype(a.dtype))
    return out


def index_put(a, indices, values, accumulate=False):
    out = a.copy()
    if accumulate:
        np.add.at(out, indices, values)
    else:
        out[indices] = values
    return out


def masked_fill(a, mask, value):
    return np.where(mask, np.asarray(value).astype(a.dtype), a)


def masked_scatter(a, mask, source):
    a, mask = np.broadcast_arrays(a, mask)
    out = a.copy()
    out[mask] = source.reshape(-1)[: np.count_nonzero(mask)]
    return out


def put(a, indices, values):
    out = a.copy()
    np.put(out, indices, values)
    return out


def put_along_axis(a, indices, values, axis=-1):
    out = a.copy()
    np.put_along_axis(out, indices, values, axis)
    return out


def slice_assign(a, value, axis, start):
    out = a.copy()
    out[(slice(None),) * axis + (slice(start, start + value.shape[axis]),)] = value
    return out


def on_a_copy(function):
    """What changes its argument in place, as a function of it."""

    def apply(a, *args, **kwargs):
        a = nm.copy(a)
        function(a, *args, **kwargs)
        return a

    return apply


SUMS = {"dtypes": NUMBERS, "relative": False}

ROWS = [
    op(
        "Tensor.__getitem__",
        getitem,
        case(x(3, 5), (slice(None, None, -1), slice(1, 4, 2))),
        case(x(4, 3), POINTS),
        case(x(2, 4, 3), (1, POINTS)),
        case(x(2, 3, 4), (Ellipsis, None, -1)),
        case(x(4, 4, 2), (POINTS, POINTS)),
        case(x(4, 2), (slice(2, 2),)),
        case(x(), ()),
        call=getitem,
        **EXACT,
    ),
    op(
        "Tensor.__setitem__",
        setitem,
        case(x(3, 5), (slice(None), slice(1, 4, 2)), x(3, 2)),
        case(x(4, 3), POINTS, x(3)),
        case(x(4, 3), MASK, 1),
        case(x(2, 3), (slice(0, 0),), x(3)),
        case(x(), (), x()),
        call=setitem,
        **EXACT,
    ),
    op(
        "index_put",
        index_put,
        case(x(4, 3), (POINTS,), x(3)),
        case(x(4, 3), (POINTS, np.array([0, 1, 2, 0])), x(4), accumulate=True),
        case(x(4, 3), (MASK,), x(3, 3)),
        vmap=False,  # how many a mask selects depends on it
        **SUMS,
    ),
    op(
        "take",
        np.take,
        case(x(3, 4), POINTS, axis=1),
        case(x(2, 3), LINES),
        case(x(3, 0), POINTS[2:3], axis=0),
        **EXACT,
    ),
    op("index_select", lambda a, d, i: np.take(a, i, d), case(x(3, 4), 1, POINTS), **FEW),
    op(
        "index_add",
        index_add,
        case(x(4, 3), 0, POINTS, x(4, 3)),
        case(x(2, 4), 1, POINTS, x(2, 4), alpha=2),
        **SUMS,
    ),
    op(
        "embedding_lookup",
        lambda w, i: w[i],
        case(x(5, 2), LINES),
        case(x(5), POINTS),
        case(x(3), LINES[:, :, None]),  # of lines that are one element long
        **FEW,
    ),
    op(
        "Tensor.embedding_forward",
        lambda i, w: w[i],
        case(LINES, x(5, 2)),
        **FEW,
    ),
    op("slice_assign", slice_assign, case(x(3, 5), x(3, 2), axis=1, start=1), **FEW),
    op(
        "take_along_axis",
        np.take_along_axis,
        case(x(2, 3), LINES, axis=1),
        case(x(4), POINTS),
        case(x(3, 1), LINES, axis=0),
        values=[case(x(50, 20), MANY, axis=0)],
        **EXACT,
    ),
    op(
        "put_along_axis",
        put_along_axis,
        case(x(2, 4), np.array([[0, 2], [3, 1]]), x(2, 2), axis=1),
        call=on_a_copy(nm.put_along_axis),
        **FEW,
    ),
    op(
        "put",
        put,
        case(x(2, 3), np.array([0, -1, 2]), x(2)),
        call=on_a_copy(nm.put),
        **FEW,
    ),
    op("gather", take_along, case(x(3, 3), 0, LINES), case(x(4), 0, POINTS[POINTS > 0]), **FEW),
    op(
        "gather_nd",
        lambda a, i: a[tuple(np.moveaxis(i, -1, 0))],
        case(x(3, 3, 2), LINES[:, :2]),
        case(x(3), np.array([[[1], [2]]])),
        **FEW,
    ),
    op("scatter", scattered, case(x(3, 3), 0, LINES, x(2, 3)), case(x(3), 0, LINES[0], 1), **EXACT),
    op(
        "scatter_add",
        scatter_add,
        case(x(3, 3), 1, LINES, x(2, 3)),
        values=[case(x(50, 20), 0, MANY, x(400, 20, low=0, high=1))],
        **SUMS,
    ),
    op(
        "scatter_reduce",
        scattered,
        case(x(3, 3), 0, LINES, x(2, 3), "sum"),
        case(x(3, 3), 1, LINES, x(2, 3), "prod"),
        case(x(3, 3), 1, LINES, x(2, 3), "mean", include_self=False),
        case(x(3, 3), 1, LINES, x(2, 3), "amax"),
        case(x(3, 3), 1, LINES, x(2, 3), "amin", include_self=False),
        values=[case(x(3, 3), 1, LINES, x(2, 3), "amin", include_self=False)],
        dtypes=(*REALS, "float8_e4m3fn"),
        relative=False,
    ),
    op(
        "masked_fill",
        masked_fill,
        case(x(3, 4), MASK, True),
        case(x(2, 0), np.array([[True], [False]]), False),
        **EXACT,
    ),
    op(
        "masked_select",
        lambda a, m: a[np.broadcast_to(m, a.shape)],
        case(x(3, 4), MASK),
        vmap=False,  # how many are selected depends on the mask
        **FEW,
    ),
    op(
        *("masked_scatter", masked_scatter),
        case(x(3, 4), MASK, x(10)),
        case(x(4), MASK, x(10)),  # x is broadcast
        case(x(2, 3, 4), MASK, x(20)),
        **FEW,
    ),
]
