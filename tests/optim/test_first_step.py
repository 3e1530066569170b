"""The first step of eager training is the program of those that follow."""

import numpy as np
import pytest

import numus as nm
from numus import nn, optim


@pytest.mark.parametrize(
    "make", [optim.AdamW, optim.Adam, lambda p: optim.SGD(p, 0.1, momentum=0.9)]
)
def test_later_steps_compile_no_kernels(make):
    nm.random.seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = make(model.parameters())
    assert all(p._node.view is not None for p in model.parameters())
    x = nm.asarray(np.ones((4, 5), "float32"))
    log = nm.device("cpu").runtime.compile_log
    counts = []
    for _ in range(4):
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        counts.append(len(log))
    assert counts[0] == counts[-1], [record.name for record in list(log)[counts[0] - counts[-1] :]]


def test_states_have_memory_of_their_own():
    """Equal zeros of one evaluation would share theirs, where the first step could not write."""
    p = nm.ones((1 << 19,)).requires_grad_()
    state = optim.AdamW([p]).state[p]
    memories = [state[name]._node.view.storage.memory for name in ("exp_avg", "exp_avg_sq")]
    assert memories[0] is not memories[1]
