"""How many kernels a step becomes: counted on the null device."""

import numpy as np
import pytest

import numus as nm
from numus import nn, optim

NULL = nm.device("null")
ELEMENTS = 4 * 64 * 32

# kernels, and tensors of all parameters' size that are read and written
BUDGETS = {
    "SGD": (lambda p: optim.SGD(p), 1, 2, 1),
    "SGD with momentum": (lambda p: optim.SGD(p, momentum=0.9, nesterov=True), 1, 3, 2),
    "AdamW": (lambda p: optim.AdamW(p), 2, 4, 3),  # one of them is the count of steps
    "AdamW with amsgrad": (lambda p: optim.AdamW(p, amsgrad=True), 2, 5, 4),
    "Lion": (lambda p: optim.Lion(p, weight_decay=0.1), 1, 3, 2),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_all_parameters_in_one_kernel(name):
    make, kernels, read, written = BUDGETS[name]

    def on_null():
        return nm.asarray(np.zeros((64, 32), np.float32), device=NULL)

    params = [nn.Parameter(on_null()) for _ in range(4)]
    opt = make(params)
    for _ in range(2):  # the first finds state that is still a constant
        for p in params:
            p.grad = on_null()
        NULL.runtime.reset()
        opt.step()
        counts = NULL.runtime.reset()
    assert counts.kernels <= kernels
    few = 64  # the group's numbers
    assert counts.bytes_read <= read * ELEMENTS * 4 + few
    assert counts.bytes_written <= written * ELEMENTS * 4 + few


def test_gradients_of_weights_lie_as_the_weights_do():
    layer = nn.Linear(5, 3)
    (layer(nm.random.normal((7, 5))) * nm.arange(3.0)).sum().backward()
    nm.eval(layer.weight.grad)
    assert layer.weight.grad._node.view.strides == (5, 1)
