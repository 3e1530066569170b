"""nm.jit: functions as compiled programs.

A call is traced once per structure of its arguments (`tracing`): the function runs on placeholders,
and its captures and side effects are recorded, by handle (`inputs`, `variables`). `traced` turns
the trace into a `spec`, which an `executable` runs, or a fast call (`fast_path`).
"""

from numus.transforms.jit.function import jit

__all__ = ["jit"]
