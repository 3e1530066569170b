"""The launch lock: one thread at a time evaluates and launches.

Programs run one after another, and no other thread uses a device's stream while a graph is captured
from it. The lock is not held while a thread waits for a device.
"""

from __future__ import annotations

import os
import threading

lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child has no thread to release it
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
