"""A model, a compiled step, derivatives and containers, checked strictly."""

from __future__ import annotations

import numus as nm
from numus import nn


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 2)

    def forward(self, x: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        h = nm.relu(self.first(x))
        return self.second(h), h


def loss(w: nm.Tensor, x: nm.Tensor) -> nm.Tensor:
    return ((x @ w) ** 2).mean()


@nm.jit
def step(w: nm.Tensor, x: nm.Tensor, rate: float) -> nm.Tensor:
    return w - rate * nm.grad(loss)(w, x)


def main() -> None:
    net = Net(8)
    x = nm.random.normal((16, 4))
    y, h = net(x)
    print(y.shape, h.sum().item())
    w = nm.ones((4, 1))
    w = step(w, x, 0.1)
    value, slope = nm.value_and_grad(loss)(w, x)
    print(value.item(), slope.shape)
    optimizer = nm.optim.Adam(net.parameters(), lr=1e-3)
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()
    n: int = x.shape[0]
    print(n, [float(v) for v in x[0].tolist()])


def more() -> None:
    x = nm.ones(3)
    g = nm.grad(loss, argnums=(0, 1))(x, x)
    print(nm.jit(lambda x: x + 1)(x).sum(), g)
    slope = nm.jit(nm.grad(loss))
    print(slope(nm.ones((3, 1)), nm.ones((2, 3))).shape)
    f = nm.jit(static_argnums=1)(lambda x, n: x * n)
    print(f(x, 2))
    params = {"w": x, "b": x}

    def objective(params: dict[str, nm.Tensor], x: nm.Tensor) -> nm.Tensor:
        return (params["w"] * x + params["b"]).sum()

    value, grads = nm.value_and_grad(objective)(params, x)
    print(value, grads["w"].shape)


if __name__ == "__main__":
    main()
    more()
