"""Graphs as lists of instructions, run by the default device and by the reference, compared."""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.compiler.plan import clear_plans
from numus.evaluation.evaluate import evaluate, from_host, host_array
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives import reduce, views
from numus.primitives.broadcast import broadcast, full, reduce_sum, sliding_windows
from numus.primitives.contract import contract
from numus.primitives.indexing import gather, scatter
from numus.primitives.random.bits import threefry
from numus.primitives.scan import scan
from numus.primitives.sort import argsort, sort
from numus.primitives.source import constant, iota
from numus.primitives.structure import barrier, concat, copy
from numus.runtime.devices import Device, device

REFERENCE = device("reference")


@dataclass(frozen=True)
class Op:
    """One instruction: what to build from which earlier values."""

    name: str
    inputs: tuple[int, ...] = ()
    params: tuple[Any, ...] = ()
    exact: bool = True
    force: bool = False  # evaluate it as soon as it is built
    tracked: bool = False  # a gradient may ask for it


@dataclass(frozen=True)
class Program:
    """Instructions, which of their values are asked for at the end, and which are only held."""

    ops: list[Op]
    roots: list[int]
    held: list[int] = field(default_factory=list)
    small_blocks: bool = False

    def __str__(self) -> str:
        lines = [f"  {i}: {op.name}{op.inputs} {op.params}" for i, op in enumerate(self.ops)]
        flags = [
            f"{name}={[i for i, op in enumerate(self.ops) if getattr(op, name)]}"
            for name in ("force", "tracked", "exact")
        ]
        rest = f"roots={self.roots} held={self.held} small_blocks={self.small_blocks}"
        return "\n".join([*lines, f"  {rest} {' '.join(flags)}"])


# -- building -------------------------------------------------------------------------------------


def _leaf(place: Device, shape: Any, dtype: str, seed: int, low: int, high: int) -> Node:
    kind = dt.as_dtype(dtype)
    rng = np.random.default_rng(seed)
    x = rng.integers(low, high + 1, shape)
    if kind.is_complex:
        x = x + 1j * rng.integers(low, high + 1, shape)
    elif kind.kind == "uint" or kind is dt.bool_:
        x = abs(x)
    x = np.asarray(x).astype(kind.np)
    if kind.kind == "float" and seed % 16 == 0 and x.size > 3:
        x.reshape(-1)[rng.integers(0, x.size, 3)] = np.array([np.nan, np.inf, -0.0]).astype(kind.np)
    return from_host(x, kind, place)


def _step(x: Node, name: str) -> Node:
    """A costly function, rounded so that it takes integers to integers."""
    if name == "tanh":
        return ew.rint(ew.mul(ew.tanh(x), constant(4.0, x.dtype)))
    small = ew.neg(ew.minimum(ew.abs_(x), constant(3.0, x.dtype)))
    return ew.rint(ew.mul(getattr(ew, name)(small), constant(8.0, x.dtype)))


def _keep(x: Node, r: Node, axes: Any) -> Node:
    return views.reshape(r, tuple(1 if i in axes else n for i, n in enumerate(x.shape)))


def _softmax(x: Node, axes: Any) -> Node:
    e = ew.exp(ew.sub(x, _keep(x, reduce.reduce_max(x, axes), axes)))
    return ew.div(e, _keep(x, reduce_sum(e, axes), axes))


def _norm(x: Node, axes: Any) -> Node:
    count = constant(float(max(1, math.prod(x.shape[a] for a in axes))), x.dtype)
    mean = ew.div(_keep(x, reduce_sum(x, axes), axes), count)
    spread = ew.div(_keep(x, reduce.reduce_sqdev(x, axes), axes), count)
    return ew.mul(ew.sub(x, mean), ew.rsqrt(ew.add(spread, constant(0.5, x.dtype))))


def _centred(x: Node, how: str, axes: Any) -> Node:
    """Two stages over the same rows, exactly."""
    r = getattr(reduce, "reduce_" + how)(x, axes)
    return ew.sub(x, _keep(x, r, axes))


def _bits(place: Device, count: int, which: int) -> Node:
    zero = constant(0, dt.uint32)
    key = constant(12345, dt.uint32)
    return threefry(key, zero, zero, iota(count, dt.uint32, place))[which]


def _index(x: Node, extent: int) -> Node:
    """Indices, a few of them outside the axis, from any real value."""
    whole = ew.cast(x, dt.int64)
    wrapped = ew.mod(whole, constant(extent + 2, dt.int64))
    return ew.sub(wrapped, constant(1, dt.int64))


def build_op(op: Op, given: list[Node], place: Device) -> Node:
    """The node of an instruction."""
    name, p = op.name, op.params
    x = given[0] if given else None
    match name:
        case "leaf":
            return _leaf(place, *p)
        case "array":
            return from_host(p[0], dt.as_dtype(p[0].dtype), place)
        case "iota":
            return iota(p[0], dt.as_dtype(p[1]), place)
        case "full":
            return copy(full(p[0], p[1], dt.as_dtype(p[2]))) if not p[0] else _full(place, *p)
        case "bits":
            return _bits(place, *p)
        case "cast":
            return ew.cast(x, dt.as_dtype(p[0]))
        case "bitcast":  # the sign of NaN or of a zero is nobody's business
            zero = constant(0.0, x.dtype)
            return ew.bitcast(
                ew.where(ew.eq(x, zero), zero, ew.where(ew.eq(x, x), x, zero)), dt.as_dtype(p[0])
            )
        case "scaled":
            return ew.mul(x, constant(p[0], x.dtype))
        case "shifted":
            return ew.add(x, constant(p[0], x.dtype))
        case "wrapped":
            return ew.mod(x, constant(p[0], x.dtype))
        case "folded":  # the same for floats, at little cost
            size = constant(p[0], x.dtype)
            times = ew.floor(ew.mul(x, constant(1 / p[0], x.dtype)))
            return ew.sub(x, ew.mul(times, size))
        case "step":
            return _step(x, *p)
        case "softmax" | "norm":
            return {"softmax": _softmax, "norm": _norm}[name](x, *p)
        case "centred":
            return _centred(x, *p)
        case "reshape" | "permute" | "slice_" | "flip" | "pad" | "shear":
            return getattr(views, name)(x, *p)
        case "broadcast" | "sliding_windows":
            return {"broadcast": broadcast, "sliding_windows": sliding_windows}[name](x, *p)
        case "scan":
            return scan(p[0], x, p[1], p[2])
        case "sort" | "argsort":
            return {"sort": sort, "argsort": argsort}[name](x, *p)
        case "contract":
            return contract(given[0], given[1], dt.as_dtype(p[0]))
        case "gather":
            at = tuple(_index(i, x.shape[a]) for i, a in zip(given[1:], p[0], strict=True))
            return gather(x, at, p[0])
        case "scatter":
            at = tuple(_index(i, x.shape[a]) for i, a in zip(given[2:], p[0], strict=True))
            return scatter(x, at, given[1], p[0], p[1])
        case "concat":
            return concat(tuple(given), p[0])
        case "copy":
            return copy(x)
        case "barrier":
            return barrier(x, "fuzz")
    if hasattr(reduce, name):
        return getattr(reduce, name)(x, *p)
    return getattr(ew, name)(*given)


def _full(place: Device, shape: Any, number: int, dtype: str) -> Node:
    node = full(shape, number, dt.as_dtype(dtype))
    node.device = place
    return node


def run(program: Program, place: Device) -> dict[int, np.ndarray]:
    """The values of the roots and of what is held."""
    last_use = {i: n for n, op in enumerate(program.ops) for i in op.inputs}
    wanted = {*program.roots, *program.held}
    nodes: dict[int, Node] = {}
    for n, op in enumerate(program.ops):
        node = build_op(op, [nodes[i] for i in op.inputs], place)
        if op.tracked and node.dtype.is_inexact:
            node.tracked = True
        if op.force:
            evaluate((node,))
        nodes[n] = node
        for i in list(nodes):  # only what is asked for is held by anyone but the graph
            if i not in wanted and last_use.get(i, -1) <= n:
                del nodes[i]
        del node
    evaluate([nodes[i] for i in program.roots])
    return {i: np.array(host_array(nodes[i])) for i in sorted(wanted)}


@contextlib.contextmanager
def small_blocks(wanted: bool) -> Iterator[None]:
    """Schedules for large data, used on little."""
    numbers = {
        "SMALL": 48, "BLOCK": 64, "SPLIT": 32, "LONG": 24, "SHORT_ROW": 40, "ENOUGH_ROWS": 6,
        "STREAM_WIDTH": 16, "MERGE_ROWS": 8, "_COLUMNS": 8,
    }  # fmt: skip
    if not wanted:
        yield
        return
    saved = []
    schedules = [k for k in sys.modules if k.startswith("numus.compiler") and ".render." not in k]
    for module in [sys.modules[k] for k in schedules]:
        for name, number in numbers.items():
            if hasattr(module, name):
                saved.append((module, name, getattr(module, name)))
                setattr(module, name, number)
    clear_plans()
    try:
        yield
    finally:
        for module, name, number in saved:
            setattr(module, name, number)
        clear_plans()


def disagreement(program: Program) -> str | None:
    """How the compiled program differs from the reference, or fails; None where it does not."""
    want = run(program, REFERENCE)
    try:
        with small_blocks(program.small_blocks):
            got = run(program, device())
    except Exception:
        return traceback.format_exc()
    for i, w in want.items():
        message = _difference(got[i], w, program.ops[i].exact)
        if message is not None:
            return f"value {i} {w.dtype}{list(w.shape)}: {message}"
    return None


def _difference(got: np.ndarray, want: np.ndarray, exact: bool) -> str | None:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"is {got.dtype}{list(got.shape)}"
    kind = dt.as_dtype(want.dtype)
    if kind.is_low_precision:
        got, want = got.astype(np.float32), want.astype(np.float32)
    if exact:
        same = (got == want) | ((got != got) & (want != want))
    else:
        eps = {1: 0.2, 2: 0.03}.get(kind.itemsize, 1e-3)
        with np.errstate(invalid="ignore"):
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            same = np.isclose(got, want, rtol=eps, atol=eps * scale, equal_nan=True)
            same |= ~np.isfinite(got) & ~np.isfinite(want)  # infinity times nearly zero
    if np.all(same):
        return None
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{np.count_nonzero(~same)} differ, first at {at}: {got[at]} instead of {want[at]}"
