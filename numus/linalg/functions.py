"""Functions of square matrices: integer powers, the exponential."""

from __future__ import annotations

import math
import operator

from numus.dtypes import float32, real_of
from numus.evaluation.evaluate import is_known
from numus.functions._base import node_of, wrap
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import where
from numus.functions.elementwise.transcendental import exp2, log2
from numus.functions.linear.matmul import matmul
from numus.functions.reduction.reductions import max as maximum_of
from numus.linalg._base import identity, matrices, require_matrices
from numus.linalg.factor import lapack
from numus.linalg.factor.lu import inverted, quotient
from numus.tensor import ArrayLike, Tensor


def matrix_power(x: ArrayLike, n: int, /) -> Tensor:
    """Integer powers of square matrices, by repeated squaring; negative ones of the inverse.

    >>> nm.linalg.matrix_power(nm.asarray([[1, 1], [1, 0]]), 10).tolist()
    [[89, 55], [55, 34]]
    """
    power = operator.index(n)
    a = wrap(node_of(x, "linalg.matrix_power"))
    require_matrices("matrix_power", a, square=True)
    if power < 0:
        a, power = inverted("matrix_power", a), -power
    found = None
    while power:
        if power % 2:
            found = a if found is None else matmul(found, a)
        power //= 2
        a = matmul(a, a) if power else a
    return identity(a.shape[-1], a) if found is None else found


# -- the exponential ------------------------------------------------------------------------------

# Degrees, and the norms up to which approximants are exact to the last digit: of diagonal Padé
# approximants (Higham 2005), and of Taylor polynomials, which take more products and no system.
_PADE = {
    "float32": ((3, 4.258730016922831e-1), (5, 1.880152677804762), (7, 3.925724783138660)),
    "float64": (
        *((3, 1.495585217958292e-2), (5, 2.539398330063230e-1), (7, 9.504178996162932e-1)),
        *((9, 2.097847961257068), (13, 5.371920351148152)),
    ),
}
_TAYLOR = {
    "float32": (
        *((4, 5.116619363445086e-2), (6, 2.495289322846698e-1), (9, 7.795113374358031e-1)),
        *((12, 1.461661507209034), (16, 2.478280877521971)),
    ),
    "float64": (
        *((4, 3.397168839976962e-4), (6, 9.065656407595102e-3), (9, 8.957760203223343e-2)),
        *((12, 2.996158913811580e-1), (16, 7.802874256626574e-1)),
    ),
}
_MAX_SQUARINGS = 16  # where norms are not known, as in nm.jit: norms up to 2^16 times the above


def _pade_coefficients(degree: int) -> list[float]:
    """Of the numerator, scaled to integers."""
    f = math.factorial
    q = degree
    return [f(2 * q - j) / (f(q - j) * f(j)) for j in range(q + 1)]


def _pade(a: Tensor, degree: int) -> Tensor:
    """The approximant: even powers, and odd ones as `a` times even powers. Those of degree 13 are
    sums up to a⁶, and a⁶ times another (Paterson & Stockmeyer 1973)."""
    b = _pade_coefficients(degree)
    powers = [identity(a.shape[-1], a), a @ a]
    while len(powers) <= min(degree // 2, 3 if degree > 9 else 4):
        powers.append(powers[-1] @ powers[1])

    def combined(first: int) -> Tensor:
        """The sum of b[first], b[first + 2], … times powers."""
        return _polynomial(b[first::2], powers)

    even, odd = combined(0), a @ combined(1)
    return quotient(even - odd, even + odd)


def _taylor(a: Tensor, degree: int) -> Tensor:
    powers = [identity(a.shape[-1], a), a]
    while len(powers) <= math.isqrt(degree):
        powers.append(powers[-1] @ a)
    return _polynomial([1 / math.factorial(i) for i in range(degree + 1)], powers)


def _polynomial(coefficients: list[float], powers: list[Tensor]) -> Tensor:
    """By the powers that are there: sums of these, times the highest (Paterson & Stockmeyer
    1973)."""
    top = len(powers) - 1
    parts = [coefficients[i : i + top] for i in range(0, len(coefficients), top)]
    if len(parts[-1]) == 1 and len(parts) > 1:  # the highest power's, without a product
        parts[-2:] = [parts[-2] + parts[-1]]
    found = None
    for part in reversed(parts):
        own = sum((c * x for c, x in zip(part[1:], powers[1:], strict=False)), part[0] * powers[0])
        found = own if found is None else own + powers[top] @ found
    assert found is not None
    return found


@widens
def expm(x: ArrayLike, /) -> Tensor:
    """The exponential of square matrices, by scaling and squaring (Higham 2005): of a Padé
    approximant, on GPUs of a Taylor polynomial.

    In `nm.jit`, where the norm is not known, matrices of a 1-norm above 10^5 overflow the number of
    squarings and become NaN.

    >>> nm.linalg.expm(nm.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    a, dtype = matrices("expm", x, square=True)
    if not a.size:
        return a.astype(dtype, copy=False)
    by_products = lapack.on_gpu(a)
    name = "float32" if real_of(a.dtype) is float32 else "float64"
    choices = (_TAYLOR if by_products else _PADE)[name]
    degree, limit = choices[-1]
    norm = maximum_of(abs(a.detach()).sum(axis=-2), axis=-1)[..., None, None]
    needed = log2(norm / limit).ceil()
    needed = where(needed > 0, needed, 0.0)  # also of norms that are 0 or NaN
    count = _MAX_SQUARINGS
    if is_known(needed._node):
        largest = float(maximum_of(norm).item())
        degree = next((d for d, most in choices if largest <= most), degree)
        most = float(maximum_of(needed).item())
        count = min(int(most), finfo(needed.dtype).bits * 32) if math.isfinite(most) else 0
    scaled = a * exp2(-needed).astype(a.dtype)
    found = _taylor(scaled, degree) if by_products else _pade(scaled, degree)
    for i in range(count):
        found = where(needed > i, found @ found, found)
    return where(needed > count, float("nan"), found).astype(dtype, copy=False)
