"""Poolings against a walk over windows that are cut out one by one."""

import itertools
import math

import numpy as np

from ops.row import FLOATS, INT64, REALS, case, op, same, x


def bounds(size, kernel, stride, padding, dilation, ceil):
    """For each window of an axis: the places it reads, and where its margins end."""
    stride = kernel if stride is None else stride
    reach = (kernel - 1) * dilation + 1
    room = size + 2 * padding - reach
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1
    for i in range(count):
        start = i * stride - padding
        places = [p for p in range(start, start + reach, dilation) if 0 <= p < size]
        yield places, min(start + kernel, size + padding) - start


def parts(size, count):
    """Adaptive windows of an axis."""
    for i in range(count):
        places = list(range(i * size // count, -(-(i + 1) * size // count)))
        yield places, len(places)


def walk(a, windows, f):
    """f of (elements of the window, their places in space, elements with margins), everywhere."""
    rank = len(windows)
    space = a.shape[a.ndim - rank :]
    flat = np.arange(int(np.prod(space))).reshape(space)
    shape = [len(w) for w in windows]
    outs = None
    for at in itertools.product(*map(range, shape)):
        chosen = [windows[i][p] for i, p in enumerate(at)]
        grid = np.ix_(*[c[0] for c in chosen])
        values = a[(..., *grid)].reshape(*a.shape[: a.ndim - rank], -1)
        got = f(values, flat[grid].reshape(-1), int(np.prod([c[1] for c in chosen])))
        if outs is None:
            outs = [np.zeros((*r.shape, *shape), r.dtype) for r in got]
        for out, r in zip(outs, got, strict=True):
            out[(..., *at)] = r
    return outs


def each(value, rank):
    return [value] * rank if not isinstance(value, (tuple, list)) else list(value)


def evenly(a, rank, kernel, stride, padding, dilation, ceil):
    k, s, p, d = (each(v, rank) for v in (kernel, stride, padding, dilation))
    sizes = a.shape[a.ndim - rank :]
    return [list(bounds(n, *of, ceil)) for n, *of in zip(sizes, k, s, p, d, strict=True)]


def evened(a, rank, output_size):
    sizes = a.shape[a.ndim - rank :]
    wanted = each(output_size, rank)
    return [list(parts(n, n if w is None else w)) for n, w in zip(sizes, wanted, strict=True)]


def largest(values, places, _):
    best = np.argmax(values, -1)
    return np.max(values, -1), places[best]


def max_pool(rank):
    def run(
        a, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
    ):
        windows = evenly(a, rank, kernel_size, stride, padding, dilation, ceil_mode)
        return walk(a, windows, largest)[: 1 + return_indices]

    return run


def avg_pool(rank):
    def run(
        a,
        kernel_size,
        stride=None,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ):
        def mean(values, places, size):
            count = divisor_override or (size if count_include_pad else values.shape[-1])
            return (values.sum(-1) / count,)

        return walk(a, evenly(a, rank, kernel_size, stride, padding, 1, ceil_mode), mean)

    return run


def adaptive_max(rank):
    def run(a, output_size, return_indices=False):
        return walk(a, evened(a, rank, output_size), largest)[: 1 + return_indices]

    return run


def adaptive_avg(rank):
    return lambda a, output_size: walk(
        a, evened(a, rank, output_size), lambda values, *_: (values.mean(-1),)
    )


def lp_pool(rank):
    def run(a, norm_type, kernel_size, stride=None, ceil_mode=False):
        taps = math.prod(each(kernel_size, rank))

        def norm(values, *_):  # a window that goes over the end counts as full of its mean
            total = (values**norm_type).mean(-1) * taps
            return (np.maximum(total, 0) ** (1 / norm_type),)

        return walk(a, evenly(a, rank, kernel_size, stride, 0, 1, ceil_mode), norm)

    return run


def unpool(rank):
    def run(a, indices, kernel_size, stride=None, padding=0, output_size=None):
        k, p = (each(v, rank) for v in (kernel_size, padding))
        s = k if stride is None else each(stride, rank)
        lead, space = a.shape[: a.ndim - rank], a.shape[a.ndim - rank :]
        size = [(n - 1) * t - 2 * q + m for n, t, q, m in zip(space, s, p, k, strict=True)]
        size = list(output_size or size)
        out = np.zeros((*lead, int(np.prod(size))), a.dtype)
        for at in np.ndindex(a.shape):
            out[(*at[: len(lead)], indices[at])] = a[at]
        return out.reshape(*lead, *size)

    return run


DATA = {1: (2, 3, 9), 2: (2, 2, 7, 6), 3: (1, 2, 5, 4, 6)}
ALONE = {1: (3, 8), 2: (2, 5, 6), 3: (2, 4, 3, 4)}


def rows(rank):
    full, alone = DATA[rank], ALONE[rank]
    # what differs between dtypes does not depend on the number of axes
    floats, reals = (FLOATS, REALS) if rank == 2 else (("float32",), ("float32", "int32"))
    means = {"dtypes": floats, "relative": False, "ulps": 8}
    places = np.stack(
        [np.random.default_rng(i).permutation(4**rank)[: 2**rank] for i in range(2)]
    ).reshape(1, 2, *(2,) * rank)
    yield op(
        f"max_pool{rank}d",
        max_pool(rank),
        case(x(*full), 2),
        case(x(*full), 3, 2, 1, ceil_mode=True),
        case(x(*alone), 2, 1, 0, 2),
        dtypes=reals,
    )
    yield op(
        f"max_pool{rank}d",
        max_pool(rank),
        case(x(*full), 3, 2, 1, return_indices=True),
        case(x(*alone), 2, 3, 1, 2, True, True),
        dtypes=("float32",),
        out=(same, INT64),
        orders=0,
    )
    yield op(
        f"avg_pool{rank}d",
        avg_pool(rank),
        case(x(*full), 2),
        case(x(*full), 3, 2, 1, True),
        case(x(*alone), 3, 2, 1, True, False),
        *([case(x(*full), 2, divisor_override=3)] if rank > 1 else []),
        **means,
    )
    yield op(
        f"adaptive_avg_pool{rank}d",
        adaptive_avg(rank),
        case(x(*full), 1),
        case(x(*full), 3),
        case(x(*alone), 2),
        case(x(*full), (None, 2, 4)[:rank]),
        **means,
    )
    if rank == 2:
        yield op(
            "Tensor.adaptive_avg_pool2d",
            lambda a, h, w: adaptive_avg(2)(a, (h, w)),
            case(x(*full), 2, 3),
            case(x(*full), 1, 1),
            **means,
        )
    yield op(
        f"adaptive_max_pool{rank}d",
        adaptive_max(rank),
        case(x(*full), 2),
        case(x(*alone), 3),
        dtypes=reals,
    )
    yield op(
        f"adaptive_max_pool{rank}d",
        adaptive_max(rank),
        case(x(*full), 4, True),
        dtypes=("float32",),
        out=(same, INT64),
        orders=0,
    )
    yield op(
        f"lp_pool{rank}d",
        lp_pool(rank),
        case(x(*full, low=0.2), 2.0, 2),
        case(x(*alone, low=0.2), 3.0, 3, 2, True),
        dtypes=floats,
        relative=False,
        ulps=16,
    )
    yield op(
        f"max_unpool{rank}d",
        unpool(rank),
        case(x(1, 2, *(2,) * rank), places, 2),
        dtypes=("float32", "float64", "int32"),
        vmap=False,
    )


ROWS = [row for rank in (1, 2, 3) for row in rows(rank)]
