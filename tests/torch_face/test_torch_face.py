"""Signatures, defaults and return types of `numus.torch` are PyTorch's."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numus as nm
import numus.torch as torch
from numus.torch import nn
from numus.torch.nn import functional as F

X = [[1.0, 5.0, 3.0], [7.0, 2.0, 6.0]]


def x():
    return torch.tensor(X)


def test_results_are_tensors_of_the_face():
    a = x()
    made = [
        a + 1, 1 - a, a @ a.T, a.exp(), a[0], a.view(-1), a.sum(), torch.cat([a, a]), a.clone(),
        a > 2, -a, a.data, a.detach(), a.to(torch.float64), torch.zeros(2), copy.deepcopy(a),
        pickle.loads(pickle.dumps(a)), F.relu(a), nn.Linear(3, 2)(a), a.mT, *a, *a.split(1),
    ]  # fmt: skip
    assert all(type(m) is torch.Tensor for m in made)
    assert type(nm.asarray(X) * 1) is nm.Tensor
    assert isinstance(a, nm.Tensor)


def test_reductions_with_dim():
    a = x()
    values, indices = a.max(1)
    assert values.tolist() == [5.0, 7.0]
    assert indices.tolist() == [1, 0]
    assert a.max(dim=0, keepdim=True).values.shape == (1, 3)
    assert a.max().item() == 7
    assert torch.max(a, -a).tolist() == X
    assert a.min(1).indices.tolist() == [0, 1]
    assert a.sum(1, True).shape == (2, 1)
    assert a.mean(dim=(0, 1)).item() == 4
    assert a.std().item() == pytest.approx(np.std(X, ddof=1))
    assert a.var(1, unbiased=False).tolist() == pytest.approx(np.var(X, 1))
    assert a.std(0, correction=0).tolist() == pytest.approx(np.std(X, 0))
    assert a.median().item() == 3
    assert a.median(1).indices.tolist() == [2, 2]
    assert a.sort(descending=True).indices.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert torch.norm(a, dim=1).tolist() == pytest.approx(np.linalg.norm(X, axis=1))
    assert a.argmax().item() == 3
    assert a.argmax(dim=1).tolist() == [1, 0]
    assert a.all(dim=1).tolist() == [True, True]
    assert a.quantile(0.5, dim=1).tolist() == [3, 6]


def test_engine_spelling_keeps_the_engines_meaning():
    a = x()
    assert a.max(axis=1).tolist() == [5.0, 7.0]
    assert a.std(axis=0).tolist() == pytest.approx(np.std(X, 0))
    assert a.size == 6
    assert a.size() == (2, 3)
    assert a.size(-1) == 3


def test_shapes():
    a = torch.arange(12).reshape(3, 4)
    assert [p.shape for p in a.split(2)] == [(2, 4), (1, 4)]
    assert [p.shape for p in torch.split(a, [1, 3], dim=1)] == [(3, 1), (3, 3)]
    assert a.transpose(0, 1).shape == (4, 3)
    assert torch.transpose(a, 1, 0).shape == (4, 3)
    assert a.permute(1, 0).shape == (4, 3)
    assert a.repeat(2, 1).shape == (6, 4)
    assert a.unsqueeze(0).squeeze(0).squeeze(1).shape == (3, 4)
    assert a.flip(0, 1)[0, 0].item() == 11
    assert a.roll(1, dims=0)[0, 0].item() == 8
    assert a.nonzero().shape == (11, 2)
    assert len(a.nonzero(as_tuple=True)) == 2
    assert torch.meshgrid(torch.arange(2), torch.arange(3))[0].shape == (2, 3)
    assert a.numel() == 12
    assert a.dim() == 2
    assert a.t().shape == (4, 3)
    assert a.shape.numel() == 12
    assert torch.tril_indices(3, 3).shape == (2, 6)
    assert torch.stack([a, a], dim=-1).shape == (3, 4, 2)


def test_creation():
    assert torch.zeros(2, 3).shape == torch.zeros((2, 3)).shape == (2, 3)
    assert torch.tensor([1, 2]).dtype is torch.int64
    assert torch.arange(0, 4, 2).tolist() == [0, 2]
    assert torch.full((2,), 3.0).tolist() == [3, 3]
    assert torch.eye(2).sum().item() == 2
    assert torch.linspace(0, 1, steps=3).tolist() == [0, 0.5, 1]
    assert torch.Tensor(2, 3).shape == (2, 3)
    assert torch.Tensor([1, 2]).dtype is torch.float32
    assert torch.zeros(2, requires_grad=True).requires_grad
    shared = nm.ones(2)
    assert type(torch.as_tensor(shared)) is torch.Tensor
    assert type(shared) is nm.Tensor


def test_in_place():
    a = torch.zeros(3)
    a.add_(2, alpha=1).mul_(3).clamp_(0, 5).copy_(a)
    assert a.tolist() == [5, 5, 5]
    a.fill_(1).zero_()
    assert a.tolist() == [0, 0, 0]
    a.data.uniform_(1, 2)
    assert 1 <= a.min().item() < 2
    out = torch.empty(2)
    assert torch.sum(torch.ones(3, 2), dim=0, out=out) is out
    assert out.tolist() == [3, 3]


def test_random_numbers_follow_seeds():
    torch.manual_seed(3)
    first = torch.randn(2, 3)
    torch.manual_seed(3)
    assert torch.equal(first, torch.randn(2, 3))
    g = torch.Generator().manual_seed(1)
    drawn = torch.randperm(8, generator=g)
    assert torch.equal(drawn, torch.randperm(8, generator=g.manual_seed(1)))
    assert torch.randint(10, (3,)).max() < 10
    assert torch.randint(5, 6, (2,)).tolist() == [5, 5]


def test_lists_do_not_register_modules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = nn.ModuleList([nn.Linear(2, 2)])
            self.plain = [nn.Linear(2, 2)]
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8)

    net = Net()
    assert "plain.0.weight" not in dict(net.named_parameters())
    assert all(isinstance(p, nn.Parameter) for p in net.parameters())
    assert sum(isinstance(m, nn.Linear) for m in net.modules()) == 4
    assert isinstance(net.kept, nn.Module)
    assert not isinstance(net.kept[0], nn.Conv2d)
    assert issubclass(nn.Linear, nn.Module)


def test_hooks_and_gradients_are_of_the_face():
    seen = []
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda m, i, o: seen.append(o))
    layer.register_full_backward_hook(lambda m, gi, go: seen.extend(go))
    a = torch.ones(1, 2, requires_grad=True)
    a.register_hook(seen.append)
    layer(a).sum().backward()
    assert all(type(s) is torch.Tensor for s in (*seen, a.grad, layer.weight.grad))
    assert len(seen) == 3


def test_function_with_its_own_derivative():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * a * a

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            assert type(a) is type(g) is torch.Tensor
            return 3 * a * a * g

    a = torch.tensor([2.0], requires_grad=True)
    Cube.apply(a).sum().backward()
    assert a.grad.tolist() == [12.0]
    assert torch.autograd.grad((a * a).sum(), a)[0].tolist() == [4.0]


def test_an_optimiser_of_ones_own():
    class Descent(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["steps"] = state.get("steps", 0) + 1
                    p.add_(p.grad, alpha=-group["lr"])

    w = nn.Parameter(torch.tensor([4.0]))
    opt = Descent([w], lr=0.25)
    for _ in range(3):
        opt.zero_grad()
        (w * w).sum().backward()
        opt.step()
    assert w.item() == 0.5
    assert opt.state[w]["steps"] == 3


def test_saving_and_loading():
    file = io.BytesIO()
    torch.save({"net": nn.Linear(2, 1).state_dict(), "epoch": 3, "names": ["a", ("b", None)]}, file)
    file.seek(0)
    found = torch.load(file, map_location="cpu")
    assert found["epoch"] == 3
    assert found["names"] == ["a", ("b", None)]
    assert type(found["net"]["weight"]) is torch.Tensor
    nn.Linear(2, 1).load_state_dict(found["net"])
    with pytest.raises(RuntimeError, match="does not fit"):
        nn.Linear(3, 1).load_state_dict(found["net"])


STORED = Path(__file__).with_name("saved_by_pytorch.pt")


def test_files_of_pytorch_are_read_without_running_their_code():
    found = torch.load(STORED)
    assert found["step"] == 3
    assert found["model"]["weight"].shape == (3, 2)
    assert found["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(nm.errors.RecordError, match=r"numus\.torch\.load"):
        nm.load(STORED)
    with pytest.raises(nm.errors.RecordError, match="not run"):
        torch.load(STORED.with_name("module_of_pytorch.pt"))


def test_compiled():
    @torch.compile
    def f(a):
        return a.max(1).values + a.std()

    assert torch.allclose(f(x()), torch.tensor([5.0, 7.0]) + x().std())
    net = torch.compile(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    with torch.no_grad():
        assert net(x()).max(1).indices.shape == (2,)
    assert len(list(net.parameters())) == 2


def test_compiled_modules_see_their_flags_and_copies_are_apart():
    net = torch.compile(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)))
    twin = copy.deepcopy(net)
    twin[0].weight.data.zero_()
    twin[0].bias.data.zero_()
    with torch.no_grad():
        net.train()(torch.ones(50, 3))
        assert (net.eval()(x()) != 0).all()
        assert (net.train()(torch.ones(50, 3)) == 0).any()
        assert (twin.eval()(x()) == 0).all()


def test_properties_of_modules_can_be_set():
    class Scaled(nn.Module):
        @property
        def factor(self):
            return self._factor

        @factor.setter
        def factor(self, value):
            self._factor = value * 2

    net = Scaled()
    net.factor = 3
    assert net.factor == 6


def test_contexts():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x() @ x().T).dtype is torch.bfloat16
    with torch.no_grad():
        assert not torch.is_grad_enabled()
    assert torch.cuda.is_available() == (torch.cuda.device_count() > 0)
    assert torch.device("cpu").type == "cpu"
    assert torch.func.grad(lambda a: a.std())(x()).shape == (2, 3)


def test_names_are_few_at_the_start():
    # files: aliases of rooms (torch.optim.adam) take none
    code = "import sys, numus.torch\n"
    code += "rooms = [m for n, m in sys.modules.items() if 'numus.torch' in n]\n"
    code += "print(len([m for m in rooms if hasattr(m, '__file__')]))"
    code += "\nassert 'numus.nn' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 9


def test_distributions():
    from numus.torch.distributions import Categorical, Distribution, Normal, kl_divergence

    logits = torch.zeros(4, requires_grad=True)
    policy = Categorical(logits=logits)
    action = policy.sample((5,))
    policy.log_prob(action).mean().backward()
    normal = Normal(torch.zeros(3), torch.ones(3))
    found = [action, policy.probs, policy.entropy(), logits.grad, normal.rsample(), normal.stddev]
    assert all(type(f) is torch.Tensor for f in (*found, kl_divergence(normal, normal)))
    assert isinstance(normal, Distribution)
    assert policy.probs.max(0).values.item() == 0.25
