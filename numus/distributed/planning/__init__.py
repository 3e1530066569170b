"""Planning of training beyond the machines at hand: memory, traffic and time of a step per rank.

The program of a rank is traced on the null backend, with groups of any size that only count what
would be sent; a machine model (roofline, ring collectives) turns the counts into seconds.
"""

from numus.distributed.planning.estimate import Estimate, estimate
from numus.distributed.planning.layout import Layout
from numus.distributed.planning.machine import MACHINES, Machine
from numus.distributed.planning.search import search
from numus.distributed.planning.transformer import Transformer

__all__ = ["MACHINES", "Estimate", "Layout", "Machine", "Transformer", "estimate", "search"]
