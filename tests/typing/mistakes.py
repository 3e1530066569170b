"""Calls that a type checker must report: one on each line that says so."""

import numus as nm
from numus import nn


@nm.jit
def step(w: nm.Tensor, rate: float) -> nm.Tensor:
    return w - rate


class Net(nn.Module):
    def forward(self, x: nm.Tensor) -> tuple[nm.Tensor, int]:
        return x, 1


step(nm.ones(3))  # error: an argument is missing
step("x", 0.1)  # error: not a tensor
nm.rellu(nm.ones(3))  # error: a typo
nm.ones(3).summ()  # error: a typo
Net()()  # error: forward has an argument
Net()(nm.ones(3)).sum()  # error: a tuple
nm.vmap(step)(nm.ones(3), "0.1")  # error: not a number
nm.grad(lambda x: x * x)(2.0).summ()  # error: a gradient is a tensor
nm.grad(step)(nm.ones(3))  # error: an argument is missing
nm.hessian(step)(nm.ones(3))  # error: an argument is missing
nm.grad(step, argnums=(0, 1))(nm.ones(3))  # error: an argument is missing
nm.value_and_grad(step, argnums=(0,))(nm.ones(3), "0.1")  # error: not a number
