"""The instruction set of the fast-call VM."""

from __future__ import annotations

from numus.runtime.pycall.guard_ops import GUARD_OPS
from numus.runtime.pycall.launch_ops import LAUNCH_OPS
from numus.runtime.pycall.object_ops import OBJECT_OPS

INSTRUCTION_WORDS = 5  # opcode, register a, operands x, y, z
OPS = {**OBJECT_OPS, **GUARD_OPS, **LAUNCH_OPS}
OPCODES = {name: number for number, name in enumerate(OPS)}
