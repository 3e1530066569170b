"""Products that 32 threads do together: mma.sync, in the shapes that a device has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import register_type

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

# Elements along k of a whole product, and how PTX names them and what they are added up in.
_WHOLE = {
    dt.float16: (16, "f16", "f32"),
    dt.bfloat16: (16, "bf16", "f32"),
    dt.float32: (8, "tf32", "f32"),
    dt.int8: (32, "s8", "s32"),
    dt.uint8: (32, "u8", "s32"),
    dt.float64: (8, "f64", "f64"),
}
_CONSTRAINTS = {"float": "f", "double": "d", "i32": "r"}


def product(r: Renderer, s: ir.MmaSync) -> None:
    left, right = ([r.x.uniform(e, "a word") for e in side] for side in (s.a, s.b))
    depth, name, total = _WHOLE[s.dtype]
    capability = r.capability
    if s.dtype is dt.float32:
        left, right = ([_rounded(r, x) for x in side] for side in (left, right))
    if s.dtype is dt.float64 and capability < 90:
        for line in range(2):  # 8 rows and half of k at a time
            for half in range(2):
                sums = s.accumulators[2 * line : 2 * line + 2]
                _multiply(r, sums, "m8n8k4", name, total, [left[line + 2 * half]], [right[half]])
    elif capability < 80:
        for half in range(2):
            shape = f"m16n8k{depth // 2}"
            words = left[2 * half : 2 * half + 2]
            _multiply(r, s.accumulators, shape, name, total, words, [right[half]])
    else:
        _multiply(r, s.accumulators, f"m16n8k{depth}", name, total, left, right)


def _rounded(r: Renderer, name: str) -> str:
    """A float32 in the digits that the units look at, rounded to nearest."""
    whole = r.t.new(f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"(float {name})')
    return r.t.new(f"bitcast i32 {whole} to float")


def _multiply(
    r: Renderer,
    sums: list[ir.Register],
    shape: str,
    name: str,
    total: str,
    left: list[str],
    right: list[str],
) -> None:
    x, t = r.x, r.t
    slots = [x.storage(register)[0] for register in sums]
    ty = register_type(sums[0].dtype)
    word = "double" if name == "f64" else "i32"
    if name == "tf32":
        left, right = ([t.new(f"bitcast float {n} to i32") for n in side] for side in (left, right))
    count = len(slots)
    olds = [t.new(f"load {ty}, ptr {slot}") for slot in slots]
    places = iter(range(count, 1 << 30))

    def group(n: int) -> str:
        return "{" + ",".join(f"${next(places)}" for _ in range(n)) + "}"

    operands = [group(len(left)), group(len(right)), group(count)]
    results = "{" + ",".join(f"${i}" for i in range(count)) + "}"
    text = f"mma.sync.aligned.{shape}.row.col.{total}.{name}.{name}.{total} {results}, "
    text += ", ".join(operands) + ";"
    constraints = [f"={_CONSTRAINTS[ty]}"] * count
    constraints += [_CONSTRAINTS[word]] * (len(left) + len(right))
    constraints += [_CONSTRAINTS[ty]] * count
    arguments = [f"{word} {n}" for n in (*left, *right)] + [f"{ty} {n}" for n in olds]
    result = "{ " + ", ".join([ty] * count) + " }"
    whole = t.new(
        f'call {result} asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(arguments)})'
    )
    for i, slot in enumerate(slots):
        t.do(f"store {ty} {t.new(f'extractvalue {result} {whole}, {i}')}, ptr {slot}")
    x.forget(sums)
