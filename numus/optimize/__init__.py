"""Zeros, minima and fits with SciPy's names, in one program each.

Solvers run under `nm.jit` and map under `nm.vmap`, and solutions have gradients by the implicit
function theorem.
"""

from numus.optimize.assignment import linear_sum_assignment
from numus.optimize.least_squares import LeastSquaresResult, curve_fit, least_squares
from numus.optimize.linear_program import LinprogResult, linprog
from numus.optimize.minimize import OptimizeResult, minimize
from numus.optimize.scalar_minimize import minimize_scalar
from numus.optimize.scalar_roots import RootResults, bisect, brentq, newton, root_scalar
from numus.optimize.vector_roots import RootResult, root

__all__ = [
    "LeastSquaresResult", "LinprogResult", "OptimizeResult", "RootResult", "RootResults", "bisect",
    "brentq", "curve_fit", "least_squares", "linear_sum_assignment", "linprog", "minimize",
    "minimize_scalar", "newton", "root", "root_scalar",
]  # fmt: skip
