"""Random numbers: the same from one key on every device, so the reference device is the answer."""

import numpy as np

import numus as nm
from ops.row import BOOL, COMPLEX, DTYPE, FLOATS, INT64, case, op, x

KEY = np.array([7, 1234567], np.uint32)
DRAWS = {"vmap": False, "orders": 0, "ulps": 8, "relative": False}
WHOLE = {"vmap": False, "orders": 0, "dtypes": ("int64",)}

ROWS = [
    op(
        "random.bits",
        None,
        case((3, 5), dtype=DTYPE, key=KEY),
        case((0,), key=KEY, dtype=DTYPE),
        dtypes=("uint32", "uint8", "uint64"),
        vmap=False,
        orders=0,
    ),
    op(
        "random.uniform",
        None,
        case((3, 5), dtype=DTYPE, key=KEY),
        case((7,), -2, 3, dtype=DTYPE, key=KEY),
        dtypes=FLOATS,
        **DRAWS,
    ),
    op("random.rand", None, case(3, 5, dtype=DTYPE, key=KEY), dtypes=FLOATS, **DRAWS),
    op(
        "random.normal",
        None,
        case((3, 5), dtype=DTYPE, key=KEY),
        case((7,), 1, 2, dtype=DTYPE, key=KEY),
        case((), dtype=DTYPE, key=KEY),
        dtypes=FLOATS,
        **DRAWS,
    ),
    op("random.randn", None, case(3, 5, dtype=DTYPE, key=KEY), dtypes=FLOATS, **DRAWS),
    op("random.exponential", None, case((3, 5), 2.0, dtype=DTYPE, key=KEY), dtypes=FLOATS, **DRAWS),
    op("random.gumbel", None, case((3, 5), dtype=DTYPE, key=KEY), dtypes=FLOATS, **DRAWS),
    op("random.truncated_normal", None, case((3, 5), dtype=DTYPE, key=KEY), dtypes=FLOATS, **DRAWS),
    op(
        "random.integers",
        None,
        case(0, 100, (3, 5), dtype=DTYPE, key=KEY),
        case(-8, 8, (4,), dtype=DTYPE, key=KEY),
        dtypes=("int64", "int8", "int32"),
        vmap=False,
        orders=0,
        aliases=["random.randint"],
    ),
    op("random.bernoulli", None, case(0.3, (3, 5), key=KEY), **{**WHOLE, "out": BOOL}),
    op(
        "random.categorical",
        None,
        case(x(4, 3, fixed=True), key=KEY),
        dtypes=FLOATS[:3],
        out=INT64,
        orders=0,
        vmap=False,
    ),
    op("random.permutation", None, case(9, key=KEY), case(x(5, 2), key=KEY), **WHOLE),
    op(
        "random.choice",
        None,
        case(9, (4,), key=KEY),
        case(9, (4,), replace=False, key=KEY),
        case(x(5), (3,), p=np.array([0.1, 0.2, 0.3, 0.2, 0.2]), key=KEY),
        **WHOLE,
    ),
    op(
        "random.shuffle",
        None,
        case(x(5, 2), key=KEY),
        call=lambda a, key: (c := nm.copy(a), nm.random.shuffle(c, key=key))[:1],
        **WHOLE,
    ),
    op(
        "random.dropout",
        None,
        case(x(3, 5), 0.4, key=KEY),
        aliases=["Tensor.dropout"],
        dtypes=(*FLOATS, *COMPLEX),
        vmap=False,
    ),
    op("random.dropout_mask", None, case((3, 5), 0.4, key=KEY), **{**WHOLE, "out": BOOL}),
    op(
        "random.key",
        lambda seed: np.array([seed >> 32, seed & 0xFFFFFFFF]),
        case(2**40 + 5),
        dtypes=("uint32",),
        orders=0,
        vmap=False,
    ),
    op("random.split", None, case(KEY, 3), dtypes=("uint32",), orders=0),
    op("random.fold_in", None, case(KEY, 3), dtypes=("uint32",), orders=0),
]

_FLOATS = {"dtypes": ("float32", "float64"), "brief": True, **DRAWS}
_SINGLE = {**_FLOATS, "dtypes": ("float32",)}  # the dtype of parameters given as arrays
_COUNTS = {**WHOLE, "brief": True}
ROWS += [
    op(f"random.{name}", None, case((3, 4), *parameters, dtype=DTYPE, key=KEY), **_FLOATS)
    for name, *parameters in (
        *(("beta", 0.5, 2.0), ("chisquare", 3.0), ("f", 3.0, 5.0), ("gamma", 2.5, 2.0)),
        *(("laplace", 1.0, 2.0), ("logistic",), ("lognormal",), ("noncentral_chisquare", 3.0, 2.0)),
        *(("noncentral_f", 3.0, 5.0, 1.0), ("pareto", 3.0), ("power", 2.0), ("rayleigh", 2.0)),
        *(("standard_t", 4.0), ("triangular",), ("vonmises", 1.0, 2.0), ("wald", 2.0, 3.0)),
        ("weibull", 1.5),
    )
]
ROWS += [
    op(f"random.{name}", None, case((3, 4), *parameters, dtype=DTYPE, key=KEY), **_COUNTS)
    for name, *parameters in (
        *(("binomial", 20, 0.3), ("geometric", 0.3), ("hypergeometric", 8, 9, 5)),
        *(("logseries", 0.6), ("negative_binomial", 3.0, 0.4), ("poisson", 4.0), ("zipf", 2.5)),
    )
]
ROWS += [
    op("random.dirichlet", None, case((2,), np.float32([0.5, 1, 2]), key=KEY), **_SINGLE),
    op("random.multinomial", None, case((2,), 9, np.float32([0.5, 0.3, 0.2]), key=KEY), **_COUNTS),
    op(
        *("random.multivariate_hypergeometric", None),
        case((2,), np.array([3, 4, 5]), 6, key=KEY),
        **_COUNTS,
    ),
    op(
        *("random.multivariate_normal", None),
        case((2,), np.float32([0.5, 1]), np.float32([[2, 1], [1, 2]]), key=KEY),
        **_SINGLE,
    ),
    op("random.wishart", None, case((2,), 3.0, np.float32([[2, 1], [1, 2]]), key=KEY), **_SINGLE),
    op("random.permuted", None, case(x(3, 4), key=KEY), **_COUNTS),
    *(
        op(f"random.{name}", None, case(8, 3, dtype=DTYPE, key=KEY), **_FLOATS)
        for name in ("sobol", "halton", "lattice", "latin_hypercube")
    ),
]
