"""Programs for the fuzzer: random instructions over random values, made from a seed alone."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
from fuzz_graphs import REFERENCE, Op, Program, build_op

from numus import dtypes as dt
from numus.graph import Node

LARGEST = 1 << 17  # elements of a value

NARROW = {"float16": 2048, "bfloat16": 256, "float8_e4m3fn": 16, "float8_e5m2": 8}
FLOATS = [*["float32"] * 5, *["float64"] * 2, *["float16", "bfloat16"] * 2, *NARROW]
OTHERS = ["int32", "int64", "uint8", "int8", "uint32", "bool", "complex64"]
DTYPES = [*FLOATS, *OTHERS, *OTHERS]
# integers up to here, and their sums, are exact
EXACT = {"float32": 1 << 24, "float64": 1 << 50, "complex64": 1 << 23, "complex128": 1 << 50}


class _SizeError(Exception):
    """An instruction would need too large a value."""


class Maker:
    """Makes one program."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.ops: list[Op] = []
        self.nodes: list[Node] = []  # on the reference device: they know shapes and dtypes
        self.bound: list[float] = []  # the largest absolute value
        # odd extents, so that equal ones are not always the same axis; 0 and 1 now and then
        self.extents = [self.r.choice((1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 40)) for _ in range(4)]
        if self.r.random() < 0.06:
            self.extents.append(0)
        self.large = self.r.random() < 0.12
        self.mood = self.r.choice(((0, 0), (60, 0), (0, 90)))  # mixed, row programs, views

    def program(self) -> Program:
        r = self.r
        for _ in range(r.randint(1, 3)):
            self.leaf()
        for _ in range(r.randint(3, 9 if any(self.mood) else 35)):
            self.grow()
        count = len(self.ops)
        last = [i for i in range(count) if i not in {k for op in self.ops for k in op.inputs}]
        roots = last[:6] + r.sample(range(count), min(count, r.randint(0, 3)))
        held = r.sample(range(count), min(count, r.randint(0, 3)))
        r.shuffle(roots)
        ops = [replace(op, force=r.random() < 0.04, tracked=r.random() < 0.05) for op in self.ops]
        return Program(ops, list(dict.fromkeys(roots)), held, r.random() < 0.5)

    # -- pieces --

    def add(self, name: str, *inputs: int, p: tuple[Any, ...] = (), **more: Any) -> int | None:
        """Append an instruction unless its value would be too large."""
        exact = more.get("exact", True) and all(self.ops[i].exact for i in inputs)
        op = Op(name, inputs, p, exact)
        node = build_op(op, [self.nodes[i] for i in inputs], REFERENCE)
        if math.prod(node.shape) > LARGEST or node.ndim > 7:
            return None
        self.ops.append(op)
        self.nodes.append(node)
        bound = more.get("bound", max((self.bound[i] for i in inputs), default=9))
        kind = node.dtype
        if kind.is_integer or kind is dt.bool_:
            bound = 1 if kind is dt.bool_ else 2.0**kind.bits
        self.bound.append(bound)
        return len(self.ops) - 1

    def limit(self, i: int) -> float:
        """Up to where integers are exact in the dtype that i is computed in."""
        kind = self.nodes[i].dtype
        return EXACT.get(kind.name, NARROW.get(kind.name, 2.0**70))

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        r = self.r
        rank = r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        shape = [
            r.choice([*self.extents, 1] if r.random() < 0.4 else self.extents) for _ in range(rank)
        ]
        if self.large and rank and 0 not in shape:
            i = r.randrange(rank)
            room = (LARGEST // 2) // max(1, math.prod(shape[:i] + shape[i + 1 :]))
            shape[i] = max(1, min(room, r.choice((64, 100, 1000, 3001, 40000))))
        while math.prod(shape) > LARGEST // 2:
            shape.pop()
        return tuple(shape)

    def leaf(self, shape: Any = None, dtype: str | None = None, small: int = 5) -> int:
        r = self.r
        dtype = dtype or r.choice(DTYPES)
        shape = self.shape() if shape is None else shape
        i = self.add(
            "leaf", p=(shape, dtype, r.randrange(1 << 20), -small, small), bound=2.0 * small
        )
        if i is None:
            raise _SizeError
        return i

    def any(self, *kinds: str, exact: bool = False) -> int:
        """A value to go on from, a late one rather than an early one."""
        fits = [
            i
            for i, n in enumerate(self.nodes)
            if (not kinds or n.dtype.kind in kinds) and (self.ops[i].exact or not exact)
        ]
        if not fits:
            return self.leaf(
                dtype="bool" if kinds == ("bool",) else "int32" if "int" in kinds else "float32"
            )
        computed = [i for i in fits if self.ops[i].inputs]
        if computed and self.r.random() < 0.8:
            fits = computed
        return self.r.choice(fits[-6:] if self.r.random() < 0.7 else fits)

    def tame(self, i: int, below: float) -> int:
        """i, wrapped into a small range if it may be larger than this."""
        if self.bound[i] < below or self.nodes[i].dtype.is_complex:
            return i
        kind = self.nodes[i].dtype
        if kind is dt.bool_:
            return i
        if not self.ops[i].exact:
            out = self.add("tanh", i, bound=1.0)
        else:
            costly = kind.is_integer or self.r.random() < 0.1
            out = self.add("wrapped" if costly else "folded", i, p=(7 if kind.is_integer else 8.0,))
            if out is not None:
                self.bound[out] = 8.0
        return i if out is None else out

    def like(self, i: int) -> int:
        """Another value of this dtype that broadcasts with i."""
        x = self.nodes[i]
        fits = [
            j
            for j, n in enumerate(self.nodes)
            if n.dtype is x.dtype
            and n.ndim <= x.ndim
            and all(a in (1, b) for a, b in zip(n.shape[::-1], x.shape[::-1], strict=False))
        ]
        if fits and self.r.random() < 0.8:
            return self.r.choice(fits)
        shape = tuple(
            1 if self.r.random() < 0.3 else n for n in x.shape[self.r.randint(0, x.ndim) :]
        )
        return self.leaf(shape, x.dtype.name)

    def axes(self, i: int) -> tuple[int, ...]:
        rank = self.nodes[i].ndim
        count = self.r.choice((1, 1, 1, 2, rank))
        return tuple(sorted(self.r.sample(range(rank), min(rank, max(1, count)))))

    # -- instructions --

    def grow(self) -> None:
        choices = [
            (self.unary, 4), (self.binary, 7), (self.view, 8), (self.reduction, 5), (self.rows, 3),
            (self.product, 2), (self.indexed, 2), (self.ordered, 2), (self.joined, 1),
            (self.other, 2), (self.stages, 2 + self.mood[0]), (self.turned, 2 + self.mood[1]),
        ]  # fmt: skip
        makers, weights = zip(*choices, strict=True)
        with contextlib.suppress(_SizeError):
            self.r.choices(makers, weights)[0]()

    def unary(self) -> None:
        r = self.r
        i = self.any()
        kind = self.nodes[i].dtype
        name = r.choice(
            ("cast", "step", "neg", "abs_", "sign", "scaled", "shifted", "cast", "inexact")
        )
        if name == "cast":
            target = dt.as_dtype(r.choice(DTYPES))
            if target is dt.bool_ or target.is_integer:
                i = self.any(exact=True)
            elif kind.is_complex and not target.is_complex:
                i = self.add("real", i) or i
            i = self.tame(i, 100) if target.is_low_precision else i
            self.add("cast", i, p=(target.name,))
        elif name == "step" and kind.kind == "float" and self.ops[i].exact:
            self.add("step", i, p=(r.choice(("tanh", "exp", "expm1", "exp2")),), bound=8.0)
        elif name == "inexact" and kind.kind == "float":
            i = self.tame(i, 60)
            self.add(r.choice(("tanh", "sin", "cos", "sigmoid", "erf")), i, exact=False, bound=1.0)
        elif name in ("scaled", "shifted") and kind.name != "bool":
            number = r.choice((0, 1, 2, 3, 5))
            i = self.tame(i, self.limit(i) / 16)
            number = number if kind.is_integer else float(number)
            self.add(name, i, p=(number,), bound=self.bound[i] * 5 + 5)
        elif kind is dt.bool_:
            self.add("invert", i)
        elif name == "neg" or kind.is_complex:
            self.add("neg", i)
        elif self.ops[i].exact or name == "abs_":
            self.add("abs_" if name == "abs_" else "sign", i)

    def binary(self) -> None:
        r = self.r
        i = self.any()
        j = self.like(i)
        kind = self.nodes[i].dtype
        if r.random() < 0.5:
            i, j = j, i
        if kind.kind == "float" or kind.is_complex:
            i, j = self.tame(i, self.limit(i) ** 0.5 / 2), self.tame(j, self.limit(j) ** 0.5 / 2)
        exact = self.ops[i].exact and self.ops[j].exact
        names = ["add", "mul"] if kind is dt.bool_ else ["add", "sub", "mul"]
        if not kind.is_complex:
            names += ["maximum", "minimum", "where"]
        if exact:
            names += ["eq", "ne"] + (["lt", "le"] if not kind.is_complex else [])
        if kind.is_integer or kind is dt.bool_:
            names += ["and_", "or_", "xor"]
        if kind.is_integer:
            names += ["mod", "floor_divide", "shift_left", "shift_right"]
        name = r.choice(names)
        grown = self.bound[i] * self.bound[j] + self.bound[i] + self.bound[j]
        if kind.is_complex and grown * 2 > self.limit(i):
            return
        if name == "where":
            c = self.any("bool")
            shapes = [self.nodes[k].shape for k in (c, i, j)]
            try:
                np.broadcast_shapes(*shapes)
            except ValueError:
                return
            self.add("where", c, i, j)
        else:
            self.add(name, i, j, bound=2 * grown)

    def turned(self) -> None:
        """A chain of views, of something that is not in memory yet."""
        i: int | None = self.any()
        for _ in range(self.r.randint(2, 6)):
            if self.r.random() < 0.5 and self.nodes[i].dtype is not dt.bool_:
                i = self.add("neg", i)
            i = self.view(i)
            if i is None:
                break
        else:
            self.add("copy", i)

    def stages(self) -> None:
        """Many values over the same rows: reductions, what uses them, and what is turned around."""
        r = self.r
        i = self.tame(self.any("float", "int", exact=True), 8)
        x = self.nodes[i]
        if not x.ndim or 0 in x.shape or x.dtype.is_low_precision:
            return
        axes = self.axes(i)
        full, rows = [i], []
        if x.dtype.kind == "float" and r.random() < 0.5:
            full += [k for k in (self.add("step", i, p=("tanh",), bound=4.0),) if k is not None]
        for _ in range(r.randint(3, 10)):
            f = r.choice(full[-3:])
            made: int | None = None
            what = r.choice(("reduce", "reduce", "mix", "mix", "step", "turn", "row"))
            if what == "reduce":
                name = r.choice(("reduce_sum", "reduce_max", "reduce_min"))
                made = self.add(name, f, p=(axes,), bound=1e4)
                kept = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
                made = made and self.add("reshape", self.tame(made, 8), p=(kept,))
            elif what == "turn" and r.random() < 0.5:
                made = self.add("flip", f, p=((r.randrange(x.ndim),),))
            elif what == "turn":
                k = r.randrange(x.ndim)
                low = tuple(int(a == k) for a in range(x.ndim))
                none = (0,) * x.ndim
                made = self.add("pad", f, p=(low, none, none))
                made = made and self.add("slice_", made, p=(none, (1,) * x.ndim, x.shape))
            elif what == "step" and x.dtype.kind == "float":
                made = self.add("step", f, p=(r.choice(("tanh", "exp", "expm1")),), bound=8.0)
            elif what == "row" and len(rows) > 1:
                made = self.add(
                    r.choice(("sub", "maximum")), r.choice(rows), r.choice(rows), bound=16.0
                )
            else:
                names = ("add", "sub", "mul", "maximum", "minimum")
                made = self.add(r.choice(names), f, r.choice((full + rows)[-4:]), bound=64.0)
            if made is None:
                continue
            made = self.tame(made, 8)
            (full if self.nodes[made].shape == x.shape else rows).append(made)

    def view(self, i: int | None = None) -> int | None:
        """A view of a value, of any one if none is named."""
        r = self.r
        i = self.any() if i is None else i
        x = self.nodes[i]
        rank = x.ndim
        names = ("permute", "broadcast", "slice_", "flip", "pad", "shear", "sliding_windows")
        name = "reshape" if r.random() < 0.4 else r.choice(names)
        if name == "reshape":
            return self.add(name, i, p=(self.reshaped(x.shape),))
        elif name == "permute":
            return self.add(name, i, p=(tuple(r.sample(range(rank), rank)),))
        elif name == "broadcast":
            wide = [r.choice(self.extents) if n == 1 and r.random() < 0.6 else n for n in x.shape]
            lead = [r.choice(self.extents)] if r.random() < 0.4 else []
            return self.add(name, i, p=((*lead, *wide),))
        elif not rank:
            return None
        elif name == "slice_":
            starts, steps, shape = [], [], []
            for n in x.shape:
                step = r.choice((1, 1, 1, 2, 3, -1, -2)) if n else 1
                start = r.randrange(n) if n else 0
                if r.random() < 0.5:  # where an axis was joined
                    start = r.choice([k for k in self.extents if k < n] or [start])
                most = ((n - start - 1) // step if step > 0 else start // -step) + 1 if n else 0
                count = most if r.random() < 0.5 else r.randint(min(1, most), most)
                starts.append(start), steps.append(step), shape.append(count)
            return self.add(name, i, p=(tuple(starts), tuple(steps), tuple(shape)))
        elif name == "flip":
            return self.add(name, i, p=(tuple(r.sample(range(rank), r.randint(1, rank))),))
        elif name == "pad":
            low, high, inner = (
                tuple(r.choice((0, 0, 0, 1, 2, 3)) for _ in range(rank)) for _ in range(3)
            )
            return self.add(name, i, p=(low, high, inner if r.random() < 0.3 else (0,) * rank))
        elif name == "shear" and rank > 1:
            axis, along = r.sample(range(rank), 2)
            numbers = (r.choice((1, 2, -1)), r.choice((1, -1, 2, 0)), r.randint(-3, 3))
            extent = r.choice((1, 3, x.shape[axis], x.shape[axis] + 2))
            return self.add(name, i, p=(axis, along, extent, *numbers, r.choice((1, 1, 2, 3))))
        elif name == "sliding_windows":
            axis = r.randrange(rank)
            return self.add(name, i, p=(axis, r.randint(1, 3), r.randint(1, 2), r.randint(1, 2)))
        return None

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Axes joined, split, and ones put in; or a shape that something else has."""
        r = self.r
        known = [n.shape for n in self.nodes if math.prod(n.shape) == math.prod(shape)]
        if r.random() < 0.4:
            return r.choice(known)
        if 0 in shape:
            return r.choice((shape, (0,), (0, 3), shape[::-1]))
        out = list(shape)
        for _ in range(r.choice((1, 1, 2, 3))):
            if len(out) > 1 and r.random() < 0.5:
                k = r.randrange(len(out) - 1)
                out[k : k + 2] = [out[k] * out[k + 1]]
            elif out:
                k = r.randrange(len(out))
                known = [n for n in self.extents if n > 1] * 3  # as they may have been before
                divisors = [d for d in (2, 3, 4, 5, 7, 8, *known) if out[k] % d == 0]
                d = r.choice(divisors) if divisors else 1
                out[k : k + 1] = [d, out[k] // d] if r.random() < 0.5 else [out[k] // d, d]
        return tuple(out[:6]) if math.prod(out[:6]) == math.prod(shape) else shape

    def reduction(self) -> None:
        r = self.r
        i = self.any()
        x = self.nodes[i]
        if not x.ndim:
            return
        axes = self.axes(i)
        count = math.prod(x.shape[a] for a in axes)
        names = ["reduce_sum"] * 3 + ["reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"]
        name = r.choice([*names, "reduce_sqdev"])
        kind = x.dtype
        if kind.is_complex or (kind is dt.bool_ and name in ("reduce_sum", "reduce_prod")):
            name = "reduce_sum" if kind.is_complex else "reduce_max"
        if name == "reduce_sum":
            bound = 1 << 24 if kind.is_low_precision else self.limit(i)
            i = self.tame(i, bound / max(1, count))
            if kind.is_inexact and self.bound[i] * count > bound:
                return
            out = self.add(name, i, p=(axes,), bound=self.bound[i] * max(1, count))
            if out is not None and kind.is_low_precision:
                self.tame(out, 64)
        elif name == "reduce_prod":
            if not self.ops[i].exact:
                return
            i = self.add("sign", i, bound=1.0) or i
            if self.bound[i] <= 1 or kind.is_integer:
                self.add(name, i, p=(axes,))
        elif name == "reduce_sqdev":
            if kind.kind == "float" and count:
                self.add(name, self.tame(i, 30), p=(axes,), exact=False, bound=1000.0 * count)
        elif not count:
            return
        elif name.startswith("arg"):
            if self.ops[i].exact:
                self.add(name, i, p=(axes[0],))
        else:
            self.add(name, i, p=(axes,))

    def rows(self) -> None:
        """Several stages over the same rows."""
        r = self.r
        i = self.any("float")
        x = self.nodes[i]
        if not x.ndim or 0 in x.shape:
            return
        axes = self.axes(i)
        name = r.choice(("softmax", "norm", "centred", "centred", "centred"))
        i = self.tame(i, 20)
        count = math.prod(x.shape[a] for a in axes)
        if name == "centred":
            how = r.choice(("max", "min", "sum"))
            if self.bound[i] * count > self.limit(i):
                how = "max"
            self.add(name, i, p=(how, axes), bound=self.bound[i] * (count + 1))
        else:
            self.add(name, i, p=(axes,), exact=False, bound=20.0)

    def product(self) -> None:
        r = self.r
        i = self.any()
        x = self.nodes[i]
        if x.dtype is dt.bool_ or math.prod(x.shape) > 20000:
            return
        i = self.tame(i, 8)
        flat = (1,) * max(0, 3 - x.ndim) + x.shape
        a = self.add("reshape", i, p=((math.prod(flat[:-2]), *flat[-2:]),))
        if a is None:
            return
        if r.random() < 0.3:
            a = self.add("permute", a, p=((0, 2, 1),)) or a
        batch, m, k = self.nodes[a].shape
        if r.random() < 0.25:
            b = self.add("permute", a, p=((0, 2, 1),))
            n = m
        else:
            n = r.choice([*self.extents, 1, 12, 70])
            b = self.leaf((batch, k, n), self.nodes[a].dtype.name, 2)
        bound = self.bound[a] * self.bound[b] * max(1, k) * 2
        kind = self.nodes[a].dtype
        if kind.is_inexact and bound > (1 << 24 if kind.is_low_precision else self.limit(a)):
            return
        if batch * m * n > LARGEST or batch * m * n * k > 1 << 22:
            return
        out = self.add("contract", a, b, p=(kind.name,), bound=bound)
        if out is not None and kind.is_low_precision:
            self.tame(out, 64)

    def indexed(self) -> None:
        r = self.r
        i = self.any()
        x = self.nodes[i]
        if not x.ndim or 0 in x.shape:
            return
        axes = tuple(r.sample(range(x.ndim), r.choice((1, 1, min(2, x.ndim)))))
        at = self.any("int", "uint", exact=True)
        if self.nodes[at].ndim > 2 or math.prod(self.nodes[at].shape) > 300 or r.random() < 0.3:
            at = self.leaf(self.shape(1) if not self.large else (20,), "int64", 40)
        places = [at] * len(axes)
        if r.random() < 0.5:
            self.add("gather", i, *places, p=(axes,))
            return
        rest = tuple(n for k, n in enumerate(x.shape) if k not in axes)
        mode = r.choice(("set", "add", "max", "min"))
        if x.dtype.is_complex or (x.dtype is dt.bool_ and mode == "add"):
            mode = "set"
        i = self.tame(i, 10)
        count = math.prod(self.nodes[at].shape)
        if x.dtype.is_inexact and (count + 1) * 20 > self.limit(i):
            mode = "set"
        updates = self.leaf((*self.nodes[at].shape, *rest), x.dtype.name)
        self.add("scatter", i, updates, *places, p=(axes, mode), bound=10.0 * (count + 2))

    def ordered(self) -> None:
        r = self.r
        i = self.any(exact=True)
        x = self.nodes[i]
        if not x.ndim or x.dtype.is_complex:
            return
        axis = r.randrange(x.ndim)
        name = r.choice(("sort", "argsort", "scan", "scan"))
        if name != "scan":
            self.add(name, i, p=(axis, r.random() < 0.4))
            return
        op = r.choice(("sum", "max", "min"))
        if x.dtype is dt.bool_ and op == "sum":
            op = "max"
        bound = self.bound[i] * max(1, x.shape[axis])
        if op == "sum" and x.dtype.kind == "float" and bound > self.limit(i):
            return
        self.add("scan", i, p=(op, axis, r.random() < 0.4), bound=bound)

    def joined(self) -> None:
        i = self.any()
        x = self.nodes[i]
        if not x.ndim:
            return
        axis = self.r.randrange(x.ndim)
        fits = [
            j
            for j, n in enumerate(self.nodes)
            if n.dtype is x.dtype
            and n.ndim == x.ndim
            and all(
                a == b for k, (a, b) in enumerate(zip(n.shape, x.shape, strict=True)) if k != axis
            )
        ]
        self.add("concat", *self.r.choices(fits, k=self.r.randint(2, 3)), i, p=(axis,))

    def other(self) -> None:
        r = self.r
        name = r.choice(("copy", "barrier", "iota", "full", "bits", "bitcast"))
        if name in ("copy", "barrier"):
            self.add(name, self.any())
        elif name == "iota":
            self.add(name, p=(r.choice(self.extents), r.choice(("int32", "int64", "uint8"))))
        elif name == "full":
            self.add(name, p=(self.shape(), r.choice((0, 1, -1, 3)), r.choice(FLOATS)), bound=3.0)
        elif name == "bits":
            self.add(name, p=(r.choice(self.extents), r.randrange(2)))
        else:
            i = self.any("float", exact=True)
            bits = self.nodes[i].dtype.bits
            self.add("bitcast", i, p=(f"int{bits}",))


def make(seed: int) -> Program:
    """The program of a seed."""
    return Maker(seed).program()
