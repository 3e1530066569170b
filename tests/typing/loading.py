"""A dataset, a loader, a trained step."""

from collections.abc import Iterator

import numus as nm
from numus import data, nn, optim


def squares(count: int) -> tuple[nm.Tensor, nm.Tensor]:
    x = nm.linspace(-1.0, 1.0, count).reshape(count, 1)
    return x, x * x


def batches(count: int) -> Iterator[tuple[nm.Tensor, nm.Tensor]]:
    yield from data.DataLoader(data.TensorDataset(*squares(count)), batch_size=8, shuffle=True)


model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
opt = optim.Adam(model.parameters(), lr=0.01)


@nm.jit
def step(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
    opt.zero_grad()
    loss: nm.Tensor = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss


history: list[float] = [step(x, y).item() for x, y in batches(32)]
print(history[-1])
