"""Small kernels in IR for the runtime's tests."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir

BLOCK = 64


def affine(scale: float = 2.0, shift: float = 1.0, name: str = "affine") -> ir.Kernel:
    """y = x * scale + shift over blocks of 64."""
    ir.new_build()
    x, y = ir.Buffer("x", dt.float32, "read"), ir.Buffer("y", dt.float32, "write")
    b, i, n = ir.var("b"), ir.var("i"), ir.scalar("n")
    value = ir.load(x, i) * scale + shift
    inner = ir.For(i, b, ir.minimum(b + BLOCK, n), "lanes", [ir.Store(y, i, value)])
    grid = ir.For(b, ir.const(0), n, "grid", [inner], ir.const(BLOCK))
    return ir.Kernel(name, (x, y), (("n", ir.INDEX),), [grid], notes=("mul", "add"))


def scratch_reverse() -> ir.Kernel:
    """Each block of 64 reversed, by way of the worker's own scratch memory."""
    ir.new_build()
    x, y = ir.Buffer("x", dt.float32, "read"), ir.Buffer("y", dt.float32, "write")
    t = ir.Buffer("t", dt.float32, "scratch", ir.scalar("size"))
    b, i, size = ir.var("b"), ir.var("i"), ir.scalar("size")
    body = [
        ir.For(i, ir.const(0), size, "lanes", [ir.Store(t, i, ir.load(x, b * size + i))]),
        ir.For(
            i, ir.const(0), size, "lanes", [ir.Store(y, b * size + i, ir.load(t, size - 1 - i))]
        ),
    ]
    grid = ir.For(b, ir.const(0), ir.scalar("blocks"), "grid", body)
    slots = (("size", ir.INDEX), ("blocks", ir.INDEX))
    return ir.Kernel("reverse", (x, y, t), slots, [grid])


def blocks(n: int) -> int:
    return -(-n // BLOCK)
