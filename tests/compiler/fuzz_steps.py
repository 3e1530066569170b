"""Random steps with state, donated arguments, loops and branches: under nm.jit against without.

    python tests/compiler/fuzz_steps.py --seed 1000 --seconds 600

A step is made from a seed alone. It reads and changes state that it reaches through closures,
attributes, dicts and lists (in place, or by giving the variable another tensor), changes its
arguments, and returns some of what it met. Values are small integers in whatever dtype, so that
both ways must agree bit for bit: results, state, arguments, and what others hold of old values.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from typing import Any

import numpy as np

import numus as nm

SHAPES = [(4,), (3, 4), (4, 3), (1, 4), (), (3, 1), (2, 3, 4), (64, 33), (0, 4)]
DTYPES = ["float32", "float32", "float64", "int32"]
CALLS = 4


class Step:
    """What a seed stands for; `run` plays it."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        self.seed = seed
        self.state = [(r.choice(SHAPES), r.choice(DTYPES)) for _ in range(r.randint(1, 5))]
        self.homes = [r.choice(("attribute", "entry", "element", "name")) for _ in self.state]
        self.args = [(r.choice(SHAPES), r.choice(DTYPES)) for _ in range(r.randint(1, 3))]
        self.donated = tuple(i for i in range(len(self.args)) if r.random() < 0.25)
        self.ops = [(r.choice(OPERATIONS), r.randrange(1 << 30)) for _ in range(r.randint(3, 20))]
        self.returned = [r.randrange(1 << 30) for _ in range(r.randint(0, 4))]

    def arguments(self, call: int) -> list[Any]:
        out = []
        for i, (shape, dtype) in enumerate(self.args):
            host = _numbers(self.seed * 77 + call * 13 + i, shape, dtype)
            x = nm.asarray(host) * 1  # memory of its own, which may be given away
            if (self.seed + call) % 3 == 1 and len(shape) > 1:
                x = nm.asarray(np.ascontiguousarray(host.T)).T
            nm.eval(x)
            out.append(x)
        if call == 2 and len(out) > 1 and self.args[0] == self.args[1]:
            out[1] = out[0]
        return out

    def run(self, jitted: bool) -> list[Any]:
        """All that can be seen of some calls."""
        state = State(self)
        step = nm.jit(self.function(state), donate=self.donated if jitted else ())
        step = step if jitted else self.function(state)
        seen: list[Any] = []
        for call in range(CALLS):
            args = self.arguments(call)
            older = [*args, *(state.get(k) for k in range(len(self.state)))]
            views = [x[::-1] if x.ndim else x.reshape(1) for x in older]
            if call % 2:
                nm.eval(*views)
            seen.append(_values(step(*args)))
            given = [args[i] for i in self.donated]
            seen.append(_values([x for x in args if not any(x is g for g in given)]))
            seen.append(_values([state.get(k) for k in range(len(self.state))]))
            seen.append(_values(views))
        return seen

    def function(self, state: State) -> Any:
        def step(*args: Any) -> Any:
            met = list(args)
            for operation, seed in self.ops:
                operation(random.Random(seed), met, state)
            return [_result(random.Random(seed), met) for seed in self.returned]

        return step


class State:
    """Tensors in variables of every kind."""

    def __init__(self, step: Step) -> None:
        made = [
            nm.asarray(_numbers(step.seed * 31 + i, *kind)) for i, kind in enumerate(step.state)
        ]
        self.count = len(made)
        self._homes = step.homes
        self._entries = dict(enumerate(made))
        self._elements = list(made)
        for i, x in enumerate(made):
            setattr(self, f"tensor{i}", x)
        named = made[0]

        def get_named() -> Any:
            return named

        def put_named(x: Any) -> None:
            nonlocal named
            named = x

        self._named = get_named, put_named

    def get(self, i: int) -> Any:
        home = self._homes[i]
        if home == "name" and i == 0:
            return self._named[0]()
        if home == "element":
            return self._elements[i]
        return self._entries[i] if home == "entry" else getattr(self, f"tensor{i}")

    def put(self, i: int, x: Any) -> None:
        home = self._homes[i]
        if home == "name" and i == 0:
            self._named[1](x)
        elif home == "element":
            self._elements[i] = x
        elif home == "entry":
            self._entries[i] = x
        else:
            setattr(self, f"tensor{i}", x)

    def any(self, r: random.Random) -> Any:
        return self.get(r.randrange(self.count))


def _numbers(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def _values(container: Any) -> list[Any]:
    return [np.array(x) if isinstance(x, nm.Tensor) else x for x in nm.tree.leaves(container)]


def _small(x: Any) -> Any:
    """x where it is small, else wrapped: sums stay exact."""
    return nm.where(nm.abs(x) > 64, x - nm.floor(x / 8) * 8, x)


def _result(r: random.Random, met: list[Any]) -> Any:
    x = r.choice(met)
    choice = r.random()
    if choice < 0.2:
        return {"k": (x, None, 3)}
    return (x[::-1] if x.ndim else x.reshape(1)) if choice < 0.4 else x


# -- operations -----------------------------------------------------------------------------------


def _any(r: random.Random, met: list[Any], state: State) -> Any:
    if r.random() < 0.3:
        return state.any(r)
    return r.choice(met[-5:] if r.random() < 0.7 else met)


def _fitting(r: random.Random, met: list[Any], state: State, like: Any, whole: bool) -> Any:
    """Something that broadcasts with a tensor, or to its shape."""
    for _ in range(6):
        x = _any(r, met, state)
        try:
            shape = np.broadcast_shapes(x.shape, like.shape)
        except ValueError:
            continue
        if shape == like.shape or not whole:
            return x
    return nm.ones((), dtype=like.dtype)


def combined(r: random.Random, met: list[Any], state: State) -> None:
    x = _any(r, met, state)
    y = _fitting(r, met, state, x, False)
    met.append(_small(r.choice((nm.add, nm.subtract, nm.multiply, nm.maximum))(x, y)))


def viewed(r: random.Random, met: list[Any], state: State) -> None:
    x = _any(r, met, state)
    ways = [lambda: x.reshape(-1), lambda: x[None], lambda: x.clone(), lambda: x.detach()]
    if x.ndim:
        ways += [lambda: x[::-1], lambda: x[..., ::2], lambda: x[..., 1:], lambda: x[:]]
    if x.ndim == 2:
        ways.append(lambda: x.T)
    met.append(r.choice(ways)())


def reduced(r: random.Random, met: list[Any], state: State) -> None:
    x = _any(r, met, state)
    if x.ndim and 0 not in x.shape:
        kept = r.random() < 0.5
        met.append(_small(r.choice((nm.sum, nm.max))(x, axis=r.randrange(x.ndim), keepdims=kept)))
        met.append(nm.cumsum(nm.sign(x), axis=-1))
    if x.ndim == 2:
        met.append(_small(x @ x.T))


def changed(r: random.Random, met: list[Any], state: State) -> None:
    """State in place."""
    x = state.any(r)
    how = r.randrange(4)
    if how == 0:
        y = _fitting(r, met, state, x, True)
        x += nm.sign(y).astype(x.dtype)
    elif how == 1:
        x -= r.randint(-2, 2)
    elif how == 2 and x.ndim:
        x[..., r.randrange(2) :] = r.randint(1, 2)
    else:
        x.assign(_small(x * 2 + 1).astype(x.dtype))


def replaced(r: random.Random, met: list[Any], state: State) -> None:
    """Other tensors in variables."""
    i, j = r.randrange(state.count), r.randrange(state.count)
    x, y = state.get(i), state.get(j)
    if x.shape == y.shape and x.dtype == y.dtype and r.random() < 0.5:
        state.put(i, y)
        state.put(j, x)
    else:
        y = _fitting(r, met, state, x, True)
        state.put(i, _small(x + nm.sign(y)).astype(x.dtype))


def written(r: random.Random, met: list[Any], state: State) -> None:
    """Arguments and temporaries in place."""
    x = r.choice(met)
    if x.ndim:
        x[0:1] = r.randint(-3, 3)
    else:
        x += 1


def controlled(r: random.Random, met: list[Any], state: State) -> None:
    x = _any(r, met, state) if r.random() < 0.9 else nm.asarray(np.arange(4.0, dtype=np.float32))
    how = r.randrange(3)
    if how == 0:
        met.append(nm.cond(nm.sum(x) > 0, lambda x: x + 1, lambda x: x * 2, x))
    elif how == 1 and x.ndim and x.shape[0]:
        zero = nm.zeros(x.shape[1:], dtype=x.dtype)
        met += nm.scan(lambda c, y: (nm.sign(c + y), c - y), zero, x)
    else:
        again = lambda s: (s[0] + 1, _small(s[1] + 1).astype(x.dtype))
        met.append(nm.while_loop(lambda s: s[0] < 3, again, (nm.asarray(0), x))[1])


OPERATIONS = [*(combined, viewed, changed) * 2, reduced, replaced, written, controlled]


# -- comparing ------------------------------------------------------------------------------------


def disagreement(seed: int) -> str | None:
    """Where the calls of a step differ, in words."""
    wanted, found = Step(seed).run(False), Step(seed).run(True)
    names = ("results", "arguments", "state", "older views")
    for n, (a, b) in enumerate(zip(wanted, found, strict=True)):
        same = len(a) == len(b) and all(
            np.array_equal(x, y) and np.asarray(x).dtype == np.asarray(y).dtype
            for x, y in zip(a, b, strict=True)
        )
        if not same:
            return f"call {n // 4}, {names[n % 4]}: {b} where {a} was expected"
    return None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=60)
    given = arguments.parse_args()
    end = time.monotonic() + given.seconds
    failed = 0
    for seed in itertools.count(given.seed):
        try:
            found = disagreement(seed)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found is not None:
            failed += 1
            print(f"seed {seed}: {found}\n", flush=True)
        if time.monotonic() > end:
            break
    print(f"seeds {given.seed} to {seed}, {failed} failed")


if __name__ == "__main__":
    main()
