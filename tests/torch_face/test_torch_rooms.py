"""Modules, gradients and copies that programs for PyTorch rely on."""

import copy
import pickle

import pytest

import numus.torch as torch


def test_modules_that_pytorch_keeps_classes_in():
    from numus.torch.autograd.function import Function
    from numus.torch.distributions.categorical import Categorical
    from numus.torch.distributions.constraints import positive
    from numus.torch.distributions.transforms import AffineTransform
    from numus.torch.nn.modules.batchnorm import _BatchNorm
    from numus.torch.nn.modules.loss import CrossEntropyLoss
    from numus.torch.nn.modules.utils import _pair
    from numus.torch.nn.utils.parametrizations import weight_norm
    from numus.torch.optim.lr_scheduler import _LRScheduler
    from numus.torch.optim.optimizer import Optimizer
    from numus.torch.utils.data.dataset import Dataset

    assert isinstance(torch.nn.BatchNorm2d(3), _BatchNorm)
    assert not isinstance(torch.nn.Linear(1, 1), _BatchNorm)
    assert (_pair(3), _pair([1, 2])) == ((3, 3), (1, 2))
    assert Categorical is torch.distributions.Categorical
    assert CrossEntropyLoss is torch.nn.CrossEntropyLoss
    assert (Optimizer, Dataset) == (torch.optim.Optimizer, torch.utils.data.Dataset)
    assert issubclass(torch.optim.lr_scheduler.StepLR, _LRScheduler)
    assert Function is torch.autograd.Function
    assert None not in (positive, AffineTransform, weight_norm)
    with pytest.raises(ImportError):
        from numus.torch.optim.adam import Adamm  # noqa: F401


def test_gradients_by_autograd():
    x, other = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    y = x**2
    rows = torch.autograd.grad(y, x, torch.eye(3), retain_graph=True, is_grads_batched=True)
    assert rows[0].tolist() == (2 * torch.eye(3)).tolist()
    options = {"retain_graph": True, "only_inputs": True}
    assert torch.autograd.grad(y.sum(), (x, other), allow_unused=True, **options)[1] is None
    zeros = torch.autograd.grad(y.sum(), (x, other), materialize_grads=True, **options)[1]
    assert zeros.tolist() == [0, 0]
    slope, value = torch.func.grad_and_value(lambda v: (v**2).sum())(torch.ones(2))
    assert (slope.tolist(), value.item()) == ([2, 2], 2)


def test_gradcheck_finds_a_wrong_derivative():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.factor * x**2, None

    x = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Cube.apply, (x, 3))
    assert not torch.autograd.gradcheck(Cube.apply, (x, 2), raise_exception=False)
    with pytest.raises(RuntimeError, match="differs from central differences"):
        torch.autograd.gradcheck(Cube.apply, (x, 2))
    with pytest.raises(ValueError, match="no input requires"):
        torch.autograd.gradcheck(lambda x: x, (x.detach(),))


class _Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.inner(x)


def test_compiled_modules_are_copied_and_pickled():
    net, x = torch.compile(_Net()), torch.ones(1, 2)
    expected = net(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(x), expected)
    assert torch.jit.script(net) is net


def test_ensembles_and_averages():
    nets = [torch.nn.Linear(2, 1) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(nets)
    assert not buffers
    call = lambda p, x: torch.func.functional_call(nets[0], p, (x,))
    found = torch.vmap(call, in_dims=(0, None))(params, torch.ones(4, 2))
    assert torch.allclose(found[2], nets[2](torch.ones(4, 2)))
    swa = torch.optim.swa_utils
    for options in (
        {"avg_fn": swa.get_ema_avg_fn(0.5)},
        {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.5)},
    ):
        model = torch.nn.Linear(1, 1, bias=False)
        average = swa.AveragedModel(model, **options)
        for value in (2.0, 4.0):
            model.weight.data.fill_(value)
            average.update_parameters(model)
        assert average.module.weight.item() == 3.0
