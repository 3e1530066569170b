"""Differential fuzzing: random programs and their gradients on two devices.

    python -m tools.fuzz_programs --device cuda --seconds 60 --workers 14
    python -m tools.fuzz_programs --device cuda --seed 4711 --programs 1     one again
    python -m tools.fuzz_programs --device cpu --against reference --seconds 60

A program has a few leaves and steps: pointwise operations, views, concatenations, reductions,
scans, sorts, gathers and scatters, matmuls, convolutions. All numbers are small integers, so that
sums are exact in any order and results must be bit-identical; only final softmax and norms have a
tolerance. Extents of 0, 1 and next to powers of two are frequent. Each program runs in one of
several modes (evaluated at once, step by step, under `nm.jit`, `nm.grad` or `nm.vmap`), a few times
with other numbers, to exercise the caches.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numus as nm

FLOATS = ("float32", "float32", "float64")
DTYPES = (*FLOATS, "int32", "int64", "bfloat16", "float16", "uint8")
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 100, 128, 255, 257)
LARGE = (512, 1000, 1024, 1025, 2048, 4099)
MODES = ("whole", "whole", "steps", "jit", "grad", "grad", "jit grad", "vmap")

REPEATS = 4  # of each program, with other numbers: later ones run from caches
_LOW_PRECISION = (nm.bfloat16, nm.float16)
_UNSIGNED = (nm.uint8, nm.uint64)

Shape = tuple[int, ...]
Step = Callable[..., Any]


class Draw(random.Random):
    """Random parts of programs."""

    max_elements = 20_000  # of a tensor

    def shape(self, low: int = 0, high: int = 4) -> Shape:
        shape: list[int] = []
        for _ in range(self.randint(low, high)):
            fits = [n for n in (*EXTENTS, *LARGE) if n * math.prod(shape) <= self.max_elements]
            shape.append(self.choice([*fits[:10], *fits]))
        if shape and self.random() < 0.03:
            shape[self.randrange(len(shape))] = 0
        self.shuffle(shape)
        return tuple(shape)

    def whole(self, shape: Shape, dtype: str, low: int = -4, high: int = 5) -> np.ndarray:
        """Small integers; bfloat16 is converted from float32."""
        values = np.random.default_rng(self.getrandbits(32)).integers(low, high, shape)
        return np.abs(values) if dtype.startswith("u") else values

    def axes(self, rank: int) -> tuple[int, ...]:
        return tuple(self.sample(range(rank), self.randint(1, rank)))


# -- steps: a function of a tensor and of new leaves, and the shapes of those ----------------------


def small(draw: Draw, f: Step) -> Step:
    """Clip to small numbers, in case values have grown."""
    cut = draw.random() < 0.5

    def g(*xs: Any) -> Any:
        y = f(*xs)
        if y.dtype == nm.bool:
            return y.astype("int32")
        if y.dtype in _LOW_PRECISION or (cut and y.dtype not in _UNSIGNED):
            return nm.clip(y, -9, 9)
        if y.dtype in (nm.float32, nm.float64):
            return y - 16 * nm.floor(y * 0.0625)
        return nm.remainder(y, 16)

    return g


def a_map(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    f = draw.choice(
        [
            lambda t: t * 2 + 1,
            lambda t: nm.maximum(t, 1),
            lambda t: t * t,
            nm.abs,
            nm.sign,
            lambda t: nm.where(t > 0, t, 3),
            lambda t: (t > 1).astype(t.dtype),
            lambda t: t.astype("float32"),
            lambda t: t.astype("int32") + t.astype("int32"),
            lambda t: nm.minimum(t, 2) + nm.maximum(t, 0),
        ]
    )
    return small(draw, f), []


def with_another(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    """A binary operation; one operand may be broadcast."""
    shape = tuple(n if draw.random() < 0.7 else 1 for n in x.shape)
    shape = shape[draw.choice((0, 0, draw.randint(0, len(shape)))) :]
    ops = [nm.add, nm.multiply, nm.maximum, nm.minimum, lambda a, b: nm.where(a > b, a, b)]
    f = draw.choice([*ops, lambda a, b: (a == b).astype(a.dtype) + a])
    return small(draw, f if draw.random() < 0.5 else lambda a, b: f(b, a)), [shape]


def a_view(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    rank, size = len(x.shape), x.size
    kinds = ["expand"]
    if rank:
        kinds += ["turn", "turn", "slice", "slice", "flip", "roll", "reshape", "spread"]
    if rank >= 2:
        kinds += ["diagonal", "tril"]
    kind = draw.choice(kinds)
    if kind == "expand":
        axis = draw.randint(0, rank)
        return lambda t: nm.expand_dims(t, axis=axis), []
    if kind == "turn":
        order = tuple(draw.sample(range(rank), rank))
        return lambda t: nm.permute_dims(t, order), []
    if kind == "slice":
        cuts = tuple(_cut(draw, n) for n in x.shape)
        return lambda t: t[cuts], []
    if kind == "flip":
        axes = draw.axes(rank)
        return lambda t: nm.flip(t, axis=axes), []
    if kind == "roll":
        axis, shift = draw.randrange(rank), draw.randint(-5, 5)
        return lambda t: nm.roll(t, shift, axis=axis), []
    if kind == "spread":
        shape = tuple(draw.choice((1, 2, 3, 33)) if n == 1 else n for n in x.shape)
        if math.prod(shape) > draw.max_elements:
            shape = x.shape
        return lambda t: nm.broadcast_to(t, shape), []
    if kind == "diagonal":
        offset, (a, b) = draw.randint(-2, 2), draw.sample(range(rank), 2)
        return lambda t: nm.diagonal(t, offset, a, b), []
    if kind == "tril":
        k, f = draw.randint(-3, 3), draw.choice((nm.tril, nm.triu))
        return lambda t: f(t, k=k), []
    shape = _factors(draw, size) if size else (0, *draw.shape(0, 2))
    return lambda t: nm.reshape(t, shape), []


def _cut(draw: Draw, n: int) -> Any:
    if n > 1 and draw.random() < 0.15:
        return draw.randrange(-n, n)
    if draw.random() < 0.4:
        return slice(None)
    ends = [None if draw.random() < 0.3 else draw.randint(-n - 1, n + 1) for _ in range(2)]
    return slice(*ends, draw.choice((1, 1, 2, 3, -1, -2)))


def _factors(draw: Draw, size: int) -> Shape:
    out = []
    while size > 1 and len(out) < 4:
        n = draw.choice([k for k in range(1, min(size, 300) + 1) if size % k == 0])
        out.append(n)
        size //= n
    return (*out, size)


def a_join(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    rank = len(x.shape)
    if not rank or x.size > draw.max_elements // 3:
        return (lambda t: nm.stack([t, t + 0])), []
    axis = draw.randrange(rank)
    other = tuple(draw.choice((0, 1, 2, 5, 32)) if k == axis else n for k, n in enumerate(x.shape))
    widths = [(draw.randint(0, 3), draw.randint(0, 3)) for _ in x.shape]
    times = draw.randint(1, 3)
    kind = draw.choice(("concat", "concat", "stack", "pad", "tile", "repeat"))
    if kind == "concat":
        return lambda t, o: nm.concatenate([t, o.astype(t.dtype), t * 2], axis=axis), [other]
    if kind == "stack":
        return lambda t, o: nm.stack([t, o.astype(t.dtype)], axis=axis), [x.shape]
    if kind == "pad":
        return lambda t: nm.pad(t, widths, constant_values=2), []
    if kind == "tile":
        return lambda t: nm.tile(t, [times if k == axis else 1 for k in range(rank)]), []
    return lambda t: nm.repeat(t, times, axis=axis), []


def a_reduction(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    rank = len(x.shape)
    axes: Any = draw.choice((None, draw.axes(rank), draw.axes(rank))) if rank else None
    keep = draw.random() < 0.5
    extremes = [nm.max, nm.min] if x.size else []
    f = draw.choice([nm.sum, nm.sum, nm.any, nm.all, nm.count_nonzero, *extremes])
    if draw.random() < 0.15 and x.size and rank:
        axis = draw.randrange(rank)
        g = draw.choice((nm.argmax, nm.argmin))
        return small(draw, lambda t: g(t, axis=axis, keepdims=keep)), []
    return small(draw, lambda t: f(t, axis=axes, keepdims=keep)), []


def a_scan_or_sort(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    if not x.shape:
        return a_map(draw, x)
    axis, down = draw.randrange(len(x.shape)), draw.random() < 0.4
    n = x.shape[axis]
    few = draw.randint(1, n) if n else 0
    kinds: list[Step] = [
        lambda t: nm.cumsum(t, axis=axis),
        lambda t: nm.flip(nm.cumsum(nm.flip(t, axis=axis), axis=axis), axis=axis),
        lambda t: nm.cummax(t, axis=axis),
        lambda t: nm.sort(t, axis=axis, descending=down),
        lambda t: nm.argsort(t, axis=axis, descending=down),
    ]
    if n:
        kinds.append(lambda t: nm.topk(t, few, dim=axis, largest=down)[0])
    return small(draw, draw.choice(kinds)), []


def at_indices(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    if not x.size or not x.shape:
        return a_map(draw, x)
    rank = len(x.shape)
    axis = draw.randrange(rank)
    n = x.shape[axis]
    some = draw.shape(1, 3)
    if math.prod(some) * x.size // n > 2 * draw.max_elements:
        some = (2,)
    index = draw.whole(some, "int64", -n, n)
    kind = draw.choice(("take", "index", "along", "add", "add", "scatter", "write", "mask"))
    if kind == "take":
        return lambda t: nm.take(t, index.reshape(-1), axis=axis), []
    if kind == "index":
        where = (*(slice(None),) * axis, index)
        return lambda t: t[where], []
    along = tuple(draw.choice((1, 3, 40)) if k == axis else m for k, m in enumerate(x.shape))
    if math.prod(along) > draw.max_elements:
        along = x.shape
    places = draw.whole(along, "int64", 0, n)
    if kind == "along":
        return lambda t: nm.take_along_axis(t, places, axis=axis), []
    if kind == "add":
        line = index.reshape(-1) % n
        more = tuple(line.size if k == axis else m for k, m in enumerate(x.shape))
        f = small(draw, lambda t, s: nm.index_add(t, axis, line, s.astype(t.dtype)))
        return f, [more]
    if kind == "scatter":
        f = small(draw, lambda t, s: nm.scatter_add(t, axis, places, s.astype(t.dtype)))
        return f, [along]
    if kind == "mask":
        mask = draw.whole(x.shape, "int64") > 0
        return lambda t: nm.where(mask, t, t[(slice(None),) * axis + (slice(0, 1),)]), []

    def write(t: Any, s: Any) -> Any:
        t = t + 0
        t[(*(slice(None),) * axis, index)] = s.astype(t.dtype)
        return t

    return write, [(*x.shape[:axis], *some, *x.shape[axis + 1 :])]


def a_product(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    if len(x.shape) < 1 or x.dtype == nm.uint8:
        return a_map(draw, x)
    deep, wide = x.shape[-1], draw.choice(EXTENTS)
    if x.size // max(deep, 1) * wide > draw.max_elements or deep > 2000:
        return a_reduction(draw, x)
    if len(x.shape) < 2 or draw.random() < 0.6:
        if draw.random() < 0.5:
            return small(draw, lambda t, w: nm.matmul(t, w.astype(t.dtype))), [(deep, wide)]
        return small(draw, lambda t, w: nm.matmul(t, w.astype(t.dtype).T)), [(wide, deep)]
    if draw.random() < 0.5:
        lead = tuple(n if draw.random() < 0.6 else 1 for n in x.shape[:-2])
        f = small(draw, lambda t, w: nm.matmul(t, w.astype(t.dtype)))
        return f, [(*lead, deep, wide)]
    if x.size // max(deep, 1) * x.shape[-2] > draw.max_elements:
        return a_reduction(draw, x)
    return small(draw, lambda t: nm.matmul(t, nm.swapaxes(t, -1, -2))), []


def a_window(draw: Draw, x: Any) -> tuple[Step, list[Shape]]:
    if len(x.shape) != 4 or x.dtype in (nm.uint8, nm.int32, nm.int64) or not x.size:
        return a_map(draw, x)
    kernel = tuple(draw.randint(1, min(3, n)) for n in x.shape[2:])
    stride, pad = draw.randint(1, 2), draw.randint(0, min(kernel) // 2)
    if draw.random() < 0.4:
        return lambda t: nm.max_pool2d(t, kernel, stride, pad), []
    groups = draw.choice([g for g in (1, 1, 1, 2, 3, x.shape[1]) if x.shape[1] % g == 0])
    out = groups * draw.choice((1, 2, 5))
    weight = (out, x.shape[1] // groups, *kernel)

    def f(t: Any, w: Any) -> Any:
        return nm.conv2d(t, w.astype(t.dtype), stride=stride, padding=pad, groups=groups)

    return small(draw, f), [weight]


def rows_at_the_end(draw: Draw, x: Any) -> Step:
    # eps=1: gradients of a norm of equal numbers are rounding errors over the root of eps
    axis = draw.randrange(len(x.shape))
    return draw.choice(
        [
            lambda t: nm.softmax(t.astype("float32"), axis=axis),
            lambda t: nm.logsumexp(t.astype("float32"), axis=axis),
            lambda t: nm.layer_norm(t.astype("float32"), axis=axis, eps=1.0),
            lambda t: nm.var(t.astype("float32"), axis=axis),
            lambda t: nm.mean(nm.exp(t.astype("float32") * 0.25), axis=axis),
        ]
    )


KINDS = (
    *(a_map, a_map, with_another, with_another, with_another, a_view, a_view, a_view, a_view),
    *(a_join, a_reduction, a_reduction, a_scan_or_sort, at_indices, at_indices, a_product),
    a_window,
)

# -- programs -------------------------------------------------------------------------------------


class Program:
    """Leaves and steps; each step takes an earlier value and new leaves."""

    def __init__(self, seed: int, max_elements: int) -> None:
        draw = Draw(seed)
        draw.max_elements = max_elements
        self.seed, self.mode = seed, draw.choice(MODES)
        self.dtype = draw.choice(FLOATS if "grad" in self.mode else DTYPES)
        shape = (draw.randint(1, 3), *draw.shape(0, 3)) if self.mode == "vmap" else draw.shape()
        self.leaves = [draw.whole(shape, self.dtype)]
        self.steps: list[tuple[str, Step, int, list[int]]] = []
        first = self._tensors("cpu")[0]
        values = [first[0] if self.mode == "vmap" else first]
        for _ in range(draw.randint(1, 7)):
            taken = draw.choice((len(values) - 1, len(values) - 1, draw.randrange(len(values))))
            kind = draw.choice(KINDS)
            step, more = kind(draw, values[taken])
            new = [len(self.leaves) + k for k in range(len(more))]
            for s in more:
                lead = shape[:1] if self.mode == "vmap" else ()
                self.leaves.append(draw.whole((*lead, *s), self.dtype))
            own = [t[0] if self.mode == "vmap" else t for t in self._tensors("cpu", new)]
            value = step(values[taken], *own)
            if value.size > 4 * max_elements:
                continue
            self.steps.append((kind.__name__, step, taken, new))
            values.append(value)
        last = values[-1]
        self.tolerant = bool(last.size and last.shape and draw.random() < 0.25)
        if self.tolerant:
            self.steps.append(("rows_at_the_end", rows_at_the_end(draw, last), len(values) - 1, []))

    def _tensors(self, device: str, which: Sequence[int] | None = None, turn: int = 0) -> list[Any]:
        """Leaves, with other numbers in every repeat."""
        which = range(len(self.leaves)) if which is None else which
        arrays = [np.roll(self.leaves[k], turn).astype(np.int32) for k in which]
        return [nm.asarray(a, device=device).astype(self.dtype) for a in arrays]

    def run(self, *leaves: Any) -> list[Any]:
        values = [leaves[0]]
        for _, step, taken, new in self.steps:
            values.append(step(values[taken], *(leaves[k] for k in new)))
            if self.mode == "steps":
                values[-1].numpy()
        return values[1:]

    def loss(self, *leaves: Any) -> Any:
        """Gradients of all floats, with position-dependent cotangents."""
        total: Any = 0
        for value in self.run(*leaves):
            if value.dtype in (nm.float32, nm.float64):
                weights = (nm.arange(value.size, device=value.device) % 5).reshape(value.shape)
                total = total + (value * weights.astype(value.dtype)).sum().astype("float64")
        return total if not isinstance(total, int) else leaves[0].sum()

    def results(self, device: str) -> list[np.ndarray]:
        """The results of all repeats."""
        run: Callable[..., Any] = self.run
        if "grad" in self.mode:
            run = nm.grad(self.loss, argnums=tuple(range(len(self.leaves))))
        if self.mode == "vmap":
            run = nm.vmap(run)
        if "jit" in self.mode:
            run = nm.jit(run)
        found: list[np.ndarray] = []
        for turn in range(REPEATS):
            for t in run(*self._tensors(device, turn=turn)):
                assert str(t.device).startswith(device), f"a result is on {t.device}"
                found.append(
                    t.astype("float32").numpy() if t.dtype in _LOW_PRECISION else t.numpy()
                )
        return found

    def differs(self, device: str, against: str) -> str:
        """Differences between results; empty if there are none."""
        ours, theirs = self.results(device), self.results(against)
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"result {k}: {a.dtype}{a.shape} where {against} has {b.dtype}{b.shape}"
            each = len(ours) // REPEATS
            close = self.tolerant and ("grad" in self.mode or k % each == each - 1)
            grown = "grad" in self.mode  # sums of large values may round
            scale = float(np.abs(b).max(initial=1.0)) if b.dtype.kind == "f" else 1.0
            tolerance = (2e-5 if close else 2e-6 if grown else 0.0) * scale
            with np.errstate(invalid="ignore"):
                same = (a == b) | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else a == b
                if tolerance:
                    same = same | (np.abs(a - b) <= tolerance)
            if not same.all():
                at = tuple(int(i) for i in np.argwhere(~same)[0])
                what = f"{(~same).sum()} of {same.size}, first at {at}: {a[at]} for {b[at]}"
                return f"result {k} {b.dtype}{b.shape}: {what}"
        return ""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.mode}, {self.dtype}, leaf {self.leaves[0].shape}"]
        for k, (name, _, taken, new) in enumerate(self.steps):
            more = "".join(f", leaf {self.leaves[n].shape}" for n in new)
            lines.append(f"  {k + 1}: {name} of {taken}{more}")
        return "\n".join(lines)


def fuzz(
    device: str,
    seeds: Sequence[int],
    max_elements: int = 20_000,
    seconds: float = math.inf,
    against: str = "reference",
) -> tuple[Counter[str], list[str]]:
    """Counts of programs by mode, and failures."""
    ran: Counter[str] = Counter()
    wrong: list[str] = []
    end = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            break
        program = Program(seed, max_elements)
        try:
            found = program.differs(device, against)
        except Exception as e:  # must occur on both devices or on neither
            found = f"{type(e).__name__}: {str(e)[:300]}"
        ran[program.mode] += 1
        if found:
            wrong.append(f"{program}\n  {found}")
    return ran, wrong


def _worker(given: tuple[str, range, int, float, str]) -> tuple[Counter[str], list[str]]:
    return fuzz(*given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--against", default="cpu", help="whose results are held to be right")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--max-elements", type=int, default=20_000, help="elements of a tensor")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    each = range(given.seed, given.seed + given.programs)
    parts = [
        (given.device, each[w :: given.workers], given.max_elements, given.seconds, given.against)
        for w in range(given.workers)
    ]
    ran: Counter[str] = Counter()
    wrong: list[str] = []
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for counts, found in pool.imap_unordered(_worker, parts):
            ran += counts
            wrong += found
    for text in wrong:
        print(text)
    print(f"{ran.total()} programs ({dict(ran)}), {len(wrong)} differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
