"""The launch lock: one thread at a time evaluates and launches.

Programs run one after another, and no other thread uses a device's stream while a graph is captured
from it. The lock is not held while a thread waits for a device.
"""

from __future__ import annotations

from numus.runtime.locks import Rank, new_lock

lock = new_lock(Rank.LAUNCH)
