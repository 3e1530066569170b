"""Elementwise primitives: one result element per element of the (broadcast) operands.

Each row of the tables gives the name, the NumPy reference and the partial derivatives; vjp, jvp
and batching follow from those. Operands have one dtype (the functions above promote) and broadcast
as NumPy's do; a complex cotangent is multiplied by the conjugate of the derivative.
"""

from numus.primitives.elementwise.arithmetic import *  # noqa: F403
from numus.primitives.elementwise.transcendental import *  # noqa: F403
