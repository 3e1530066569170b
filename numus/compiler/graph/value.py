"""Values of the graph being compiled: a leaf module, which every stage imports."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from numus.dtypes import DType
from numus.shapes import Shape

# Operations that return their first input unchanged.
IDENTITIES = frozenset({"stop_gradient", "custom", "graft", "implicit"})

# Kinds with schedules of their own that take an elementwise epilogue.
GEMM_KINDS = ("contract", "convolve")

# A convolution of images (n, *space, channels) by weights (channels out, channels, *taps).
CHANNELS_LAST_CONVOLVE = "convolve_channels_last"

# Kinds whose outputs are computed by one kernel.
ATTENTION = ("attention", "attention_grad")

# The operation of GEMM operands packed into panels ahead of the kernel that reads them.
PACKED = "packed"

# Operations whose parameters are sizes.
SIZED_OPS = frozenset({"reshape", "broadcast", "slice", "pad", "extent"})

_anonymous_ids = itertools.count(-1, -1)


@dataclass(eq=False, repr=False, slots=True)
class Value:
    """One value: an operation, its operands and parameters. Never changed once it is made."""

    id: int  # position in the graph; negative for values that lowering makes
    op: str
    kind: str
    inputs: tuple[Value, ...]
    params: Any
    shape: Shape
    dtype: DType

    @staticmethod
    def fresh(
        op: str, kind: str, inputs: tuple[Value, ...], params: Any, shape: Shape, dtype: DType
    ) -> Value:
        """An anonymous value outside of the graph: an intermediate of one lowering."""
        return Value(next(_anonymous_ids), op, kind, inputs, params, shape, dtype)

    def replace(self, inputs: tuple[Value, ...], params: Any) -> Value:
        """A copy in the same position with other operands and parameters."""
        return Value(self.id, self.op, self.kind, inputs, params, self.shape, self.dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        args = ", ".join(f"%{x.id}" for x in self.inputs)
        return f"%{self.id} = {self.op}({args}) {self.dtype.name}{list(self.shape)}"


Layouts = dict[Value, Shape]  # strides of the values in memory, in elements

# Interns a value: (op, kind, inputs, params, shape, dtype).
Make = Callable[[str, str, tuple[Value, ...], Any, Shape, DType], Value]


def walk(roots: Iterable[Value], enter: Callable[[Value], bool]) -> Iterator[Value]:
    """Roots and their transitive operands, each once; operands only of values to `enter`."""
    seen: set[Value] = set()
    stack = list(roots)
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            if enter(x):
                stack.extend(x.inputs)


def is_constant(v: Value, number: int) -> bool:
    """The value is this number, broadcast or reshaped."""
    while v.op in ("broadcast", "reshape"):
        v = v.inputs[0]
    return v.op == "constant" and v.params[0] == number and v.params[0] is not None
