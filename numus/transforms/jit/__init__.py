"""nm.jit: functions as programs.

A call is traced once for each structure of its arguments (`tracing`): the function runs on
placeholders, and what it meets and changes outside of itself is noted, by handle (`places`). What
is left of it (`traced`) is a recipe with inputs and outputs, which each call follows.
"""

from numus.transforms.jit.function import jit

__all__ = ["jit"]
