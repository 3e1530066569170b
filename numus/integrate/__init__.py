"""Integration: of samples, of functions, and of differential equations; SciPy's names.

Every solver is one program of the graph: it runs under `nm.jit`, maps under `nm.vmap`, and has
gradients.
"""

from numus.integrate.collected import OdeSolution
from numus.integrate.ivp import OdeResult, odeint, solve_ivp
from numus.integrate.quadrature import fixed_quad, quad, romberg
from numus.integrate.samples import (
    cumulative_simpson,
    cumulative_trapezoid,
    romb,
    simpson,
    trapezoid,
)

__all__ = [
    "OdeResult", "OdeSolution", "cumulative_simpson", "cumulative_trapezoid", "fixed_quad",
    "odeint", "quad", "romb", "romberg", "simpson", "solve_ivp", "trapezoid",
]  # fmt: skip
