"""`numpy.exceptions`: NumPy's own."""

# ruff: noqa: F403
from numpy.exceptions import *
