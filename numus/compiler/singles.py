"""What evaluates single operations, by their structure; see `numus.singles`.

By itself, because evaluation looks here first, and takes the rest of the compiler only if it must.
"""

from __future__ import annotations

from typing import Any

# A native function by structure; None where a structure has been met once.
calls: dict[Any, Any] = {}
# The same for a handful of operations, with the numbers in them.
handfuls: dict[Any, Any] = {}
