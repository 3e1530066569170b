"""Modules: what they find, save, load, move, and tell."""

import copy
import pickle

import numpy as np
import pytest

import numus as nm
from numus import nn, optim
from numus.errors import IndexRangeError, ShapeError
from numus.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(nm.ones(width))
        self.linear = nn.Linear(width, width)
        self.register_buffer("seen", nm.zeros(()))
        self.register_buffer("cache", nm.zeros(3), persistent=False)

    def forward(self, x):
        return self.linear(self.norm(x)) * self.scale


class Net(nn.Module):
    def __init__(self, width=4):
        self.layers = [Block(width), Block(width)]  # a plain list
        self.heads = {"a": nn.Linear(width, 2)}
        self.note = "not a module"

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.heads["a"](x)


def test_attributes_are_found_by_themselves_own_ones_first():
    names = [name for name, _ in Net().named_parameters()]
    assert names[:5] == [
        "layers.0.scale",
        "layers.0.norm.weight",
        "layers.0.norm.bias",
        "layers.0.linear.weight",
        "layers.0.linear.bias",
    ]
    assert names[-2:] == ["heads.a.weight", "heads.a.bias"]
    assert [n for n, _ in Net().named_buffers()][:2] == ["layers.0.seen", "layers.0.cache"]
    assert Net().num_parameters() == 2 * (4 + 8 + 20) + 10


def test_every_parameter_gets_a_gradient():
    net = Net()
    net(nm.ones((3, 4))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_names_lead_to_members():
    net = Net()
    assert net.get_submodule("layers.1.linear") is net.layers[1].linear
    assert net.get_parameter("heads.a.bias") is net.heads["a"].bias
    with pytest.raises(AttributeError, match="linera"):
        net.get_submodule("layers.1.linera")


def test_tied_parameters_are_one():
    tied = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    tied[1].weight = tied[0].weight
    assert len(list(tied.parameters())) == 1
    assert set(tied.state_dict()) == {"0.weight", "1.weight"}
    twice = tied.named_parameters("m", remove_duplicate=False)
    assert [name for name, _ in twice] == ["m.0.weight", "m.1.weight"]
    tied(nm.asarray([1, 2])).sum().backward()
    both = tied[0].weight.grad
    twin = copy.deepcopy(tied)
    assert twin[0].weight is twin[1].weight
    assert twin[0].weight is not tied[0].weight
    np.testing.assert_array_equal(twin[0].weight.grad.numpy(), both.numpy())


def test_state_goes_over_by_name():
    first, second = Net(), Net()
    state = first.state_dict()
    assert "layers.0.seen" in state
    assert "layers.0.cache" not in state
    assert not any(t.requires_grad for t in state.values())
    second.load_state_dict({n: t.numpy() for n, t in state.items()})
    x = nm.random.normal((2, 4))
    nm.eval(x, second)  # what is still to be computed would be part of another program
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())
    assert set(first.state_dict("model.")) == {f"model.{n}" for n in state}
    second.load_state_dict(first.state_dict("model."), prefix="model.")


def test_a_state_that_does_not_fit_changes_nothing():
    net = Net()
    before = {n: t.numpy() for n, t in net.state_dict().items()}
    state = {n: t + 1 for n, t in net.state_dict().items()}
    state["extra"] = state.pop("layers.0.scale")
    with pytest.raises(ValueError, match=r"missing: layers.0.scale\n  unexpected: extra"):
        net.load_state_dict(state)
    state["heads.a.weight"] = nm.zeros((3, 4))
    with pytest.raises(ValueError, match=r"heads.a.weight: shape \(3, 4\) does not fit \(2, 4\)"):
        net.load_state_dict(state, strict=False)
    for name, tensor in net.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])
    del state["heads.a.weight"]
    answer = net.load_state_dict(state, strict=False)
    assert answer.unexpected_keys == ["extra"]
    assert answer.missing_keys == ["layers.0.scale", "heads.a.weight"]


def test_a_state_dict_does_not_follow_the_module():
    layer = nn.Linear(2, 2)
    state = layer.state_dict()
    before = state["weight"].numpy()
    nn.init.zeros_(layer.weight)
    np.testing.assert_array_equal(state["weight"].numpy(), before)


def test_to_changes_values_not_parameters():
    net = Net()
    first = net.layers[0].linear.weight
    net(nm.ones((1, 4))).sum().backward()
    assert net.to("bf16") is net
    assert net.layers[0].linear.weight is first
    assert {p.dtype for p in net.parameters()} == {nm.bfloat16}
    assert first.grad.dtype is nm.bfloat16
    assert first.is_leaf
    assert first.requires_grad
    assert net(nm.ones((1, 4), dtype="bf16")).dtype is nm.bfloat16
    net.to("cpu", nm.float64)
    assert first.dtype is nm.float64
    counts = nn.BatchNorm1d(2).half()
    assert counts.num_batches_tracked.dtype is nm.int64
    assert counts.running_mean.dtype is nm.float16
    net.to(device="cpu")
    assert first.dtype is nm.float64


def test_training_and_use():
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(3)))
    net.eval()
    assert not net[1][0].training
    x = nm.random.normal((4, 3))
    np.testing.assert_allclose(net(x).numpy(), x.numpy() / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert net.train()[1][0].training


def test_dropout_leaves_out_channels_whole():
    x = nm.ones((8, 16, 5, 4))
    y = nn.Dropout2d(0.5)(x).numpy()
    assert set(np.unique(y)) == {0.0, 2.0}
    assert all(np.ptp(y, axis=(2, 3)).reshape(-1) == 0)
    lines = nn.Dropout1d(0.5)(nm.ones((16, 7))).numpy()  # one example: (C, L)
    assert all(np.ptp(lines, axis=1) == 0)
    z = nn.AlphaDropout(0.3)(nm.random.normal((200, 200), key=nm.random.key(0))).numpy()
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03


def test_requires_grad_and_apply():
    net = Net().requires_grad_(False)
    assert net.num_parameters(trainable_only=True) == 0
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[0] == "LayerNorm"
    assert seen[-1] == "Net"


def test_hooks_see_and_change_what_passes():
    layer = nn.Linear(2, 2)
    calls = []
    layer.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    layer.register_forward_hook(lambda m, args, out: calls.append(args[0].tolist()) or out + 1)
    x = nm.ones((1, 2))
    expected = (x * 2) @ layer.weight.T + layer.bias + 1
    np.testing.assert_allclose(layer(x).numpy(), expected.numpy())
    assert calls == [[[2.0, 2.0]]]


def test_backward_hooks_see_gradients_on_both_sides():
    layer = nn.Linear(2, 3)
    seen = {}

    def note(module, grad_input, grad_output):
        seen["in"], seen["out"] = grad_input[0].numpy(), grad_output[0].numpy()
        return (grad_input[0] * 10,)

    handle = layer.register_full_backward_hook(note)
    x = nm.ones((1, 2), requires_grad=True)
    (layer(x) * 2).sum().backward()
    np.testing.assert_array_equal(seen["out"], np.full((1, 3), 2.0))
    np.testing.assert_allclose(x.grad.numpy(), 10 * seen["in"])
    handle.remove()
    x.grad = None
    (layer(x) * 2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), seen["in"])


def test_a_hook_before_the_backward_pass_changes_what_goes_in():
    layer = nn.Linear(2, 3)
    x = nm.ones((1, 2), requires_grad=True)
    layer(x).sum().backward()
    plain = x.grad.numpy()
    x.grad = None
    handle = layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))
    layer(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * plain, rtol=1e-6, atol=1e-6)
    handle.remove()


def test_a_parameter_stays_one():
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"weight\.assign"):
        layer.weight = nm.zeros((2, 2))
    layer.bias = None
    assert [n for n, _ in layer.named_parameters()] == ["weight"]
    again = pickle.loads(pickle.dumps(layer.weight))
    assert isinstance(again, nn.Parameter)
    assert again.requires_grad
    shown = repr(nm.zeros(2))
    assert repr(nn.Parameter(nm.zeros(2))) == f"Parameter({shown})"


def test_containers():
    row = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    row.append(nn.Linear(3, 1))
    row.insert(0, nn.Identity())
    assert [type(m).__name__ for m in row] == ["Identity", "Linear", "ReLU", "Linear"]
    assert row[-1].out_features == 1
    assert len(row[1:3]) == 2
    del row[0]
    assert row(nm.ones((5, 2))).shape == (5, 1)
    named = nn.Sequential({"first": nn.Linear(2, 2), "then": nn.Tanh()})
    assert "first.weight" in named.state_dict()
    modules = nn.ModuleDict({"a": nn.Linear(1, 1)})
    modules["b"] = nn.ReLU()
    assert list(modules) == ["a", "b"]
    assert "a" in modules
    with pytest.raises(KeyError):
        modules["keys"] = nn.ReLU()
    assert modules.pop("b") is not None
    parameters = nn.ParameterList([nm.zeros(2), nm.ones(3)])
    assert [p.size for p in nn.Sequential(nn.Identity(), parameters).parameters()] == [2, 3]
    assert isinstance(nn.ParameterDict({"w": nm.zeros(2)})["w"], nn.Parameter)
    with pytest.raises(IndexError, match="no entry 5"):
        row[5]


def test_repr_and_summary():
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.GELU()))
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Linear(in_features=3, out_features=4, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): GELU(approximate='none')\n"
        "  )\n"
        ")"
    )
    table = net.summary(nm.ones((2, 3)))
    assert "1.0   GELU        (2, 4)           0" in table
    assert net.training
    assert net._hooks is None or not net._hooks.after


def test_embedding_padding_and_tying():
    table = nn.Embedding(5, 3, padding_idx=-1)
    assert table.padding_idx == 4
    assert not table.weight[4].numpy().any()
    table(nm.asarray([[0, 4]])).sum().backward()
    assert table.weight.grad[4].tolist() == [0.0, 0.0, 0.0]
    assert table.weight.grad[0].tolist() == [1.0, 1.0, 1.0]
    frozen = nn.Embedding.from_pretrained(nm.ones((2, 3)))
    assert not frozen.weight.requires_grad
    with pytest.raises(IndexRangeError, match="out of range"):
        table(nm.asarray([5]))


def test_errors_name_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"batch_norm: one value per channel"):
        nn.BatchNorm1d(3)(nm.ones((1, 3)))
    with pytest.raises(ShapeError, match=r"BatchNorm2d: takes 4 axes, not shape \(2, 3\)"):
        nn.BatchNorm2d(3)(nm.ones((2, 3)))
    with pytest.raises(IndexRangeError, match=r"cross_entropy: class 4 is not one of 4"):
        nn.cross_entropy(nm.zeros((2, 4)), nm.asarray([0, 4]))
    with pytest.raises(IndexRangeError, match="class -1"):
        nn.cross_entropy(nm.zeros((2, 4)), nm.asarray([0, -1]))
    with pytest.raises(ShapeError, match="mse_loss"):
        nn.mse_loss(nm.zeros((2, 1)), nm.zeros(2))
    with pytest.raises(ValueError, match="reduction"):
        nn.mse_loss(nm.zeros(2), nm.zeros(2), "average")
    with pytest.raises(
        ShapeError, match="group_norm: 4 channels must be divisible by num_groups=3"
    ):
        nm.group_norm(nm.zeros((2, 4)), 3)


def test_functions_take_narrow_floats():
    x = nm.random.normal((4, 6), key=nm.random.key(1))
    t = nm.asarray([0, 5, 2, 2])
    for f in (nn.mish, nn.selu, lambda v: nn.cross_entropy(v, t), nn.softsign):
        narrow = f(x.astype("bf16"))
        assert narrow.dtype is nm.bfloat16
        wide = f(x.astype("bf16").astype("f32"))
        np.testing.assert_allclose(
            narrow.astype("f32").numpy(), wide.numpy(), rtol=2**-8, atol=1e-30
        )


@pytest.mark.parametrize("call", [nn.ReLU(inplace=True), lambda x: F.relu(x, True)])
def test_in_place_changes_the_input_itself(call):
    x = nm.asarray([-1.0, 2.0], requires_grad=True)
    y = x * 3.0
    z = call(y)
    assert z is y
    (y * z).sum().backward()  # relu(3 x) squared
    assert x.grad.tolist() == [0.0, 36.0]
    with pytest.raises(nm.errors.GradientError, match="relu: a leaf tensor"):
        call(x)


def test_in_place_inside_a_traced_step():
    layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True))
    x = nm.random.normal((4, 3))
    assert nm.allclose(nm.jit(layer)(x), nn.relu(layer[0](x)))


def test_softmax_without_an_axis_says_which_it_takes():
    with pytest.warns(UserWarning, match="over axis 0"):
        y = nn.Softmax()(nm.ones((4, 3, 2)))
    assert y[0, 0, 0].item() == 0.25


def test_hints_of_pytorch_are_taken():
    w = nn.Parameter(nm.ones(2))
    optim.AdamW([w], foreach=True, fused=False, capturable=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fussed'"):
        optim.AdamW([w], fussed=True)
    with pytest.raises(ValueError, match=r"nm\.grad"):
        optim.SGD([w], differentiable=True)
