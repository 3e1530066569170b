"""Convolutions against a sum over windows that are cut out one by one."""

import itertools

import numpy as np

from ops.row import COMPLEX, FLOATS, case, op, x


def pairs(given, rank):
    if np.ndim(given) == 2:
        return list(given)
    return [(n, n) for n in np.broadcast_to(given, rank)]


def spread(a, gaps):
    """Zeros between the elements of the last axes."""
    lead = a.ndim - len(gaps)
    shape = [max(0, (n - 1) * g + 1) for n, g in zip(a.shape[lead:], gaps, strict=True)]
    out = np.zeros((*a.shape[:lead], *shape), a.dtype)
    out[(..., *(slice(None, None, g) for g in gaps))] = a
    return out


def slide(a, w, strides, sides, groups):
    """Windows of a padded a, one at a time."""
    for axis, (low, high) in enumerate(sides, 2):
        margin = [(0, 0)] * a.ndim
        margin[axis] = (max(low, 0), max(high, 0))
        a = np.pad(a, margin)
        part = [slice(None)] * a.ndim
        part[axis] = slice(max(-low, 0), a.shape[axis] - max(-high, 0))
        a = a[tuple(part)]
    o, c = w.shape[0] // groups, w.shape[1]
    taps = w.shape[2:]
    extents = [(n - k) // s + 1 for n, k, s in zip(a.shape[2:], taps, strides, strict=True)]
    out = np.zeros((a.shape[0], w.shape[0], *extents), np.result_type(a, w))
    for g, p in itertools.product(range(groups), itertools.product(*map(range, extents))):
        corner = [slice(i * s, i * s + k) for i, s, k in zip(p, strides, taps, strict=True)]
        window = a[(slice(None), slice(g * c, g * c + c), *corner)].reshape(
            len(a), c * np.prod(taps, dtype=int)
        )
        weights = w[g * o : g * o + o].reshape(o, -1)
        out[(slice(None), slice(g * o, g * o + o), *p)] = window @ weights.T
    return out


def conv(a, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    rank = w.ndim - 2
    alone = a.ndim == rank + 1
    a = a[None] if alone else a
    w = spread(w, np.broadcast_to(dilation, rank))
    if padding == "same":
        padding = [((k - 1) // 2, k // 2) for k in w.shape[2:]]
    sides = pairs(0 if padding == "valid" else padding, rank)
    y = slide(a, w, np.broadcast_to(stride, rank), sides, groups)
    y = y if bias is None else y + bias.reshape(-1, *(1,) * rank)
    return y[0] if alone else y


def conv_transpose(a, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    rank = w.ndim - 2
    alone = a.ndim == rank + 1
    a = spread(a[None] if alone else a, np.broadcast_to(stride, rank))
    w = spread(w, np.broadcast_to(dilation, rank))
    c, o = w.shape[0] // groups, w.shape[1]
    turned = np.flip(w, tuple(range(2, w.ndim))).reshape(groups, c, o, *w.shape[2:])
    turned = np.swapaxes(turned, 1, 2).reshape(groups * o, c, *w.shape[2:])
    more = np.broadcast_to(output_padding, rank)
    sides = [
        (k - 1 - low, k - 1 - high + m)
        for k, (low, high), m in zip(w.shape[2:], pairs(padding, rank), more, strict=True)
    ]
    y = slide(a, turned, (1,) * rank, sides, groups)
    y = y if bias is None else y + bias.reshape(-1, *(1,) * rank)
    return y[0] if alone else y


def general(
    a,
    w,
    window_strides,
    padding,
    lhs_dilation=None,
    rhs_dilation=None,
    dimension_numbers=None,
    feature_group_count=1,
    batch_group_count=1,
):
    if dimension_numbers is not None:  # the one layout that the cases use
        assert dimension_numbers == ("NHWC", "HWIO", "NHWC")
        a, w = np.moveaxis(a, -1, 1), np.transpose(w, (3, 2, 0, 1))
    rank = a.ndim - 2
    a = spread(a, lhs_dilation or (1,) * rank)
    w = spread(w, rhs_dilation or (1,) * rank)
    if padding in ("SAME", "SAME_LOWER"):
        total = [
            max(0, (-(-n // s) - 1) * s + k - n)
            for n, k, s in zip(a.shape[2:], w.shape[2:], window_strides, strict=True)
        ]
        padding = [(t // 2, t - t // 2) for t in total]
    elif padding == "VALID":
        padding = [(0, 0)] * rank
    if batch_group_count > 1:
        batches = np.split(a, batch_group_count)
        outputs = np.split(w, batch_group_count)
        parts = [
            slide(b, v, window_strides, padding, 1) for b, v in zip(batches, outputs, strict=True)
        ]
        return np.concatenate(parts, 1)
    y = slide(a, w, window_strides, padding, feature_group_count)
    return y if dimension_numbers is None else np.moveaxis(y, 1, -1)


OPTIONS = {"dtypes": (*FLOATS, *COMPLEX, "int32", "uint8"), "relative": False, "ulps": 16}

ROWS = [
    op(
        "conv1d",
        conv,
        case(x(2, 3, 7), x(4, 3, 3), x(4)),
        case(x(3, 6), x(2, 3, 2), padding="same"),
        case(x(2, 4, 9), x(6, 2, 3), None, 2, 1, 2, 2),
        case(x(1, 2, 5), x(3, 2, 5), padding=[(2, 3)]),
        case(x(0, 2, 5), x(3, 2, 2)),
        **OPTIONS,
    ),
    op(
        "conv2d",
        conv,
        case(x(2, 3, 5, 4), x(4, 3, 3, 2), x(4), padding=1),
        case(x(1, 4, 5, 6), x(4, 1, 3, 3), stride=(2, 1), padding="valid", groups=4),
        case(x(2, 5, 5), x(3, 2, 1, 1), x(3)),
        **OPTIONS,
    ),
    op(
        "conv3d",
        conv,
        case(x(1, 2, 4, 3, 4), x(3, 2, 2, 3, 1), x(3), padding=(0, 1, 0), dilation=(2, 1, 1)),
        case(x(2, 3, 3, 3), x(1, 2, 2, 2, 2), stride=2),
        **OPTIONS,
    ),
    op(
        "conv_transpose1d",
        conv_transpose,
        case(x(2, 3, 4), x(3, 2, 3), x(2), stride=2),
        case(x(4, 5), x(4, 3, 3), None, 3, 1, 2, 2, 2),
        **OPTIONS,
    ),
    op(
        "conv_transpose2d",
        conv_transpose,
        case(x(1, 2, 3, 4), x(2, 3, 3, 2), x(3), stride=(2, 1), padding=(1, 0)),
        case(x(2, 2, 2, 2), x(2, 1, 2, 2), padding=[(1, 0), (0, 1)], groups=2),
        **OPTIONS,
    ),
    op(
        "conv_transpose3d",
        conv_transpose,
        case(x(1, 2, 2, 3, 2), x(2, 2, 2, 1, 3), x(2), stride=2, output_padding=(1, 0, 1)),
        **OPTIONS,
    ),
    op(
        "conv_general",
        general,
        case(x(1, 2, 4, 5), x(3, 2, 2, 3), (2, 1), "SAME"),
        case(x(2, 2, 5), x(4, 1, 2), (2,), [(1, -1)], (2,), (2,), feature_group_count=2),
        case(x(4, 2, 4), x(6, 2, 2), (1,), "VALID", batch_group_count=2),
        case(
            *(x(1, 4, 3, 2), x(2, 2, 2, 3), (1, 1), ((0, 1), (1, 0))),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
        case(x(2, 3), x(4, 3), (), "VALID"),
        **OPTIONS,
    ),
]
