"""Random programs of views and in-place writes: numus against NumPy, gradients against PyTorch.

    python -m tools.fuzz_views [--programs N] [--seed S] [--device cpu] [--torch] [--jit]
                               [--workers W]

A program is a list of instructions on a growing list of arrays: views of views, assignments through
indices and masks, augmented assignments, loops over rows, reads. After each write, all arrays that
are alive must be equal in both libraries. With `--torch` a program begins with products of leaves,
ends with a weighted sum of its arrays, and the leaves' gradients are compared as well.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm

Instruction = tuple[Any, ...]
Shape = tuple[int, ...]


# -- programs -------------------------------------------------------------------------------------


class Writer:
    """Writes a random program, tracking shapes by running it in NumPy."""

    def __init__(self, seed: int, torch: bool) -> None:
        self.random = random.Random(seed)
        self.torch = torch  # what PyTorch supports as well: steps above 0
        self.arrays: list[Any] = []
        self.program: list[Instruction] = []
        for _ in range(self.random.randint(1, 2)):
            shape = tuple(
                self.random.choice((1, 2, 3, 4, 5)) for _ in range(self.random.randint(1, 3))
            )
            self.add(("new", shape, self.random.randrange(1 << 30)))

    def add(self, instruction: Instruction) -> None:
        self.program.append(instruction)
        run_one(NumPy, self.arrays, instruction)

    def write(self, length: int) -> list[Instruction]:
        often = [self.view, self.assign, self.augment] * 2
        seldom = [self.view, self.compute, self.rows, self.mask, self.drop, self.copy]
        while len(self.program) < length:
            self.random.choice(often + seldom)()
        return self.program

    def pick(self) -> tuple[int, Any]:
        alive = [i for i, a in enumerate(self.arrays) if a is not None]
        i = self.random.choice(alive)
        return i, self.arrays[i]

    def view(self) -> None:
        r = self.random
        i, a = self.pick()
        kinds = ["index", "index", "transpose", "reshape", "new_axis"]
        if a.ndim >= 2:
            kinds += ["swapaxes", "diagonal"]
        if 1 in a.shape:
            kinds.append("squeeze")
        if not self.torch and a.ndim:  # NumPy's flip of one number is no view
            kinds.append("flip")
        kind = r.choice(kinds)
        if kind == "index":
            self.add(("index", i, self.index(a.shape)))
        elif kind == "transpose":
            axes = list(range(a.ndim))
            r.shuffle(axes)
            self.add(("permute", i, tuple(axes)))
        elif kind == "swapaxes":
            self.add(("swapaxes", i, *r.sample(range(a.ndim), 2)))
        elif kind == "reshape":
            self.add(("reshape", i, self.factors(a.size)))
        elif kind == "new_axis":
            self.add(("expand_dims", i, r.randint(0, a.ndim)))
        elif kind == "diagonal":
            self.add(("diagonal", i, r.randint(-1, 1)))
        elif kind == "squeeze":
            self.add(("squeeze", i, a.shape.index(1)))
        else:
            self.add(("flip", i, r.randrange(a.ndim)))

    def factors(self, size: int) -> Shape:
        out, rest = [], size
        while rest > 1 and len(out) < 3:
            divisors = [d for d in range(1, rest + 1) if rest % d == 0]
            n = self.random.choice(divisors)
            out.append(n)
            rest //= n
        return (*out, rest)

    def index(self, shape: Shape) -> tuple[Any, ...]:
        r = self.random
        items: list[Any] = []
        for n in shape[: r.randint(0, len(shape))]:
            kind = r.choice(("int", "slice", "slice", "all"))
            if kind == "int" and n:
                items.append(r.randrange(-n, n))
            elif kind == "slice":
                low, high = sorted((r.randint(0, n), r.randint(0, n)))
                step = r.choice((1, 1, 2, 3))
                if not self.torch and r.random() < 0.3:
                    items.append(slice(high - 1 if high else None, None, -step))
                else:
                    items.append(slice(low, high, step))
            else:
                items.append(slice(None))
        if r.random() < 0.2:
            items.append(...)
        return tuple(items)

    def value(self, shape: Shape) -> Any:
        """A number, an array, or an array that broadcasts."""
        r = self.random
        kind = r.choice(("number", "array", "broadcast", "other"))
        if kind == "number":
            return ("number", round(r.uniform(-2, 2), 2))
        if kind == "other":
            same = [i for i, a in enumerate(self.arrays) if a is not None and a.shape == shape]
            if same:
                return ("array", r.choice(same))
        if kind == "broadcast":
            shape = tuple(1 if r.random() < 0.5 else n for n in shape)
        return ("random", shape, r.randrange(1 << 30))

    def assign(self) -> None:
        i, a = self.pick()
        index = self.index(a.shape)
        self.add(("assign", i, index, self.value(a[index].shape)))

    def augment(self) -> None:
        i, a = self.pick()
        operator = self.random.choice(("+", "*", "-"))
        if self.random.random() < 0.5:
            index = self.index(a.shape)
            self.add(("augment_item", i, index, operator, self.value(a[index].shape)))
        else:
            self.add(("augment", i, operator, self.value(a.shape)))

    def compute(self) -> None:
        i, _ = self.pick()
        self.add(("compute", i, self.random.choice(("sin", "double"))))

    def copy(self) -> None:
        self.add(("copy", self.pick()[0]))

    def rows(self) -> None:
        i, a = self.pick()
        if a.ndim >= 2:  # the rows of a NumPy vector are numbers
            self.add(("rows", i, round(self.random.uniform(-1, 1), 2)))

    def mask(self) -> None:
        self.add(("mask", self.pick()[0], round(self.random.uniform(-1, 1), 2)))

    def drop(self) -> None:
        alive = [i for i, a in enumerate(self.arrays) if a is not None]
        if len(alive) > 2:
            self.add(("drop", self.random.choice(alive)))


# -- libraries ------------------------------------------------------------------------------------


class NumPy:
    new = staticmethod(lambda a: np.array(a))
    copy = staticmethod(lambda a: a.copy())
    sin = staticmethod(np.sin)
    permute = staticmethod(np.transpose)
    expand_dims = staticmethod(np.expand_dims)
    flip = staticmethod(np.flip)

    @staticmethod
    def diagonal(a: Any, k: int) -> Any:
        view = np.diagonal(a, k)
        view.flags.writeable = True
        return view


class Numus:
    device = "cpu"
    new = staticmethod(lambda a: nm.asarray(a, device=Numus.device))
    copy = staticmethod(nm.copy)
    sin = staticmethod(nm.sin)
    permute = staticmethod(nm.permute_dims)
    expand_dims = staticmethod(nm.expand_dims)
    flip = staticmethod(nm.flip)
    diagonal = staticmethod(nm.diagonal)


def _random(shape: Shape, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def run_one(xp: Any, arrays: list[Any], instruction: Instruction) -> None:
    """One instruction, in one library."""
    name, *rest = instruction
    if name == "new":
        arrays.append(xp.new(_random(*rest)))
        return
    a = arrays[rest[0]]
    match name:
        case "index":
            index = rest[1] if ... in rest[1] else (*rest[1], ...)  # never a NumPy number
            arrays.append(a[index])
        case "permute" | "expand_dims" | "flip" | "diagonal":
            arrays.append(getattr(xp, name)(a, rest[1]))
        case "swapaxes":
            arrays.append(a.swapaxes(*rest[1:]))
        case "reshape" | "squeeze":
            arrays.append(getattr(a, name)(rest[1]))
        case "compute":
            new = xp.sin(a) if rest[1] == "sin" else a * 2
            arrays.append(_in_order(xp, new))
        case "copy":
            arrays.append(xp.copy(a))
        case "assign":
            a[rest[1]] = _value(xp, arrays, rest[2])
        case "augment":
            arrays[rest[0]] = _augmented(a, rest[1], _value(xp, arrays, rest[2]))
        case "augment_item":
            value = _value(xp, arrays, rest[3])
            if rest[2] == "+":
                a[rest[1]] += value
            elif rest[2] == "-":
                a[rest[1]] -= value
            else:
                a[rest[1]] *= value
        case "rows":
            # PyTorch refuses writes to what iteration returns while gradients are recorded
            for row in (a[i] for i in range(len(a))) if isinstance(xp, Torch) else a:
                row += rest[1]
        case "mask":
            a[a > rest[1]] = 0.5
        case "drop":
            arrays[rest[0]] = None


def _in_order(xp: Any, new: Any) -> Any:
    """A result in C order, as numus has them: whether a reshape of it is a view depends on that,
    and the others keep the order of their operands."""
    if xp is NumPy:
        return np.array(new, order="C")
    return new.contiguous() if isinstance(xp, Torch) else new


def _value(xp: Any, arrays: Sequence[Any], value: Any) -> Any:
    kind, *rest = value
    if kind == "number":
        return rest[0]
    if kind == "random":
        return xp.new(_random(*rest))
    # PyTorch refuses operands that share part of the memory that is written
    return xp.copy(arrays[rest[0]]) if isinstance(xp, Torch) else arrays[rest[0]]


def _augmented(a: Any, operator: str, value: Any) -> Any:
    if operator == "+":
        a += value
    elif operator == "-":
        a -= value
    else:
        a *= value
    return a


class Torch:
    """Arrays are products of leaves, so that they can be written to."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.leaves: list[Any] = []
        self.sin, self.permute = torch.sin, torch.permute
        self.copy = functools.partial(torch.clone, memory_format=torch.contiguous_format)
        self.expand_dims, self.diagonal = torch.unsqueeze, torch.diagonal

    def new(self, a: Any) -> Any:
        self.leaves.append(self.torch.tensor(a, requires_grad=True))
        return self.leaves[-1] * 1


class Leaves(Numus):
    """numus with arrays that are products of leaves."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []

    def new(self, a: Any) -> Any:  # type: ignore[override]
        self.leaves.append(nm.asarray(a, device=self.device, requires_grad=True))
        return self.leaves[-1] * 1


class Traced(Numus):
    """numus with arrays that are products of given leaves, in order."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.leaves = iter(leaves)

    def new(self, a: Any) -> Any:  # type: ignore[override]
        return next(self.leaves) * 1


# -- comparing ------------------------------------------------------------------------------------

_WRITES = ("assign", "augment", "augment_item", "rows", "mask")


def numpy_difference(seed: int, length: int, jit: bool) -> str | None:
    """What differs from NumPy after a random program, or None."""
    program = Writer(seed, torch=False).write(length)
    theirs: list[Any] = []
    if jit:
        for instruction in program:
            run_one(NumPy, theirs, instruction)
        inputs = [
            nm.asarray(_random(*i[1:]), device=Numus.device) for i in program if i[0] == "new"
        ]

        @nm.jit
        def run(given: list[Any]) -> list[Any]:
            arrays = list(given)
            for instruction in program:
                if instruction[0] != "new":
                    run_one(Numus, arrays, instruction)
            return arrays

        return _difference(seed, program, run(inputs), theirs)
    ours: list[Any] = []
    for number, instruction in enumerate(program):
        run_one(NumPy, theirs, instruction)
        run_one(Numus, ours, instruction)
        if instruction[0] in _WRITES:
            found = _difference(seed, program[: number + 1], ours, theirs)
            if found is not None:
                return found
    return None


def _difference(seed: int, program: Any, ours: Sequence[Any], theirs: Sequence[Any]) -> str | None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if b is not None and not np.allclose(np.asarray(a), b, 1e-4, 1e-5, equal_nan=True):
            head = "\n".join(map(str, program))
            return f"seed {seed}, array {i} after\n{head}\nis\n{a}\nnot\n{b}"
    return None


def torch_difference(seed: int, length: int, jit: bool) -> str | None:
    """What differs from PyTorch after a random program with gradients, or None."""
    program = Writer(seed, torch=True).write(length)
    torch, leaves = Torch(), Leaves()
    total, arrays = _run(torch, program)
    try:
        if total.requires_grad:  # what was overwritten as a whole has no history
            total.backward()
    except RuntimeError as error:  # PyTorch has lost values that it saved for backward
        if "modified by an inplace operation" not in str(error):
            raise
        return None
    theirs = _numbers(arrays, [x.grad for x in torch.leaves])
    total, arrays = _run(leaves, program)
    if jit:
        inputs = [x.detach() for x in leaves.leaves]
        traced = nm.jit(nm.grad(lambda given: _run(Traced(given), program), has_aux=True))
        grads, arrays = traced(inputs)
    else:
        if total.requires_grad:
            total.backward()
        grads = [x.grad for x in leaves.leaves]
    return _difference(seed, program, _numbers(arrays, grads), theirs)


def _run(xp: Any, program: Sequence[Instruction]) -> tuple[Any, list[Any]]:
    """A weighted sum of a program's arrays, and the arrays."""
    arrays: list[Any] = []
    for instruction in program:
        run_one(xp, arrays, instruction)
    return sum((a * (i + 1)).sum() for i, a in enumerate(arrays) if a is not None), arrays


def _numbers(arrays: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """Arrays, and gradients, of which one that is None is zero, in NumPy."""
    values = [0 if a is None else np.asarray(a.detach()) for a in arrays]
    return [*values, *(0 if g is None else np.asarray(g) for g in grads)]


def _failures(given: argparse.Namespace, seeds: range) -> list[str]:
    """What differs after the programs of `seeds`; printed as it is found."""
    Numus.device = given.device
    difference = torch_difference if given.torch else numpy_difference
    failures = []
    for seed in seeds:
        found = difference(seed, given.length, given.jit)
        if found is not None:
            failures.append(found)
            print(found, flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_views", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--length", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--torch", action="store_true", help="values and gradients as PyTorch's")
    parser.add_argument("--jit", action="store_true", help="the whole program in nm.jit")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.programs)
    parts = [(given, seeds[w :: given.workers]) for w in range(given.workers)]
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        failed = sum(map(len, pool.starmap(_failures, parts)))
    print(f"{given.programs} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
