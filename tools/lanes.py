"""Run IR expressions over NumPy arrays, for tests of the math library.

`Lanes(f, dtypes)` is a kernel of one lanes loop, rendered and compiled as the CPU backend does it,
for this machine or another target it can execute; called on NumPy arrays it returns f of them.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget, host
from numus.dtypes import DType
from numus.runtime.cpu.jit import Jit

_NATIVE = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)


@functools.cache
def _jit(target: LlvmTarget) -> Jit:
    return Jit(target)


def kernel(f: Callable[..., Any], dtypes: Sequence[DType]) -> tuple[ir.Kernel, bool]:
    """f over flat buffers, in one block; True if it has one result."""
    ir.new_build()
    i = ir.var("i")
    inputs = [ir.Buffer(f"x{k}", d, "read") for k, d in enumerate(dtypes)]
    built = f(*(ir.load(b, i) for b in inputs))
    results = built if isinstance(built, tuple) else (built,)
    outputs = [ir.Buffer(f"y{k}", r.dtype, "write") for k, r in enumerate(results)]
    stores: list[ir.Stmt] = [ir.Store(b, i, r) for b, r in zip(outputs, results, strict=True)]
    loop = ir.For(i, ir.const(0), ir.scalar("n"), "lanes", stores)
    grid = ir.For(ir.var("block"), ir.const(0), ir.const(1), "grid", [loop])
    buffers = (*inputs, *outputs)
    return ir.Kernel("lanes", buffers, (("n", ir.INDEX),), [grid]), len(results) == 1


class Lanes:
    """A compiled loop over 1-D arrays of equal length."""

    def __init__(
        self, f: Callable[..., Any], dtypes: Sequence[DType], target: LlvmTarget | None = None
    ) -> None:
        self.inputs = tuple(dtypes)
        self.kernel, self._single = kernel(f, dtypes)
        self._outputs = [b.dtype for b in self.kernel.buffers if b.access == "write"]
        jit = _jit(target or host())
        self.source = render(self.kernel, jit.target)
        self._assemble = functools.partial(jit.assembly, self.source)
        self._code = jit.link(jit.object_code(self.source), ("kernel",))
        self._native = _NATIVE(self._code.addresses[0])

    def __call__(self, *arrays: Any) -> Any:
        inputs = [np.ascontiguousarray(a, d.np) for a, d in zip(arrays, self.inputs, strict=True)]
        out = [np.empty(len(inputs[0]), d.np) for d in self._outputs]
        self.run(inputs, out)
        return out[0] if self._single else tuple(out)

    def run(self, arrays: Sequence[Any], out: Sequence[Any]) -> None:
        """Run on contiguous arrays, with preallocated results."""
        buffers = [*arrays, *out]
        addresses = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        self._native(0, 1, 0, addresses, (ctypes.c_int64 * 1)(len(buffers[0])))

    def assembly(self) -> str:
        return str(self._assemble())

    def hot_loop(self) -> list[str]:
        """The instructions of a full-vector iteration when no slow path is taken.

        The shortest vector loop of the listing, with forward branches not taken.
        """
        lines = [s.split("#")[0].strip() for s in self.assembly().splitlines()]
        lines = [s for s in lines if s and not (s.startswith(".") and not s.endswith(":"))]
        labels = {s[:-1]: k for k, s in enumerate(lines) if s.endswith(":")}
        best: list[str] = []
        for k, s in enumerate(lines):
            found = re.match(r"j\w+\s+(\S+)$", s)
            if not found or labels.get(found[1], k) >= k:
                continue
            body = [t for t in lines[labels[found[1]] : k + 1] if not t.endswith(":")]
            if not best or (
                len(body) < len(best) and any("%zmm" in t or "%ymm" in t for t in body)
            ):
                best = body
        return best
