"""nm.linalg: products and builders, factorisations, solvers, matrix functions."""

import numpy as np
import scipy.linalg

from ops.row import COMPLEX, DTYPE, FLOATS, NUMBERS, SOME_INTEGERS, case, counting, fraction, op, x

EXACT = {"dtypes": NUMBERS, "relative": False, "ulps": 16}


def cross(a, b, axis=-1):
    a, b = np.broadcast_arrays(np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1))
    turned = a[..., [1, 2, 0]] * b[..., [2, 0, 1]] - a[..., [2, 0, 1]] * b[..., [1, 2, 0]]
    return np.moveaxis(turned, -1, axis)


def khatri_rao(a, b):
    return np.stack([np.kron(p, q) for p, q in zip(a.T, b.T, strict=True)], axis=-1)


def semiring(a, b, semiring="min_plus"):
    total, times = {
        "min_plus": (np.min, np.add),
        "max_plus": (np.max, np.add),
        "max_min": (np.max, np.minimum),
        "min_max": (np.min, np.maximum),
        "max_times": (np.max, np.multiply),
    }[semiring]
    return total(times(a[..., :, :, None], b[..., None, :, :]), axis=-2)


def batched(f):
    """A function of vectors or matrices of SciPy's, over a leading axis."""

    def function(*arrays, **kwargs):
        if max(a.ndim for a in arrays) > 1:
            return np.stack([f(*each, **kwargs) for each in zip(*arrays, strict=True)])
        return f(*arrays, **kwargs)

    return function


def hilbert(n, dtype):
    return scipy.linalg.hilbert(n) if n else np.zeros((0, 0))


PRODUCTS = [
    op("linalg.diagonal", lambda a, offset=0: np.diagonal(a, offset, -2, -1),
       case(x(2, 3, 4)), case(x(3, 3), offset=1), case(x(0, 2)), dtypes=NUMBERS),
    op("linalg.trace", lambda a, offset=0: np.trace(a, offset, -2, -1),
       case(x(2, 3, 4)), case(x(3, 3), offset=-1), dtypes=NUMBERS, out=counting, relative=False),
    op("vdot", np.vdot, case(x(2, 3), x(6)), case(x(0), x(0)), **EXACT),
    op("cross", cross, case(x(2, 3), x(4, 1, 3)), case(x(3, 2), x(3, 1), axis=0), **EXACT),
    op("linalg.khatri_rao", khatri_rao, case(x(2, 3), x(4, 3)), case(x(1, 3), x(2, 3)),
       **EXACT),
    op("linalg.multi_dot", np.linalg.multi_dot, case([x(2, 7), x(7, 3), x(3, 4)]),
       case([x(5), x(5, 2), x(2)]), case([x(2, 3), x(3)]), **EXACT),
    op("linalg.semiring_matmul", semiring, case(x(4, 5), x(5, 3)),
       case(x(2, 1, 3), x(3, 2), semiring="max_plus"), case(x(3, 4), x(4, 2), semiring="max_min"),
       case(x(3, 4), x(4, 2), semiring="min_max"), case(x(3, 4), x(4, 2), semiring="max_times"),
       dtypes=(*FLOATS, *SOME_INTEGERS)),
]  # fmt: skip

BUILDERS = [
    op("linalg.block_diag", scipy.linalg.block_diag, case(x(2, 3), x(1), x(3, 0), x(2, 2)),
       dtypes=NUMBERS),
    op("linalg.toeplitz", batched(scipy.linalg.toeplitz), case(x(3), x(4)), case(x(3)), case(x(1)),
       case(x(2, 3), x(2, 2)), dtypes=NUMBERS),
    op("linalg.hankel", batched(scipy.linalg.hankel), case(x(3), x(4)), case(x(3)),
       case(x(2, 3), x(2, 2)), dtypes=NUMBERS),
    op("linalg.circulant", batched(scipy.linalg.circulant), case(x(4)), case(x(2, 3)), case(x(0)),
       dtypes=NUMBERS),
    op("vander", np.vander, case(x(4)), case(x(3), 5, increasing=True), case(x(3), 0),
       dtypes=(*FLOATS, "int64", "int32", *COMPLEX), out=lambda d: d if d.is_inexact else
       counting(d), ulps=16),
    op("linalg.companion", batched(scipy.linalg.companion), case(x(4, low=1.0, high=2.0)),
       case(x(2, 3, low=1.0, high=2.0)), dtypes=(*FLOATS, "int32", *COMPLEX), out=fraction),
    op("linalg.hilbert", hilbert, case(5, dtype=DTYPE), case(0, dtype=DTYPE),
       dtypes=(*FLOATS, *COMPLEX), orders=0),
]  # fmt: skip

ROWS = [*PRODUCTS, *BUILDERS]
