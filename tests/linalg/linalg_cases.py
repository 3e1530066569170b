"""The 200 random cases whose gradients are compared with PyTorch's: names, shapes, kinds."""

import numpy as np

SQUARE = [((3, 3),), ((4, 4),), ((2, 2),), ((2, 3, 3),), ((1, 1),)]
ANY = [((4, 3),), ((3, 4),), ((3, 3),), ((2, 4, 2),), ((2, 2, 3),)]
TALL = [((4, 3),), ((3, 3),), ((5, 2),), ((2, 4, 2),), ((3, 1),)]
SYSTEMS = [((3, 3), (3, 2)), ((4, 4), (4, 1)), ((2, 2), (2, 3)), ((2, 3, 3), (2, 3, 1)),
           ((1, 1), (1, 2))]  # fmt: skip
OVER = [((4, 3), (4, 2)), ((5, 2), (5, 1)), ((3, 3), (3, 2)), ((2, 4, 2), (2, 4, 1)),
        ((4, 1), (4, 1))]  # fmt: skip
CHAINS = [((3, 2), (3, 4)), ((2, 5), (2, 2)), ((4, 4), (4, 1)), ((1, 3), (1, 3)), ((5, 2), (5, 3))]

SHAPES = {
    **dict.fromkeys(("cholesky", "inv", "det", "slogdet", "eigvalsh", "eigh"), SQUARE),
    **dict.fromkeys(("matrix_exp", "matrix_power", "eigvals", "eig"), SQUARE),
    **dict.fromkeys(("svdvals", "svd", "pinv", "matrix_norm"), ANY),
    **dict.fromkeys(("solve", "solve_triangular", "lu_solve"), SYSTEMS),
    "qr": TALL,
    "lstsq": OVER,
    "multi_dot": CHAINS,
}
CASES = [
    (name, shapes, kind)
    for name, all_shapes in SHAPES.items()
    for shapes in all_shapes
    for kind in ("float64", "complex128")
]


def drawn_case(number, shapes, kind):
    rng = np.random.default_rng(1000 + number)
    for shape in shapes:
        a = rng.standard_normal(shape)
        yield a + 1j * rng.standard_normal(shape) if kind == "complex128" else a
