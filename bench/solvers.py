"""Solvers against SciPy and JAX, in turns: `python -m bench.solvers` (those that are installed).

1,000 Lorenz systems from 0 to 10 at 101 times (rtol 1e-6, atol 1e-8), and L-BFGS on Rosenbrock's
function of 1,000 variables. SciPy integrates one system after the other, here 20 of them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm

_SYSTEMS, _LOOPED = 1000, 20
_TIMES = np.linspace(0, 10, 101)
_ROUNDS = 5


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The best time of each, all of them in every round."""
    for run in runs.values():
        run()  # compiles
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            found[name].append(_seconds(run))
    return {name: min(times) for name, times in found.items()}


def _lorenz(stack: Callable[..., Any]) -> Callable[..., Any]:
    def slope(y: Any, t: Any) -> Any:
        return stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    return slope


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def lorenz(dtype: Any) -> dict[str, float]:
    """Seconds for all systems."""
    start = np.random.default_rng(0).normal(size=(_SYSTEMS, 3)).astype(dtype)
    y0, t = nm.asarray(start), nm.asarray(_TIMES.astype(dtype))
    f = _lorenz(nm.stack)
    ours = nm.jit(nm.vmap(lambda y: nm.integrate.odeint(f, y, t, rtol=1e-6, atol=1e-8)))
    runs = {"numus": lambda: ours(y0).numpy()}
    jax = _installed("jax")
    if jax is not None:
        jax.config.update("jax_enable_x64", dtype is np.float64)
        jnp, ode = jax.numpy, importlib.import_module("jax.experimental.ode")
        g, times, first = _lorenz(jnp.stack), jnp.asarray(t.numpy()), jnp.asarray(start)
        theirs = jax.jit(jax.vmap(lambda y: ode.odeint(g, y, times, rtol=1e-6, atol=1e-8)))
        runs["jax"] = lambda: theirs(first).block_until_ready()
    scipy = _installed("scipy.integrate")
    if scipy is not None:
        plain = _lorenz(list)

        def loop() -> None:
            for row in start[:_LOOPED]:
                scipy.odeint(plain, row, _TIMES, rtol=1e-6, atol=1e-8)

        runs["scipy"] = loop
    found = _in_turns(runs)
    if "scipy" in found:
        found["scipy"] *= _SYSTEMS / _LOOPED
    return found


def rosenbrock(start: Any) -> dict[str, float]:
    """Seconds to the minimum from a start, in float64."""

    def f(x: Any) -> Any:
        return nm.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    x0 = np.asarray(start, dtype=np.float64)
    ours = nm.jit(lambda x: nm.optimize.minimize(f, x, method="L-BFGS-B"))
    runs = {"numus": lambda: ours(nm.asarray(x0)).x.numpy()}
    scipy = _installed("scipy.optimize")
    if scipy is not None:
        runs["scipy"] = lambda: scipy.minimize(
            scipy.rosen, x0, jac=scipy.rosen_der, method="L-BFGS-B"
        )
    return _in_turns(runs)


def main() -> None:
    rows = {
        "1,000 Lorenz systems, float32": lorenz(np.float32),
        "1,000 Lorenz systems, float64": lorenz(np.float64),
        "L-BFGS, Rosenbrock of 1,000 from 0.5": rosenbrock(np.full(1000, 0.5)),
        "L-BFGS, Rosenbrock of 1,000 from (-1.2, 1)": rosenbrock(np.tile([-1.2, 1.0], 500)),
    }
    for name, times in rows.items():
        shown = [f"{1e3 * times[lib]:.1f} ms" if lib in times else "" for lib in _LIBRARIES]
        print(f"| {name} | {' | '.join(shown)} |")


_LIBRARIES = ("numus", "scipy", "jax")

if __name__ == "__main__":
    main()
