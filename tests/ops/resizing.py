"""Interpolation by formulas for one result at a time; pixels and patches by loops."""

import itertools
import math

import numpy as np

from ops.row import ANY, FLOATS, NUMBERS, case, op, x


def cubic(d, a):
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def weights(n, count, step, mode, corners, antialias):
    """The matrix that maps an axis of n elements to one of `count`."""
    m = np.zeros((count, n))
    for i in range(count):
        if mode in ("nearest", "nearest-exact"):
            at = (i + (0.5 if mode == "nearest-exact" else 0)) * step
            m[i, min(math.floor(at), n - 1)] = 1
        elif mode == "area":
            inside = range(i * n // count, -(-(i + 1) * n // count))
            m[i, list(inside)] = 1 / len(inside)
        elif antialias:
            wide = max(step, 1)
            center, reach = step * (i + 0.5), wide * (2 if mode == "bicubic" else 1)
            first, last = max(int(center - reach + 0.5), 0), min(int(center + reach + 0.5), n)
            for j in range(first, last):
                d = (j - center + 0.5) / wide
                m[i, j] = cubic(d, -0.5) if mode == "bicubic" else max(0, 1 - abs(d))
            m[i] /= m[i].sum()
        else:
            at = i * step if corners else (i + 0.5) * step - 0.5
            if mode == "bicubic":
                for j in range(math.floor(at) - 1, math.floor(at) + 3):
                    m[i, min(max(j, 0), n - 1)] += cubic(at - j, -0.75)
            else:
                at = max(at, 0)
                j = min(int(at), n - 1)
                m[i, j] += 1 - (at - j)
                m[i, min(j + 1, n - 1)] += at - j
    return m


def interpolate(
    a,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
):
    rank = a.ndim - 2
    for axis in range(rank):
        n = a.shape[2 + axis]
        if size is not None:
            count = size[axis] if isinstance(size, tuple) else size
            step = n / count
        else:
            factor = scale_factor[axis] if isinstance(scale_factor, tuple) else scale_factor
            count = math.floor(n * factor)
            step = n / count if recompute_scale_factor else 1 / factor
        if align_corners:
            step = (n - 1) / (count - 1) if count > 1 else 0
        m = weights(n, count, step, mode, align_corners, antialias)
        kept = a.dtype
        a = np.moveaxis(np.tensordot(m, a, (1, 2 + axis)), 0, 2 + axis)
        a = a.astype(kept) if mode.startswith("nearest") else a
    return a


def brought_back(at, size, margins, corners):
    if margins == "reflection":
        low, high = (0, size - 1) if corners else (-0.5, size - 0.5)
        while not low <= at <= high and high > low:
            at = 2 * low - at if at < low else 2 * high - at
    return at if margins == "zeros" else min(max(at, 0), size - 1)


def grid_sample(a, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    rank = a.ndim - 2
    out = np.zeros((*a.shape[:2], *grid.shape[1:-1]))
    for n, *p in np.ndindex(grid.shape[:-1]):
        taps = []
        for axis, size in enumerate(a.shape[2:]):
            at = grid[(n, *p, rank - 1 - axis)]
            at = (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2
            if mode == "bicubic":
                j = math.floor(at)
                taps.append(
                    [
                        (
                            brought_back(j + k, size, padding_mode, align_corners),
                            cubic(at - j - k, -0.75),
                        )
                        for k in range(-1, 3)
                    ]
                )
                continue
            at = brought_back(at, size, padding_mode, align_corners)
            j = math.floor(at)
            near = [(round(at), 1.0)]
            taps.append(near if mode == "nearest" else [(j, 1 - (at - j)), (j + 1, at - j)])
        for chosen in itertools.product(*taps):
            places = [int(at) for at, _ in chosen]
            if all(0 <= at < size for at, size in zip(places, a.shape[2:], strict=True)):
                out[(n, slice(None), *p)] += a[(n, slice(None), *places)] * math.prod(
                    w for _, w in chosen
                )
    return out


def pixel_shuffle(a, r):
    *lead, c, h, w = a.shape
    out = np.zeros((*lead, c // r**2, h * r, w * r), a.dtype)
    for i, j in itertools.product(range(r), range(r)):
        out[..., i::r, j::r] = a[..., i * r + j :: r * r, :, :]
    return out


def pixel_unshuffle(a, r):
    *lead, c, h, w = a.shape
    out = np.zeros((*lead, c * r**2, h // r, w // r), a.dtype)
    for i, j in itertools.product(range(r), range(r)):
        out[..., i * r + j :: r * r, :, :] = a[..., i::r, j::r]
    return out


def both(v):
    return v if isinstance(v, tuple) else (v, v)


def patches(h, w, kernel, dilation, padding, stride):
    """For each tap and patch: the pixel it is, in an image with margins."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = map(both, (kernel, dilation, padding, stride))
    rows = (h + 2 * ph - (kh - 1) * dh - 1) // sh + 1
    columns = (w + 2 * pw - (kw - 1) * dw - 1) // sw + 1
    for (i, j), (r, c) in itertools.product(np.ndindex(kh, kw), np.ndindex(rows, columns)):
        yield (i * kw + j, r * columns + c), (r * sh + i * dh, c * sw + j * dw)


def unfold(a, kernel_size, dilation=1, padding=0, stride=1):
    ph, pw = both(padding)
    *lead, h, w = a.shape
    wide = np.pad(a, [(0, 0)] * len(lead) + [(ph, ph), (pw, pw)])
    found = list(patches(h, w, kernel_size, dilation, padding, stride))
    shape = np.max([at for at, _ in found], 0) + 1
    out = np.zeros((*lead, *shape), a.dtype)
    for at, pixel in found:
        out[(..., *at)] = wide[(..., *pixel)]
    return out.reshape(*lead[:-1], lead[-1] * shape[0], shape[1])


def fold(a, output_size, kernel_size, dilation=1, padding=0, stride=1):
    (h, w), (ph, pw) = both(output_size), both(padding)
    taps = int(np.prod(both(kernel_size)))
    columns = a.reshape(*a.shape[:-2], a.shape[-2] // taps, taps, a.shape[-1])
    wide = np.zeros((*columns.shape[:-2], h + 2 * ph, w + 2 * pw), a.dtype)
    for at, pixel in patches(h, w, kernel_size, dilation, padding, stride):
        wide[(..., *pixel)] += columns[(..., *at)]
    return wide[..., ph : ph + h, pw : pw + w]


ROWS = [
    op(
        "interpolate",
        interpolate,
        case(x(1, 2, 5), 8, mode="linear"),
        case(x(1, 2, 5), scale_factor=0.5, mode="linear", align_corners=True),
        case(x(1, 2, 4, 3), (6, 5), mode="bilinear"),
        case(x(1, 1, 4, 3), (7, 2), mode="bilinear", align_corners=True),
        case(x(1, 1, 6, 5), (3, 2), mode="bilinear", antialias=True),
        case(x(1, 1, 4, 4), scale_factor=(1.5, 2.0), mode="bicubic"),
        case(x(1, 1, 7, 4), (3, 4), mode="bicubic", antialias=True),
        case(x(1, 1, 3, 2, 3), 4, mode="trilinear"),
        case(x(1, 2, 5, 7), (2, 3), mode="area"),
        dtypes=FLOATS,
        relative=False,
        ulps=32,
    ),
    op(
        "interpolate",
        interpolate,
        case(x(2, 2, 4), scale_factor=2),
        case(x(1, 2, 4, 6), (8, 3), mode="nearest-exact"),
        case(x(1, 1, 2, 4, 4), scale_factor=(2, 0.5, 1)),
        dtypes=(*FLOATS, "int32", "uint8"),
    ),
    op(
        "grid_sample",
        grid_sample,
        case(x(2, 2, 3, 4), x(2, 2, 3, 2, low=-1.4, high=1.4)),
        case(x(1, 1, 4, 3), x(1, 2, 2, 2), "bilinear", "border", True),
        case(x(1, 2, 3, 3), x(1, 2, 3, 2), "bicubic", "reflection"),
        case(x(1, 1, 2, 3, 2), x(1, 1, 2, 2, 3, low=-1.2, high=1.2), padding_mode="reflection"),
        case(x(1, 2, 3, 4), x(1, 0, 3, 2)),
        values=[
            case(x(1, 2, 3, 4), x(1, 3, 2, 2, low=-1.3, high=1.3), "nearest", "border"),
            case(x(1, 2, 3, 4), x(1, 3, 2, 2, low=-1.3, high=1.3), "bicubic", "zeros", True),
        ],
        dtypes=("float32", "float64"),
        relative=False,
        ulps=64,
    ),
    op(
        "pixel_shuffle",
        pixel_shuffle,
        case(x(2, 8, 3, 2), 2),
        case(x(9, 1, 2), 3),
        case(x(0, 4, 2, 2), 2),
        dtypes=ANY,
    ),
    op(
        "pixel_unshuffle",
        pixel_unshuffle,
        case(x(2, 2, 4, 6), 2),
        case(x(1, 3, 6), 3),
        dtypes=ANY,
    ),
    op(
        "unfold",
        unfold,
        case(x(2, 2, 4, 5), 2),
        case(x(1, 5, 4), (3, 2), 2, 1, 2),
        case(x(0, 1, 3, 3), 2),
        dtypes=NUMBERS,
    ),
    op(
        "fold",
        fold,
        case(x(2, 8, 12), (4, 5), 2),
        case(x(6, 4), (5, 4), (3, 2), 2, 1, 2),
        case(x(0, 4, 4), 3, 2),
        dtypes=NUMBERS,
        relative=False,
    ),
]
