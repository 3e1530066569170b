"""vmap, jit, value_and_grad and their kin keep the signatures of functions."""

from collections.abc import Callable

import numus as nm


def energy(position: nm.Tensor, stiffness: float = 1.0) -> nm.Tensor:
    return stiffness * (position**2).sum() / 2


fast: Callable[[nm.Tensor], nm.Tensor] = nm.jit(energy)
batched = nm.vmap(energy)
force = nm.grad(energy)
cheap = nm.checkpoint(energy)


@nm.jit(static_argnames="steps")
def fall(position: nm.Tensor, steps: int) -> nm.Tensor:
    for _ in range(steps):
        position = position - 0.1 * force(position, stiffness=2.0)
    return position


end: nm.Tensor = fall(nm.ones(3), steps=4)
energies: nm.Tensor = batched(nm.ones((5, 3)))
cubic: nm.Tensor = nm.grad(lambda x: (x**3).sum())(nm.ones(3))
number: nm.Tensor = nm.grad(nm.grad(lambda x: x**3))(2.0)
quick: nm.Tensor = nm.jit(nm.grad(lambda x: (x * x).sum()))(nm.ones(3))
both: nm.Tensor = nm.value_and_grad(lambda x: (x * x).sum())(nm.ones(3))[1]
value, slope = nm.value_and_grad(energy)(nm.ones(3))
again: nm.Tensor = cheap(nm.ones(3), stiffness=3.0)
print(end, energies.shape, value, slope, again, fast(nm.ones(3)))
bowl: nm.Tensor = nm.hessian(lambda x: (x**3).sum())(nm.ones(3))
curved: nm.Tensor = nm.hessian(energy)(nm.ones(3), stiffness=2.0)
slopes: nm.Tensor = nm.jacrev(lambda x: x * x)(nm.ones(3))
dots: nm.Tensor = nm.vmap(lambda a, b: (a * b).sum(), in_axes=(0, None))(
    nm.ones((2, 3)), nm.ones(3)
)


def spring(a: nm.Tensor, b: nm.Tensor, rest: float = 1.0) -> nm.Tensor:
    return ((a - b) ** 2).sum() - rest


first, second = nm.grad(spring, argnums=(0, 1))(nm.ones(2), nm.zeros(2), rest=2.0)
total, (left, right) = nm.value_and_grad(spring, argnums=(0, 1))(nm.ones(2), nm.zeros(2))
last: nm.Tensor = nm.grad(spring, argnums=1)(nm.ones(2), nm.zeros(2))
print(bowl.shape, curved.shape, slopes.shape, dots.shape, first, second, total, left, right, last)
print(cubic, number, quick, both)
