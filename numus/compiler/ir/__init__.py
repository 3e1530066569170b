"""The kernel IR: what a kernel does, said once, before any target's syntax.

A kernel is a list of structured statements (loops and uniform conditions, never jumps: WGSL has
none) over hash-consed scalar expressions. It works on flat buffers and 8-byte scalar slots; every
extent, stride and user constant is a slot, so a kernel serves all sizes of one structure.

The four kinds of loop
    grid      blocks that run in parallel, in any order; the outermost loop of every kernel
    serial    an ordinary loop
    lanes     iterations that run side by side: SIMD lanes on a CPU, threads of a group on a GPU.
              Expressions that depend on its variable are *varying*, the others *uniform*.
    unroll    constant extent, written out

A kernel for a target whose lanes are threads says how many make a group (`Kernel.group`), and may
then do what only threads can: see `Combine`, `Scan`, and docs/design/0004-lanes-as-threads.md.

Narrow floats (float16, bfloat16, the 8-bit ones) appear only in loads, stores, selects and casts;
arithmetic is done in float32. Complex numbers never appear: lowering carries them as pairs.
"""

from numus.compiler.ir.expressions import (
    BINARY,
    COMPARES,
    INDEX,
    UNARY,
    Buffer,
    Expr,
    Operand,
    Register,
    add,
    address,
    binary,
    cast,
    const,
    const_value,
    exp2,
    fma,
    fresh,
    guard,
    idiv,
    irem,
    isnan,
    lanes_last,
    lanes_pick,
    lanes_reduce,
    lanes_shift,
    lanes_xor,
    load,
    make,
    maximum,
    minimum,
    mul,
    read,
    reciprocal,
    scalar,
    select,
    sqrt,
    sub,
    unary,
    var,
)
from numus.compiler.ir.kernel import Kernel
from numus.compiler.ir.statements import Combine, For, If, Let, Prefetch, Scan, Set, Stmt, Store
from numus.compiler.ir.threads import Add, Await, Post, Posted, Tally, between
from numus.compiler.ir.tiles import (
    TILE_BYTES,
    AsyncCommit,
    AsyncCopy,
    AsyncFence,
    AsyncWait,
    TileOperand,
    TileProduct,
    TileSlice,
    TileSource,
    TileSum,
    TileWait,
    WarpProduct,
    sum_place,
    tile_place,
    tile_scratch,
)
from numus.compiler.ir.walking import below, expressions_of, statements, walk

__all__ = [
    "BINARY",
    "COMPARES",
    "INDEX",
    "TILE_BYTES",
    "UNARY",
    "Add",
    "AsyncCommit",
    "AsyncCopy",
    "AsyncFence",
    "AsyncWait",
    "Await",
    "Buffer",
    "Combine",
    "Expr",
    "For",
    "If",
    "Kernel",
    "Let",
    "Operand",
    "Post",
    "Posted",
    "Prefetch",
    "Register",
    "Scan",
    "Set",
    "Stmt",
    "Store",
    "Tally",
    "TileOperand",
    "TileProduct",
    "TileSlice",
    "TileSource",
    "TileSum",
    "TileWait",
    "WarpProduct",
    "add",
    "address",
    "below",
    "between",
    "binary",
    "cast",
    "const",
    "const_value",
    "exp2",
    "expressions_of",
    "fma",
    "fresh",
    "guard",
    "idiv",
    "irem",
    "isnan",
    "lanes_last",
    "lanes_pick",
    "lanes_reduce",
    "lanes_shift",
    "lanes_xor",
    "load",
    "make",
    "maximum",
    "minimum",
    "mul",
    "read",
    "reciprocal",
    "scalar",
    "select",
    "sqrt",
    "statements",
    "sub",
    "sum_place",
    "tile_place",
    "tile_scratch",
    "unary",
    "var",
    "walk",
]
