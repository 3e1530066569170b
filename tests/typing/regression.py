"""Gradient descent on a function of a dict of parameters."""

import numus as nm

Params = dict[str, nm.Tensor]


def predict(params: Params, x: nm.Tensor) -> nm.Tensor:
    return x @ params["w"] + params["b"]


def loss(params: Params, x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
    return ((predict(params, x) - y) ** 2).mean()


@nm.jit
def update(params: Params, x: nm.Tensor, y: nm.Tensor) -> Params:
    grads: Params = nm.grad(loss)(params, x, y)
    return {name: p - 0.1 * grads[name] for name, p in params.items()}


x = nm.random.normal((32, 3))
y = x.sum(axis=1)
params: Params = {"w": nm.zeros(3), "b": nm.zeros(())}
for _ in range(5):
    params = update(params, x, y)
final: float = loss(params, x, y).item()
print(final)
