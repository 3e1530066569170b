"""Loops and branches that are part of the graph: scan, while_loop, cond.

Their bodies are traced once (`body`), the loops run outside of Python, and derivatives and batches
of loops are loops again.
"""

from numus.transforms.control.associative import associative_scan
from numus.transforms.control.cond import cond
from numus.transforms.control.scan import fori_loop, scan
from numus.transforms.control.while_loop import while_loop

__all__ = ["associative_scan", "cond", "fori_loop", "scan", "while_loop"]
