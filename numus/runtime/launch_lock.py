"""Whose turn it is to hand work to a device.

One lock for all threads, held while anything is evaluated or launched, so that programs come one
after another, and a device's stream is nobody else's while a graph is recorded from it. It is not
held while a thread waits for a device.
"""

from __future__ import annotations

import os
import threading

lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a fork has no thread that would give it back
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
