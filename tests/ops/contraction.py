"""Products of matrices and of everything that reduces to them."""

import numpy as np

from ops.row import COMPLEX, FLOATS, NUMBERS, SOME_INTEGERS, case, counting, op, x

# booleans are multiplied logically, which NumPy does for matmul and not for all of these
PRODUCTS = {"dtypes": (*NUMBERS, "int8", "uint64"), "relative": False, "ulps": 16}


def vecdot(a, b, axis=-1):
    return np.vecdot(a, b, axis=axis)


def addmm(c, a, b, beta=1, alpha=1):
    return beta * c + alpha * (a @ b)


def addbmm(c, a, b, beta=1, alpha=1):
    return beta * c + alpha * np.sum(a @ b, 0)


ROWS = [
    op(
        "matmul",
        np.matmul,
        case(x(5, 7), x(7, 3)),
        case(x(2, 1, 3, 4), x(3, 4, 2)),
        case(x(4), x(2, 4, 3)),
        case(x(2, 3, 4), x(4)),
        case(x(4), x(4)),
        case(x(3, 0), x(0, 2)),
        case(x(0, 3), x(3, 2)),
        case(x(17, 33), x(33, 40)),
        values=[
            case(x(130, 260), x(260, 150)),
            case(x(3, 70, 33), x(33, 65)),
            case(x(1, 900), x(900, 1)),
        ],
        **{**PRODUCTS, "dtypes": (*PRODUCTS["dtypes"], "bool")},
    ),
    op("mm", np.matmul, case(x(5, 7), x(7, 3)), **PRODUCTS),
    op("bmm", np.matmul, case(x(2, 5, 7), x(2, 7, 3)), case(x(0, 2, 3), x(0, 3, 2)), **PRODUCTS),
    op("mv", np.matmul, case(x(5, 7), x(7)), case(x(2, 0), x(0)), **PRODUCTS),
    op(
        "dot",
        np.dot,
        case(x(2, 3), x(4, 3, 2)),
        case(x(3), x(3)),
        case(x(), x(2, 3)),
        **PRODUCTS,
    ),
    op("inner", np.inner, case(x(2, 3), x(4, 3)), case(x(), x(2)), case(x(2, 0), x(0)), **PRODUCTS),
    op("outer", np.outer, case(x(2, 3), x(4)), case(x(0), x(2)), **PRODUCTS),
    op("vecdot", vecdot, case(x(2, 3), x(4, 1, 3)), case(x(3, 4), x(3, 1), axis=-2), **PRODUCTS),
    op(
        "tensordot",
        np.tensordot,
        case(x(2, 3, 4), x(3, 4, 2)),
        case(x(2, 3, 4), x(4, 3, 5), axes=((1, 2), (1, 0))),
        case(x(2, 3), x(2), axes=0),
        **PRODUCTS,
    ),
    op("kron", np.kron, case(x(2, 3), x(4, 1)), case(x(3), x(2, 2)), case(x(), x(2)), **PRODUCTS),
    op(
        "trace",
        np.trace,
        case(x(4, 4)),
        case(x(3, 5, 2), 1, 1, 0),
        case(x(2, 3), offset=-5),
        dtypes=NUMBERS,
        out=counting,
        relative=False,
        ulps=8,
    ),
    op("addmm", addmm, case(x(3), x(5, 4), x(4, 3), beta=2, alpha=3), **PRODUCTS),
    op("baddbmm", addmm, case(x(5, 3), x(2, 5, 4), x(2, 4, 3)), **PRODUCTS),
    op("addbmm", addbmm, case(x(5, 3), x(2, 5, 4), x(2, 4, 3), alpha=2), **PRODUCTS),
    op(
        "einsum",
        np.einsum,
        case("ij,jk->ki", x(3, 4), x(4, 2)),
        case("aab,cb,c->a", x(3, 3, 2), x(4, 2), x(4)),
        case("...a,a...->...", x(3, 2), x(2, 3)),
        case("ii", x(3, 3)),
        case("ab,b->a", x(2, 0), x(0)),
        dtypes=(*FLOATS[:3], *COMPLEX, *SOME_INTEGERS),
        relative=False,
        ulps=16,
    ),
]
