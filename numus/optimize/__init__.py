"""Zeros, minima and fits with SciPy's names, in one program each.

Solvers run under `nm.jit` and map under `nm.vmap`, and solutions have gradients by the implicit
function theorem.
"""

from numus.optimize.scalar_roots import RootResults, bisect, brentq, newton, root_scalar

__all__ = ["RootResults", "bisect", "brentq", "newton", "root_scalar"]
