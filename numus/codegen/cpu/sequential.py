"""Sequential algorithms as Python functions, translated to LLVM IR: loops on index arrays that have
neither lanes nor tasks (orderings, elimination trees, factorisations), and run as Python too.

The subset: int, float and bool locals, arrays of one axis (`INDEX32`, `INDEX64`, `FLOAT64`, also
from an offset on: `x[k:]`), `while`, `for … in range`, `if`, arithmetic, comparisons, `abs`, `min`,
`max`, `sqrt`, calls of other such functions, and vectors of eight floats (`vector_load`,
`vector_store`, `vector_splat`, `vector_fma`). Integers are of 64 bits; `//` and `%` round to zero,
so that operands must not be negative. Indices are not checked: callers are.

Arrays of `NUMBERS`, and each `Number` (`x: Number = 0.0`), are real or complex as those of the
call: a function is compiled for each. They have `real` and `conj`.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from numus.codegen.cpu import sequential_complex
from numus.codegen.cpu.sequential_complex import COMPLEX
from numus.codegen.cpu.sequential_types import (
    NUMBER_KINDS,
    SCALARS,
    passed,
    signature,
    type_of,
)
from numus.codegen.cpu.sequential_vectors import LANES, VECTOR
from numus.errors import CompileError

Array = np.ndarray[Any, Any]
INDEX32: TypeAlias = Array  # what type checkers see of the arrays
INDEX64: TypeAlias = Array
FLOAT64: TypeAlias = Array
NUMBERS: TypeAlias = Array
Number: TypeAlias = Any


# -- what the translator knows by name, as Python ------------------------------------------------


def real(x: Any) -> Any:
    return x.real


def conj(x: Any) -> Any:
    return x.conjugate()


sqrt = math.sqrt

_INT_OPS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
_FLOAT_OPS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_COMPARISONS = {
    ast.Lt: ("slt", "olt"), ast.LtE: ("sle", "ole"), ast.Gt: ("sgt", "ogt"),
    ast.GtE: ("sge", "oge"), ast.Eq: ("eq", "oeq"), ast.NotEq: ("ne", "une"),
}  # fmt: skip

Value = tuple[str, str]  # an LLVM type (or "array " and that of its elements) and an operand


def translate(functions: Sequence[Callable[..., Any]], numbers: str = "FLOAT64") -> str:
    """The LLVM IR module of functions that call each other."""
    known = {f.__name__: signature(f, numbers) for f in functions}
    parts = [_Function(f, known, NUMBER_KINDS[numbers]).text() for f in functions]
    declared = [
        "declare double @llvm.fabs.f64(double)",
        "declare double @llvm.sqrt.f64(double)",
        f"declare {VECTOR} @llvm.fma.v{LANES}f64({VECTOR}, {VECTOR}, {VECTOR})",
    ]
    return "\n".join([*declared, *parts])


class _Function:
    """One function: locals in stack slots, which LLVM turns into registers."""

    def __init__(self, function: Callable[..., Any], known: dict[str, Any], number: str) -> None:
        self.name = function.__name__
        self.known, self.number = known, number
        self.globals = function.__globals__
        source = textwrap.dedent(inspect.getsource(function))
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.FunctionDef)
        self.tree = definition
        self.lines: list[str] = []
        self.slots: dict[str, str] = {}
        self.loops: list[tuple[str, str]] = []  # where `continue` and `break` go
        self.count = 0
        self.ended = False  # after a branch

    def fail(self, node: ast.AST, why: str) -> CompileError:
        line = getattr(node, "lineno", 0)
        return CompileError(f"{self.name}, line {line}: {why}: {ast.unparse(node)}")

    def text(self) -> str:
        parameters, result = self.known[self.name]
        arguments = []
        body = []
        for name, kind in parameters:
            type_ = type_of(kind)
            self.slots[name] = type_
            arguments.append(f"{passed(type_)} %arg.{name}")
            body.append(f"  store {passed(type_)} %arg.{name}, ptr %{name}")
        self.result = type_of(result)
        self.statements(self.tree.body)
        if not self.ended:
            self.emit("ret void" if self.result == "void" else "unreachable")
        slots = [f"  %{name} = alloca {passed(t)}" for name, t in self.slots.items()]
        head = f"define {self.result} @{self.name}({', '.join(arguments)}) {{"
        return "\n".join([head, *slots, *body, *self.lines, "}"])

    # -- lines ------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        if not self.ended:
            self.lines.append(f"  {line}")

    def new(self, line: str) -> str:
        self.count += 1
        self.emit(f"%t.{self.count} = {line}")
        return f"%t.{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"l.{self.count}"

    def go(self, label: str) -> None:
        self.emit(f"br label %{label}")
        self.ended = True

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")
        self.ended = True

    def begin_block(self, label: str) -> None:
        if not self.ended:
            self.go(label)
        self.lines.append(f"{label}:")
        self.ended = False

    # -- statements -------------------------------------------------------------------------------

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if self.ended:
                return
            getattr(self, f"do_{type(node).__name__}", self.unknown)(node)

    def unknown(self, node: ast.AST) -> Any:
        raise self.fail(node, "is not of the sequential subset")

    def do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.value(node.value)

    def do_Pass(self, node: ast.Pass) -> None:
        pass

    def do_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self.emit("ret void")
        else:
            value = self.cast(self.value(node.value), self.result, node)
            self.emit(f"ret {self.result} {value}")
        self.ended = True

    def do_Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Tuple):
            assert isinstance(node.value, ast.Tuple)
            found = [self.value(v) for v in node.value.elts]
            for t, v in zip(target.elts, found, strict=True):
                self.assign(t, v)
            return
        self.assign(target, self.value(node.value))

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        assert node.value is not None
        value = self.value(node.value)
        if ast.unparse(node.annotation) == "Number":
            type_ = SCALARS[self.number]
            value = (type_, self.cast(value, type_, node))
        self.assign(node.target, value)

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        operand = self.value(node.value)
        if isinstance(node.target, ast.Subscript):
            kind, address = self.address(node.target)
            old = self.loaded(kind, address)
            self.store(kind, address, self.operate(node, node.op, old, operand), node)
            return
        self.assign(node.target, self.operate(node, node.op, self.value(node.target), operand))

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Subscript):
            kind, address = self.address(target)
            self.store(kind, address, value, target)
            return
        if not isinstance(target, ast.Name):
            raise self.fail(target, "is nothing to assign to")
        type_ = self.slots.setdefault(target.id, value[0])
        self.emit(f"store {passed(type_)} {self.cast(value, type_, target)}, ptr %{target.id}")

    def store(self, kind: str, address: str, value: Value, node: ast.AST) -> None:
        if kind == "i32":
            value = ("i32", self.new(f"trunc i64 {self.cast(value, 'i64', node)} to i32"))
        else:
            value = (kind, self.cast(value, kind, node))
        self.emit(f"store {value[0]} {value[1]}, ptr {address}")

    def do_If(self, node: ast.If) -> None:
        yes, no, end = self.label(), self.label(), self.label()
        self.condition(node.test, yes, no)
        self.begin_block(yes)
        self.statements(node.body)
        if not self.ended:
            self.go(end)
        self.begin_block(no)
        self.statements(node.orelse)
        self.begin_block(end)

    def do_While(self, node: ast.While) -> None:
        head, body, end = self.label(), self.label(), self.label()
        self.begin_block(head)
        self.condition(node.test, body, end)
        self.begin_block(body)
        self.loops.append((head, end))
        self.statements(node.body)
        self.loops.pop()
        if not self.ended:
            self.go(head)
        self.begin_block(end)

    def do_For(self, node: ast.For) -> None:
        assert isinstance(node.target, ast.Name)
        assert isinstance(node.iter, ast.Call)
        bounds = [self.cast(self.value(a), "i64", node) for a in node.iter.args]
        start, stop = ("0", bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        step, down = "1", False
        if len(bounds) == 3:
            step = bounds[2]
            down = ast.unparse(node.iter.args[2]).startswith("-")
        self.count += 1
        counter = f"for.{self.count}"
        self.slots[counter] = "i64"
        self.slots.setdefault(node.target.id, "i64")
        head, body, step_at, end = (self.label() for _ in range(4))
        self.emit(f"store i64 {start}, ptr %{counter}")
        self.begin_block(head)
        now = self.new(f"load i64, ptr %{counter}")
        self.branch(self.new(f"icmp {'sgt' if down else 'slt'} i64 {now}, {stop}"), body, end)
        self.begin_block(body)
        self.emit(f"store i64 {now}, ptr %{node.target.id}")
        self.loops.append((step_at, end))
        self.statements(node.body)
        self.loops.pop()
        self.begin_block(step_at)
        self.emit(f"store i64 {self.new(f'add nsw i64 {now}, {step}')}, ptr %{counter}")
        self.go(head)
        self.begin_block(end)

    def do_Break(self, node: ast.Break) -> None:
        self.go(self.loops[-1][1])

    def do_Continue(self, node: ast.Continue) -> None:
        self.go(self.loops[-1][0])

    # -- expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        found: Value = getattr(self, f"of_{type(node).__name__}", self.unknown)(node)
        return found

    def of_Constant(self, node: ast.Constant) -> Value:
        x: Any = node.value
        if isinstance(x, bool):
            return "i1", str(int(x))
        return ("i64", str(x)) if isinstance(x, int) else ("double", _hex(x))

    def of_Name(self, node: ast.Name) -> Value:
        type_ = self.slots.get(node.id)
        if type_ is None:
            constant = self.globals.get(node.id)
            if isinstance(constant, (int, float)):
                return self.of_Constant(ast.Constant(constant))
            raise self.fail(node, "is not known")
        return type_, self.new(f"load {passed(type_)}, ptr %{node.id}")

    def element(self, node: ast.Subscript, index: ast.expr) -> Value:
        """The type of elements, and the address of one."""
        type_, base = self.value(node.value)
        if not type_.startswith("array "):
            raise self.fail(node, "is no array")
        kind = type_.removeprefix("array ")
        at = self.cast(self.value(index), "i64", node)
        return kind, self.new(f"getelementptr {kind}, ptr {base}, i64 {at}")

    def address(self, node: ast.Subscript) -> Value:
        return self.element(node, node.slice)

    def loaded(self, kind: str, address: str) -> Value:
        found = self.new(f"load {kind}, ptr {address}")
        return ("i64", self.new(f"sext i32 {found} to i64")) if kind == "i32" else (kind, found)

    def of_Subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.slice, ast.Slice):
            assert node.slice.lower is not None
            assert node.slice.upper is None
            kind, address = self.element(node, node.slice.lower)
            return f"array {kind}", address
        return self.loaded(*self.address(node))

    def of_BinOp(self, node: ast.BinOp) -> Value:
        return self.operate(node, node.op, self.value(node.left), self.value(node.right))

    def operate(self, node: ast.AST, op: ast.operator, a: Value, b: Value) -> Value:
        if a[0] == VECTOR or b[0] == VECTOR:
            return VECTOR, self.new(f"{_FLOAT_OPS[type(op)]} {VECTOR} {a[1]}, {b[1]}")
        if COMPLEX in (a[0], b[0]):
            x, y = self.cast(a, COMPLEX, node), self.cast(b, COMPLEX, node)
            return COMPLEX, sequential_complex.operate(self.new, _FLOAT_OPS[type(op)], x, y)
        if "double" in (a[0], b[0]) or isinstance(op, ast.Div):
            x, y = self.cast(a, "double", node), self.cast(b, "double", node)
            return "double", self.new(f"{_FLOAT_OPS[type(op)]} contract double {x}, {y}")
        x, y = self.cast(a, "i64", node), self.cast(b, "i64", node)
        return "i64", self.new(f"{_INT_OPS[type(op)]} i64 {x}, {y}")

    def of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number: Any = node.operand.value
            return self.of_Constant(ast.Constant(-number))
        type_, x = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return "i1", self.new(f"xor i1 {x}, 1")
        if isinstance(node.op, ast.USub) and type_ == COMPLEX:
            return type_, sequential_complex.negated(self.new, x)
        if isinstance(node.op, ast.USub):
            minus = f"sub i64 0, {x}" if type_ == "i64" else f"fneg {type_} {x}"
            return type_, self.new(minus)
        raise self.fail(node, "is no operation")

    def of_Compare(self, node: ast.Compare) -> Value:
        (op,), (right,) = node.ops, node.comparators
        a, b = self.value(node.left), self.value(right)
        signed, ordered = _COMPARISONS[type(op)]
        if COMPLEX in (a[0], b[0]) and ordered in ("oeq", "une"):
            x, y = self.cast(a, COMPLEX, node), self.cast(b, COMPLEX, node)
            return "i1", sequential_complex.equal(self.new, x, y, ordered == "oeq")
        if "double" in (a[0], b[0]):
            x, y = self.cast(a, "double", node), self.cast(b, "double", node)
            return "i1", self.new(f"fcmp {ordered} double {x}, {y}")
        x, y = self.cast(a, "i64", node), self.cast(b, "i64", node)
        return "i1", self.new(f"icmp {signed} i64 {x}, {y}")

    def of_BoolOp(self, node: ast.BoolOp) -> Value:
        self.count += 1
        slot = f"bool.{self.count}"
        self.slots[slot] = "i1"
        yes, no, end = self.label(), self.label(), self.label()
        self.condition(node, yes, no)
        for label, bit in ((yes, 1), (no, 0)):
            self.begin_block(label)
            self.emit(f"store i1 {bit}, ptr %{slot}")
            self.go(end)
        self.begin_block(end)
        return "i1", self.new(f"load i1, ptr %{slot}")

    def condition(self, node: ast.expr, yes: str, no: str) -> None:
        """Branches; operands of `and` and `or` are evaluated as far as needed."""
        if isinstance(node, ast.BoolOp):
            both = isinstance(node.op, ast.And)
            for part in node.values[:-1]:
                after = self.label()
                self.condition(part, *((after, no) if both else (yes, after)))
                self.begin_block(after)
            self.condition(node.values[-1], yes, no)
            return
        type_, x = self.value(node)
        if type_ == "i64":
            x = self.new(f"icmp ne i64 {x}, 0")
        self.branch(x, yes, no)

    def of_IfExp(self, node: ast.IfExp) -> Value:
        _, test = self.value(node.test)
        a, b = self.value(node.body), self.value(node.orelse)
        type_ = next((t for t in (COMPLEX, "double") if t in (a[0], b[0])), a[0])
        x, y = self.cast(a, type_, node), self.cast(b, type_, node)
        return type_, self.new(f"select i1 {test}, {type_} {x}, {type_} {y}")

    def of_Call(self, node: ast.Call) -> Value:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        arguments = [self.value(a) for a in node.args]
        if name in ("min", "max"):
            (a, b) = arguments
            type_ = "double" if "double" in (a[0], b[0]) else "i64"
            x, y = self.cast(a, type_, node), self.cast(b, type_, node)
            test = {"i64": "icmp slt i64", "double": "fcmp olt double"}[type_]
            x, y = (x, y) if name == "min" else (y, x)
            less = self.new(f"{test} {x}, {y}")
            first, second = (x, y) if name == "min" else (y, x)
            return type_, self.new(f"select i1 {less}, {type_} {first}, {type_} {second}")
        if name == "abs" and arguments[0][0] == "i64":
            x = arguments[0][1]
            minus = self.new(f"sub i64 0, {x}")
            less = self.new(f"icmp slt i64 {x}, 0")
            return "i64", self.new(f"select i1 {less}, i64 {minus}, i64 {x}")
        if name == "abs" and arguments[0][0] == COMPLEX:
            return "double", sequential_complex.modulus(self.new, arguments[0][1])
        if name in ("real", "conj"):
            type_, x = arguments[0]
            if type_ != COMPLEX:
                return type_, x
            if name == "conj":
                return COMPLEX, sequential_complex.conjugate(self.new, x)
            return "double", sequential_complex.parts(self.new, x)[0]
        if name in ("abs", "sqrt"):
            x = self.cast(arguments[0], "double", node)
            symbol = "fabs" if name == "abs" else "sqrt"
            return "double", self.new(f"call double @llvm.{symbol}.f64(double {x})")
        if name in ("int", "float"):
            return SCALARS[name], self.cast(arguments[0], SCALARS[name], node, explicit=True)
        if name == "vector_splat":
            x = self.cast(arguments[0], "double", node)
            one = self.new(f"insertelement {VECTOR} poison, double {x}, i64 0")
            mask = f"<{LANES} x i32> zeroinitializer"
            return VECTOR, self.new(f"shufflevector {VECTOR} {one}, {VECTOR} poison, {mask}")
        if name == "vector_fma":
            listed = ", ".join(f"{VECTOR} {x}" for _, x in arguments)
            return VECTOR, self.new(f"call {VECTOR} @llvm.fma.v{LANES}f64({listed})")
        if name in ("vector_load", "vector_store"):
            base, at = arguments[0][1], self.cast(arguments[1], "i64", node)
            address = self.new(f"getelementptr double, ptr {base}, i64 {at}")
            if name == "vector_load":
                return VECTOR, self.new(f"load {VECTOR}, ptr {address}, align 8")
            self.emit(f"store {VECTOR} {arguments[2][1]}, ptr {address}, align 8")
            return "void", ""
        if name not in self.known:
            raise self.fail(node, "is no sequential function")
        parameters, result = self.known[name]
        listed = ", ".join(
            f"{passed(type_of(kind))} {self.cast(a, type_of(kind), node)}"
            for a, (_, kind) in zip(arguments, parameters, strict=True)
        )
        type_ = type_of(result)
        if type_ == "void":
            self.emit(f"call void @{name}({listed})")
            return "void", ""
        return type_, self.new(f"call {type_} @{name}({listed})")

    def cast(self, value: Value, wanted: str, node: ast.AST, explicit: bool = False) -> str:
        type_, x = value
        if type_ == wanted:
            return x
        if type_ == "i64" and wanted == "double":
            return self.new(f"sitofp i64 {x} to double")
        if type_ in ("i64", "double") and wanted == COMPLEX:
            part = self.cast(value, "double", node)
            return sequential_complex.whole(self.new, part, "0.0")
        if type_ == "i1" and wanted == "i64":
            return self.new(f"zext i1 {x} to i64")
        if type_ == "double" and wanted == "i64" and explicit:
            return self.new(f"fptosi double {x} to i64")
        raise self.fail(node, f"{type_} where {wanted} is wanted")


def _hex(x: Any) -> str:
    """A double as LLVM reads it exactly."""
    return f"0x{np.float64(x).view(np.uint64):016X}"
