"""Arrays, random numbers, linear algebra and transforms, checked strictly."""

from __future__ import annotations

from collections.abc import Callable

import numus as nm


def power_iteration(a: nm.Tensor, steps: int, key: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
    v = nm.random.normal((a.shape[-1],), key=key)
    for _ in range(steps):
        v = a @ v
        v = v / nm.sqrt((v * v).sum())
    return v @ a @ v, v


def rosenbrock(x: nm.Tensor) -> nm.Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def descend(f: Callable[[nm.Tensor], nm.Tensor], x: nm.Tensor, rate: float) -> nm.Tensor:
    slope = nm.jit(nm.grad(f))
    for _ in range(10):
        x = x - rate * slope(x)
    return x


def spectrum(signal: nm.Tensor) -> nm.Tensor:
    return nm.abs(nm.fft.rfft(signal * nm.signal.windows.hann(signal.shape[-1]))) ** 2


def main() -> None:
    a = nm.random.normal((5, 5))
    value, vector = power_iteration(a @ a.T, 20, nm.random.key(0))
    x = descend(rosenbrock, nm.zeros(4), 1e-4)
    curvature = nm.hessian(rosenbrock)(x)
    batch = nm.vmap(rosenbrock)(nm.random.normal((3, 4)))
    total: float = batch.sum().item()
    print(value.shape, vector.shape, curvature.shape, total, spectrum(nm.ones(64)).shape)
    print(nm.linalg.solve(a, nm.ones(5)).dtype, nm.where(a > 0, a, 0.0), nm.stats.zscore(a))


if __name__ == "__main__":
    main()
