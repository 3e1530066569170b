"""Shapes and axes, parts, joins, repeats: where elements are moved and none is computed."""

import numpy as np

from ops.row import ALL, NUMBERS, case, op, x

EXACT = {"dtypes": ALL, "ulps": 0, "signs": True}
FEW = {"dtypes": (*NUMBERS, "bool"), "ulps": 0}  # views of what a row above has in all dtypes

windows = np.lib.stride_tricks.sliding_window_view


def method(name):
    """NumPy's method of this name."""
    return lambda a, *args, **kwargs: getattr(a, name)(*args, **kwargs)


def unfold(a, axis, length, step):
    if a.ndim == 0:
        return a.reshape(length)
    found = windows(a, length, axis)
    return np.take(found, range(0, found.shape[axis], step), axis)


def chunk(a, count, dim=0):
    step = -(-a.shape[dim] // count)
    return [
        np.take(a, range(i, min(i + step, a.shape[dim])), dim) for i in range(0, a.shape[dim], step)
    ]


def flatten(a, start=0, end=-1):
    end %= a.ndim
    return a.reshape(*a.shape[:start], -1, *a.shape[end + 1 :])


ROWS = [
    # -- shapes
    op(
        "reshape",
        np.reshape,
        case(x(3, 4), (2, -1)),
        case(x(), (1, 1)),
        case(x(2, 0), (0, 5)),
        **EXACT,
    ),
    op("Tensor.reshape", method("reshape"), case(x(3, 4), 2, 6), case(x(3, 4), (6, -1)), **FEW),
    op("Tensor.view", method("reshape"), case(x(3, 4), 2, 6), **FEW),
    op("flatten", flatten, case(x(2, 3, 4)), case(x(2, 3, 4), 1), case(x(2, 0, 3), 0, 1), **FEW),
    op("ravel", np.ravel, case(x(2, 3)), case(x()), case(x(0, 2)), **FEW),
    op("unflatten", lambda a, d, s: a.reshape(2, 2, 3), case(x(2, 6), 1, (2, -1)), **FEW),
    op("expand_dims", np.expand_dims, case(x(3, 4), 1), case(x(3), (0, -1)), case(x(), 0), **FEW),
    op("unsqueeze", np.expand_dims, case(x(3, 4), -1), **FEW),
    op("squeeze", np.squeeze, case(x(2, 1, 3, 1)), case(x(1, 2), 0), case(x(1, 0)), **FEW),
    op("atleast_1d", np.atleast_1d, case(x()), case(x(2, 3), x(2)), **FEW),
    op("atleast_2d", np.atleast_2d, case(x(3)), case(x(), x(2)), **FEW),
    op("atleast_3d", np.atleast_3d, case(x(2, 3)), case(x(), x(2)), **FEW),
    # -- broadcasting
    op(
        "broadcast_to",
        np.broadcast_to,
        case(x(3, 1), (2, 3, 4)),
        case(x(), (2,)),
        case(x(1), (0,)),
        **EXACT,
    ),
    op("expand", lambda a, *s: np.broadcast_to(a, (2, 3, 4)), case(x(3, 1), 2, -1, 4), **FEW),
    op("broadcast_arrays", np.broadcast_arrays, case(x(3, 1), x(4), x()), **FEW),
    # -- the order of axes
    op(
        *("permute_dims", np.transpose),
        case(x(2, 3, 4), (2, 0, 1)),
        case(x(), ()),
        aliases=["permute"],
        **EXACT,
    ),
    op("Tensor.permute", method("transpose"), case(x(2, 3, 4), 2, 0, 1), **FEW),
    op("Tensor.permute_dims", method("transpose"), case(x(2, 3, 4), (2, 0, 1)), **FEW),
    op("transpose", np.transpose, case(x(2, 3, 4)), case(x(2, 3), (1, 0)), case(x()), **FEW),
    op("Tensor.transpose", method("transpose"), case(x(2, 3, 4), 1, 2, 0), case(x(2, 3)), **FEW),
    op("Tensor.T", np.transpose, case(x(2, 3)), **FEW),
    op(
        *("swapaxes", np.swapaxes),
        case(x(2, 3, 4), 0, -1),
        aliases=["Tensor.swapdims", "Tensor.transpose_tracked"],
        **FEW,
    ),
    op(
        *("matrix_transpose", np.matrix_transpose),
        case(x(2, 3, 4)),
        case(x(0, 2)),
        aliases=["Tensor.batched_transpose"],
        **FEW,
    ),
    op("Tensor.mT", np.matrix_transpose, case(x(2, 3, 4)), **FEW),
    op("moveaxis", np.moveaxis, case(x(2, 3, 4), (0, -1), (1, 0)), aliases=["movedim"], **FEW),
    op("flip", np.flip, case(x(3, 4)), case(x(3, 4), axis=1), case(x()), case(x(0, 2)), **EXACT),
    op("rot90", np.rot90, case(x(3, 4)), case(x(2, 3, 4), 3, (-1, 0)), case(x(2, 3), 2), **FEW),
    # -- copies
    op("copy", np.copy, case(x(3, 4)), case(x()), case(x(0, 2)), aliases=["clone"], **EXACT),
    op(
        *("Tensor.contiguous", np.copy, case(x(3, 4))),
        aliases=["Tensor.contiguous_tracked"],
        **FEW,
    ),
    op("asarray", np.asarray, case(x(3, 4)), **EXACT),
    op("array", np.array, case(x(3, 4)), **FEW),
    op("tensor", np.array, case(x(3, 4)), **FEW),
    # -- parts
    op(
        "narrow",
        lambda a, d, s, n: np.take(a, range(s % a.shape[d], s % a.shape[d] + n), d),
        case(x(3, 5), 1, 1, 3),
        case(x(3, 5), 0, -2, 2),
        case(x(3), 0, 3, 0),
        **FEW,
    ),
    op("Tensor.select", lambda a, d, i: np.take(a, i, d), case(x(3, 4, 2), 1, -1), **FEW),
    op("unstack", np.unstack, case(x(3, 2), axis=1), values=[case(x(0, 2))], **FEW),
    op("Tensor.unstack", np.unstack, case(x(3, 2), axis=1), aliases=["Tensor.unbind"], **FEW),
    op("split", np.split, case(x(6, 2), 3), case(x(2, 5), [1, -1, 9], axis=-1), **FEW),
    op("array_split", np.array_split, case(x(2, 7), 4, axis=-1), case(x(0), 2), **FEW),
    op("chunk", chunk, case(x(7, 2), 3), case(x(2, 2), 5, dim=1), **FEW),
    op(
        "diagonal",
        np.diagonal,
        case(x(3, 4)),
        case(x(2, 3, 4), -1, 2, 0),
        case(x(2, 3), 5),
        **FEW,
    ),
    op("diag", np.diag, case(x(3), 1), case(x(3, 4), -1), case(x(0)), **EXACT),
    op("tril", np.tril, case(x(2, 3, 4), k=1), case(x(3, 3)), case(x(0, 2)), **EXACT),
    op("triu", np.triu, case(x(2, 3, 4), k=-1), case(x(3, 3)), **EXACT),
    op("sliding_window_view", windows, case(x(5, 4), (2, 3)), case(x(5), 3, 0), **FEW),
    op("Tensor.unfold", unfold, case(x(8, 2), 0, 3, 2), case(x(), 0, 1, 1), **FEW),
    # -- joins
    op(
        "concat",
        np.concat,
        case([x(2, 3), x(2, 1), x(2, 0)], axis=1),
        case([x(2), x(3)]),
        case([x(), x(2)], axis=None),
        aliases=["concatenate"],
        **EXACT,
    ),
    op("cat", np.concat, case([x(2, 3), x(1, 3)], 0), **FEW),
    op("stack", np.stack, case([x(2, 3), x(2, 3)], axis=-1), case([x(), x()]), **EXACT),
    op("hstack", np.hstack, case([x(2, 3), x(2, 1)]), case([x(3), x()]), **FEW),
    op("vstack", np.vstack, case([x(2, 3), x(3)]), **FEW),
    op("dstack", np.dstack, case([x(2, 3), x(2, 3)]), case([x(3), x(3)]), **FEW),
    op("column_stack", np.column_stack, case([x(3), x(3, 2)]), **FEW),
    # -- repeats
    op(
        "repeat",
        np.repeat,
        case(x(2, 3), 3),
        case(x(2, 3), np.array([2, 0, 1]), axis=1),
        case(x(), 2),
        case(x(0, 2), 2, axis=1),
        vmap=False,  # how long the result is depends on the counts
        **EXACT,
    ),
    op(
        *("repeat_interleave", np.repeat),
        case(x(2, 3), 3, 0),
        aliases=["Tensor.repeat"],
        **FEW,
    ),
    op("tile", np.tile, case(x(2, 3), (2, 1, 3)), case(x(3), 2), case(x(), (2, 2)), **EXACT),
    op(
        "roll",
        np.roll,
        case(x(2, 3), (1, -5), axis=(0, 1)),
        case(x(5), 2),
        case(x(0, 2), 1),
        **EXACT,
    ),
    op(
        "pad",
        np.pad,
        case(x(3, 4), ((1, 2), (0, 3))),
        case(x(3, 4), 2, constant_values=1),
        *(
            case(x(3, 4), ((5, 1), (0, 7)), mode)
            for mode in ("edge", "reflect", "symmetric", "wrap")
        ),
        case(x(0, 2), 1),
        **EXACT,
    ),
]
