"""Run one expression over arrays: the shortest way from kernel IR to numbers, for tools and tests.

`compile_lanes(f, dtypes)` renders f's expressions to explicit LLVM vectors in one loop, as the CPU
backend does, and returns a function on NumPy arrays. It measures the math library by itself:
exact `fma`, real branches for `guard`, and the instructions of the loop to count.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir as ll

from numus import dtypes as dt
from numus.compiler import ir
from numus.dtypes import DType

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def _scalar(dtype: DType) -> ll.Type:
    if dtype is dt.float32:
        return ll.FloatType()
    if dtype is dt.float64:
        return ll.DoubleType()
    return ll.IntType(1 if dtype is dt.bool_ else dtype.bits)


_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and_", "or": "or_", "xor": "xor"}
_SHIFT = {"shl": "shl", "lshr": "lshr", "ashr": "ashr"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_INTRINSIC = {
    "sqrt": "llvm.sqrt",
    "floor": "llvm.floor",
    "ceil": "llvm.ceil",
    "trunc": "llvm.trunc",
    "rint": "llvm.roundeven",
    "copysign": "llvm.copysign",
    "fma": "llvm.fma",
    "popcount": "llvm.ctpop",
}


class _Emitter:
    """Values of expressions at the builder's place; a scope per guarded block."""

    def __init__(self, builder: ll.IRBuilder, lanes: int) -> None:
        self.b = builder
        self.lanes = lanes
        self.scopes: list[dict[ir.Expr, ll.Value]] = [{}]

    def vector(self, dtype: DType) -> ll.Type:
        return ll.VectorType(_scalar(dtype), self.lanes)

    def find(self, e: ir.Expr) -> ll.Value | None:
        for scope in reversed(self.scopes):
            if e in scope:
                return scope[e]
        return None

    def value(self, root: ir.Expr) -> ll.Value:
        stack = [root]
        while stack:
            e = stack[-1]
            if self.find(e) is not None:
                stack.pop()
                continue
            needed = (e.args[0], e.args[2]) if e.op == "guard" else e.args
            missing = [a for a in needed if self.find(a) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.scopes[-1][e] = self.guard(e) if e.op == "guard" else self.emit(e)
        found = self.find(root)
        assert found is not None
        return found

    def guard(self, e: ir.Expr) -> ll.Value:
        rare, usual = self.find(e.args[0]), self.find(e.args[2])
        b = self.b
        start = b.block
        slow, done = b.append_basic_block("slow"), b.append_basic_block("done")
        word = b.bitcast(rare, ll.IntType(self.lanes))
        any_rare = b.icmp_unsigned("!=", word, ll.Constant(word.type, 0))
        b.cbranch(any_rare, slow, done).set_weights([1, 10000])
        b.position_at_end(slow)
        self.scopes.append({})
        blended = b.select(rare, self.value(e.args[1]), usual)
        self.scopes.pop()
        slow_end = b.block
        b.branch(done)
        b.position_at_end(done)
        phi = b.phi(usual.type)
        phi.add_incoming(usual, start)
        phi.add_incoming(blended, slow_end)
        return phi

    def call(self, name: str, args: list[ll.Value], *more: ll.Value) -> ll.Value:
        vec = args[0].type
        element = {"float": "f32", "double": "f64"}.get(str(vec.element), str(vec.element))
        full = f"{name}.v{self.lanes}{element}"
        fn = self.b.module.globals.get(full)
        if fn is None:
            kind = ll.FunctionType(vec, [a.type for a in (*args, *more)])
            fn = ll.Function(self.b.module, kind, full)
        return self.b.call(fn, [*args, *more])

    def emit(self, e: ir.Expr) -> ll.Value:
        b, op, vec = self.b, e.op, self.vector(e.dtype)
        if op == "const":
            value = ir.const_value(e)
            if e.dtype is dt.float32:
                value = float(np.float32(value))
            return ll.Constant(vec, [ll.Constant(_scalar(e.dtype), value)] * self.lanes)
        args = [self.find(a) for a in e.args]
        source = e.args[0].dtype
        floating = source.kind == "float"
        if op in _INTRINSIC:
            return self.call(_INTRINSIC[op], args)
        if op in _COMPARE:
            if floating:
                compare = b.fcmp_unordered if op == "ne" else b.fcmp_ordered
            else:
                compare = b.icmp_signed if source.kind == "int" else b.icmp_unsigned
            return compare(_COMPARE[op], *args)
        if op in _FLOAT and floating:
            return getattr(b, _FLOAT[op])(*args)
        if op in _INTEGER:
            return getattr(b, _INTEGER[op])(*args)
        if op in _SHIFT:
            return getattr(b, _SHIFT[op])(*args)
        if op == "neg":
            return b.fneg(*args) if floating else b.neg(*args)
        if op == "not":
            return b.not_(*args)
        if op == "abs" and floating:
            return self.call("llvm.fabs", args)
        if op == "select":
            return b.select(*args)
        if op == "bitcast":
            return b.bitcast(args[0], vec)
        if op == "clz":
            return self.call("llvm.ctlz", args, ll.Constant(ll.IntType(1), 0))
        if op == "mulhi":
            wide = ll.VectorType(ll.IntType(2 * source.bits), self.lanes)
            extend = b.sext if source.kind == "int" else b.zext
            product = b.mul(extend(args[0], wide), extend(args[1], wide))
            shift = ll.Constant(wide, [ll.Constant(wide.element, source.bits)] * self.lanes)
            return b.trunc(b.lshr(product, shift), vec)
        if op in ("min", "max") and not floating:
            less = b.icmp_signed if source.kind == "int" else b.icmp_unsigned
            return b.select(less("<" if op == "min" else ">", *args), *args)
        if op == "cast":
            return self.cast(args[0], source, e.dtype, vec)
        raise NotImplementedError(op)

    def cast(self, a: ll.Value, source: DType, target: DType, vec: ll.Type) -> ll.Value:
        b = self.b
        if source.kind == "float":
            if target.kind == "float":
                return (b.fpext if target.bits > source.bits else b.fptrunc)(a, vec)
            return (b.fptosi if target.kind == "int" else b.fptoui)(a, vec)
        signed = source.kind == "int"
        if target.kind == "float":
            return (b.sitofp if signed else b.uitofp)(a, vec)
        if target.bits < source.bits:
            return b.trunc(a, vec)
        if target.bits == source.bits:
            return a
        return (b.sext if signed else b.zext)(a, vec)


class Lanes:
    """A compiled loop: call it on equally long 1-D arrays; `assembly` is what the CPU runs."""

    def __init__(
        self,
        f: Callable[..., ir.Expr | tuple[ir.Expr, ...]],
        dtypes: Sequence[DType],
        lanes: int | None = None,
    ) -> None:
        self.inputs = tuple(dtypes)
        self.lanes = lanes or 64 // min(d.itemsize for d in dtypes)
        ir.fresh()
        leaves = [ir.var(f"x{i}", d) for i, d in enumerate(dtypes)]
        built = f(*leaves)
        results = built if isinstance(built, tuple) else (built,)
        self.single = not isinstance(built, tuple)
        self.outputs = tuple(r.dtype for r in results)
        self._build(leaves, results)

    def _build(self, leaves: Sequence[ir.Expr], results: Sequence[ir.Expr]) -> None:
        module = ll.Module()
        count = len(leaves) + len(results)
        word = ll.IntType(64)
        fn = ll.Function(
            module,
            ll.FunctionType(
                ll.VoidType(), [ll.PointerType()] * (len(leaves) + len(results)) + [word]
            ),
            "run",
        )
        for a in fn.args[:-1]:
            a.add_attribute("noalias")
        entry, loop, end = (fn.append_basic_block(n) for n in ("entry", "loop", "end"))
        b = ll.IRBuilder(entry)
        b.branch(loop)
        b.position_at_end(loop)
        i = b.phi(word)
        i.add_incoming(ll.Constant(word, 0), entry)
        emitter = _Emitter(b, self.lanes)
        for leaf, pointer in zip(leaves, fn.args, strict=False):
            at = b.gep(pointer, [i], source_etype=_scalar(leaf.dtype))
            loaded = b.load(at, typ=emitter.vector(leaf.dtype))
            loaded.align = 1
            emitter.scopes[0][leaf] = loaded
        for result, pointer in zip(results, fn.args[len(leaves) :], strict=False):
            value = emitter.value(result)
            store = b.store(value, b.gep(pointer, [i], source_etype=_scalar(result.dtype)))
            store.align = 1
        after = b.add(i, ll.Constant(word, self.lanes))
        i.add_incoming(after, b.block)
        b.cbranch(b.icmp_signed("<", after, fn.args[-1]), loop, end)
        b.position_at_end(end)
        b.ret_void()
        self.source = str(module)
        parsed = llvm.parse_assembly(self.source)
        parsed.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(parsed, passes)
        self.assembly = machine.emit_assembly(parsed)
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        address = self._engine.get_function_address("run")
        self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count, ctypes.c_int64)(address)

    def __call__(self, *arrays: Any) -> Any:
        n = len(arrays[0])
        size = -(-max(n, 1) // self.lanes) * self.lanes
        held = []
        for a, d in zip(arrays, self.inputs, strict=True):
            a = np.ascontiguousarray(a, d.np)
            if size != n:
                a = np.concatenate([a, np.ones(size - n, d.np)])
            held.append(a)
        out = [np.empty(size, d.np) for d in self.outputs]
        self.run_on(held, out)
        return out[0][:n] if self.single else tuple(o[:n] for o in out)

    def run_on(self, arrays: Sequence[Any], out: Sequence[Any]) -> None:
        """Run on arrays whose length is a multiple of the lanes, into arrays that are there."""
        self._run(*(a.ctypes.data for a in (*arrays, *out)), len(arrays[0]))

    def loop_instructions(self) -> int:
        """Instructions on the usual path: those of the loop's blocks that no guard skips."""
        return len(self.loop_listing())

    def loop_listing(self) -> list[str]:
        lines = [s.strip() for s in self.assembly.splitlines()]
        labels = [k for k, s in enumerate(lines) if s.startswith(".LBB")]
        body: list[str] = []
        start = next(k for k in labels if any("Loop" in t for t in lines[k : k + 3]))
        for s in lines[start:]:
            if s.startswith((".Lfunc_end", ".LBB")) and "slow" in s:
                continue
            if not s or s.startswith(("#", ".", "retq")):
                if s.startswith(".Lfunc_end"):
                    break
                continue
            body.append(s)
        return body
