"""`numpy.typing`: NumPy's own."""

# ruff: noqa: F403
from numpy.typing import *
