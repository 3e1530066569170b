"""Special functions, statistics, draws, distances, differential equations and minimisation.

The column of NumPy is that of SciPy where it has the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm

from .libraries import Function, _module, jax, jnp, torch
from .workloads import Inputs, M, add_workload

scipy = _module("scipy")
if scipy:
    scipy.special, scipy.stats = _module("scipy.special"), _module("scipy.stats")
    scipy.integrate, scipy.optimize = _module("scipy.integrate"), _module("scipy.optimize")
    scipy.spatial = _module("scipy.spatial")


def _uniform(low: float, high: float, *shape: int, count: int = 1) -> Callable[..., Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        return [rng.uniform(low, high, shape).astype(np.float32) for _ in range(count)]

    return make


def _normal(*shape: int, dtype: type = np.float32) -> Callable[..., Inputs]:
    return lambda rng: [rng.standard_normal(shape).astype(dtype)]


def _add(name: str, inputs: Callable[..., Inputs], **functions: Function | None) -> None:
    """A row with the libraries that have the function."""
    add_workload(name, inputs, **{k: f for k, f in functions.items() if f is not None})


def _special(name: str, size: str, inputs: Callable[..., Inputs]) -> None:
    in_torch = getattr(torch.special, name, None) if torch else None
    if in_torch is None and torch:
        in_torch = getattr(torch.special, f"bessel_{name}", None)
    in_jax = getattr(jax.scipy.special, name, None) if jax else None
    _add(
        f"special_{name}_{size}", inputs, numus=getattr(nm.special, name), torch=in_torch,
        numpy=getattr(scipy.special, name) if scipy else None, jax=in_jax,
    )  # fmt: skip


add_workload(
    "special_erf_lgamma_4M",
    _uniform(0.5, 20, 4 * M),
    numus=lambda x: nm.special.erf(x) + nm.special.lgamma(x),
    numpy=lambda x: scipy.special.erf(x) + scipy.special.gammaln(x),
    torch=lambda x: torch.erf(x) + torch.lgamma(x),
    jax=lambda x: jax.scipy.special.erf(x) + jax.scipy.special.gammaln(x),
)
_special("j0", "4M", _uniform(0, 30, 4 * M))
_special("i0e", "1M", _uniform(0, 30, M))
_special("k1", "1M", _uniform(0.1, 30, M))
_special("gammainc", "1M", _uniform(0.1, 10, M, count=2))
_add(
    "special_betainc_1M",
    lambda rng: [*_uniform(0.5, 10, M, count=2)(rng), *_uniform(0, 1, M)(rng)],
    numus=nm.special.betainc,
    numpy=scipy.special.betainc if scipy else None,
    jax=jax.scipy.special.betainc if jax else None,
)

add_workload(
    "median_16M",
    _normal(16 * M),
    numus=lambda x: nm.median(x),
    numpy=lambda x: np.median(x),
    torch=lambda x: torch.median(x),
    jax=lambda x: jnp.median(x),
)
add_workload(
    "quantile_16M",
    _normal(16 * M),
    numus=lambda x: nm.quantile(x, 0.3),
    numpy=lambda x: np.quantile(x, np.float32(0.3)),
    torch=lambda x: torch.kthvalue(x, int(0.3 * x.shape[0])).values,
    jax=lambda x: jnp.quantile(x, 0.3),
)


def _draw(name: str, parameter: float) -> None:
    generator = np.random.default_rng(0)
    _add(
        f"draw_{name}_{parameter:g}_4M",
        lambda rng: [np.full(4 * M, parameter, np.float32)],
        numus=lambda p: getattr(nm.random, name)((4 * M,), p[0], key=nm.random.key(0)),
        numpy=lambda p: getattr(generator, name)(p),
        torch=(lambda p: torch.poisson(p)) if name == "poisson" else torch._standard_gamma,
        jax=lambda p: getattr(jax.random, name)(jax.random.key(0), p),
    )


_draw("gamma", 2.5)
_draw("poisson", 4)

if scipy:
    add_workload(
        "sobol_2^20x64",
        lambda rng: [],
        numus=lambda: nm.random.sobol(1 << 20, 64),
        numpy=lambda: scipy.stats.qmc.Sobol(64, scramble=False).random_base2(20),
        torch=lambda: torch.quasirandom.SobolEngine(64).draw(1 << 20),
    )
    add_workload(
        "kde_10000",
        lambda rng: [rng.standard_normal(10_000), rng.standard_normal(10_000)],
        numus=lambda x, at: nm.stats.gaussian_kde(x)(at),
        numpy=lambda x, at: scipy.stats.gaussian_kde(x)(at),
        jax=lambda x, at: jax.scipy.stats.gaussian_kde(x)(at),
    )
    add_workload(
        "cdist_4096x64",
        lambda rng: [*_normal(4096, 64)(rng), *_normal(4096, 64)(rng)],
        numus=lambda a, b: nm.distance.cdist(a, b),
        numpy=lambda a, b: scipy.spatial.distance.cdist(a, b),
        torch=lambda a, b: torch.cdist(a, b),
    )
add_workload(
    "corrcoef_2000",
    _normal(2000, 2000),
    numus=lambda x: nm.corrcoef(x),
    numpy=lambda x: np.corrcoef(x),
    torch=lambda x: torch.corrcoef(x),
    jax=lambda x: jnp.corrcoef(x),
)


def rosenbrock(xp: Any) -> Callable[[Any], Any]:
    return lambda x: xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def _slope(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    inner = x[1:] - x[:-1] ** 2
    slope = np.zeros_like(x)
    slope[:-1] = -400 * x[:-1] * inner - 2 * (1 - x[:-1])
    slope[1:] += 200 * inner
    return slope


_minimized = nm.jit(lambda x: nm.optimize.minimize(rosenbrock(nm), x, method="L-BFGS-B").x)
if scipy:
    add_workload(
        "lbfgs_rosenbrock_1000",
        lambda rng: [np.tile([-1.2, 1.0], 500)],
        numus=_minimized,
        numpy=lambda x: scipy.optimize.minimize(rosenbrock(np), x, jac=_slope, method="L-BFGS-B").x,
    )


def _lorenz(xp: Any) -> Callable[[Any, Any], Any]:
    def slope(t: Any, y: Any) -> Any:
        a, b, c = y[0], y[1], y[2]
        return xp.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c])

    return slope


def _solved(y: Any) -> Any:
    times = nm.linspace(0, 2, 21, dtype=nm.float64)
    return nm.integrate.solve_ivp(_lorenz(nm), (0.0, 2.0), y, t_eval=times, rtol=1e-6, atol=1e-9).y


_all_solved = nm.jit(nm.vmap(_solved))


def _solved_in_turn(starts: Any) -> Any:
    times = np.linspace(0, 2, 21)
    run = scipy.integrate.solve_ivp
    return [
        run(_lorenz(np), (0.0, 2.0), y, t_eval=times, rtol=1e-6, atol=1e-9).y for y in starts[:50]
    ]


def _solved_by_jax(starts: Any) -> Any:
    from jax.experimental.ode import odeint

    times = jnp.linspace(0, 2, 21)
    slope = _lorenz(jnp)
    solve = lambda y: odeint(lambda y, t: slope(t, y), y, times, rtol=1e-6, atol=1e-9)
    return jax.vmap(solve)(starts)


if scipy:
    # SciPy solves 50 of the thousand: its time counts twenty times.
    add_workload(
        "lorenz_1000_(scipy:_50)",
        lambda rng: [rng.normal(1, 0.1, (1000, 3))],
        numus=_all_solved,
        numpy=_solved_in_turn,
        jax=_solved_by_jax,
    )
