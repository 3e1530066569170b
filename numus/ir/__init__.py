"""The kernel IR: structured, target-independent kernels.

A kernel is a list of structured statements (loops and uniform conditions, never jumps: WGSL has
none) over hash-consed scalar expressions. It works on flat buffers and 8-byte scalar arguments;
every extent, stride and user constant is one, so a kernel serves all sizes of one structure.

The four kinds of loop
    grid      blocks that run in parallel, in any order; the outermost loop of every kernel
    serial    an ordinary loop
    lanes     data-parallel iterations: SIMD lanes on a CPU, threads of a block on a GPU.
              Expressions that depend on its variable are *varying*, the others *uniform*.
    unroll    constant extent, fully unrolled

GPU kernels have a `Kernel.block_size` and block-level statements: see `BlockReduce`, `BlockScan`,
grid_sync.py, tensor_core.py and docs/design/0004-lanes-as-threads.md.

Low-precision floats (float16, bfloat16, the 8-bit ones) appear only in loads, stores, selects and
casts; arithmetic is done in float32. Lowering splits complex numbers into real and imaginary parts.
"""

from numus.ir.build import assign, bind, block_range, lets, reads, sets, stores, variables
from numus.ir.expressions import (
    BINARY,
    COMPARES,
    INDEX,
    UNARY,
    Buffer,
    Expr,
    Operand,
    Register,
    ScalarKind,
    add,
    address,
    approx_div,
    approx_rsqrt,
    binary,
    cast,
    const,
    const_value,
    dot4,
    evaluate_size,
    exp2,
    fma,
    idiv,
    irem,
    isnan,
    lanes_compress,
    lanes_count,
    lanes_last,
    lanes_min_where,
    lanes_reduce,
    lanes_shift,
    lanes_xor,
    load,
    load_word,
    log2,
    make,
    maximum,
    minimum,
    mul,
    new_build,
    read,
    reciprocal,
    scalar,
    select,
    slow_path_select,
    sqrt,
    sub,
    unary,
    var,
)
from numus.ir.grid_sync import AtomicAdd, ClusterGather, FlagRead, SetFlag, SpinWait, WarpMultisplit
from numus.ir.iteration import LoopParts, iterate
from numus.ir.printer import kernel_text
from numus.ir.statements import (
    BlockReduce,
    BlockScan,
    DependencyWait,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Set,
    Stmt,
    Store,
)
from numus.ir.tensor_core import (
    SPARSE_SWIZZLE_BYTES,
    SWIZZLE_BYTES,
    AsyncCommit,
    AsyncCopy,
    AsyncFence,
    AsyncWait,
    Im2col,
    KTileScales,
    MmaOperand,
    MmaSync,
    PackFragments,
    SparseMetadata,
    TmaTensor,
    Wgmma,
    WgmmaMainloop,
    WgmmaTile,
    WgmmaWait,
    accumulator_element,
    pipeline_smem_elements,
    swizzle,
)
from numus.ir.visit import (
    body_expressions,
    expressions_of,
    loads,
    loop_invariant,
    post_order,
    statements,
    walk,
)
from numus.ir.warp_roles import (
    WARPGROUP,
    Arrive,
    AwaitPhase,
    Mbarriers,
    WarpgroupTurn,
    WarpRoles,
)

__all__ = [
    "BINARY", "COMPARES", "INDEX", "SPARSE_SWIZZLE_BYTES", "SWIZZLE_BYTES", "UNARY", "WARPGROUP",
    "Arrive", "AsyncCommit", "AsyncCopy", "AsyncFence", "AsyncWait", "AtomicAdd", "AwaitPhase",
    "BlockReduce", "BlockScan", "Buffer", "ClusterGather", "DependencyWait", "Expr", "FlagRead",
    "For", "If", "Im2col", "KTileScales", "Kernel", "Let", "LoopParts", "Mbarriers", "MmaOperand",
    "MmaSync", "Operand", "PackFragments", "Prefetch", "Register", "ScalarKind", "Set", "SetFlag",
    "SparseMetadata", "SpinWait", "Stmt", "Store", "TmaTensor", "WarpMultisplit", "WarpRoles",
    "WarpgroupTurn", "Wgmma", "WgmmaMainloop", "WgmmaTile", "WgmmaWait", "accumulator_element",
    "add", "address", "approx_div", "approx_rsqrt", "assign", "binary", "bind", "block_range",
    "body_expressions", "cast", "const", "const_value", "dot4", "evaluate_size", "exp2",
    "expressions_of", "fma", "idiv", "irem", "isnan", "iterate", "kernel_text", "lanes_compress",
    "lanes_count", "lanes_last", "lanes_min_where", "lanes_reduce", "lanes_shift", "lanes_xor",
    "lets", "load", "load_word", "loads", "log2", "loop_invariant", "make", "maximum", "minimum",
    "mul", "new_build", "pipeline_smem_elements", "post_order", "read", "reads", "reciprocal",
    "scalar", "select", "sets", "slow_path_select", "sqrt", "statements", "stores", "sub",
    "swizzle", "unary", "var", "variables", "walk",
]  # fmt: skip
