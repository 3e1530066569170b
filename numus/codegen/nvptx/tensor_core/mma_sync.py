"""Warp-level MMA (mma.sync), in the shapes of each device generation."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import register_type
from numus.codegen.nvptx.context import KernelContext
from numus.dtypes import DType

# (k of a full instruction, PTX type of elements, of accumulators)
_SHAPES = {
    dt.float16: (16, "f16", "f32"),
    dt.bfloat16: (16, "bf16", "f32"),
    dt.float32: (8, "tf32", "f32"),
    dt.int8: (32, "s8", "s32"),
    dt.uint8: (32, "u8", "s32"),
    dt.float64: (8, "f64", "f64"),
}
_CONSTRAINTS = {"float": "f", "double": "d", "i32": "r"}


def mma(r: KernelContext, s: ir.MmaSync) -> None:
    a, b = ([r.x.uniform(e, "a word") for e in side] for side in (s.a, s.b))
    k = _SHAPES[s.dtype][0]
    if s.dtype is dt.float32:
        a, b = ([_round_to_tf32(r, x) for x in side] for side in (a, b))
    if s.dtype is dt.float64 and r.capability < 90:
        for row in range(2):  # 8 rows and half of k at a time
            for half in range(2):
                registers = s.accumulators[2 * row : 2 * row + 2]
                _mma(r, registers, "m8n8k4", s.dtype, [a[row + 2 * half]], [b[half]])
    elif r.capability < 80:
        for half in range(2):
            words = a[2 * half : 2 * half + 2]
            _mma(r, s.accumulators, f"m16n8k{k // 2}", s.dtype, words, [b[half]])
    else:
        _mma(r, s.accumulators, f"m16n8k{k}", s.dtype, a, b)


def _round_to_tf32(r: KernelContext, name: str) -> str:
    bits = r.t.new(f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"(float {name})')
    return r.t.new(f"bitcast i32 {bits} to float")


def _mma(
    r: KernelContext, into: list[ir.Register], shape: str, dtype: DType, a: list[str], b: list[str]
) -> None:
    x, t, (_, name, total) = r.x, r.t, _SHAPES[dtype]
    slots = [x.storage(register)[0] for register in into]
    ty = register_type(into[0].dtype)
    word = "double" if name == "f64" else "i32"
    if name == "tf32":
        a, b = ([t.new(f"bitcast float {n} to i32") for n in side] for side in (a, b))
    count = len(slots)
    olds = [t.new(f"load {ty}, ptr {slot}") for slot in slots]
    numbers = iter(range(4 * count + len(a) + len(b)))

    def operand(n: int) -> str:
        return "{" + ",".join(f"${next(numbers)}" for _ in range(n)) + "}"

    operands = ", ".join(operand(n) for n in (count, len(a), len(b), count))
    text = f"mma.sync.aligned.{shape}.row.col.{total}.{name}.{name}.{total} {operands};"
    constraints = [f"={_CONSTRAINTS[ty]}"] * count
    constraints += [_CONSTRAINTS[word]] * (len(a) + len(b))
    constraints += [_CONSTRAINTS[ty]] * count
    arguments = [f"{word} {n}" for n in (*a, *b)] + [f"{ty} {n}" for n in olds]
    r.asm_into(into, text, constraints, arguments)
