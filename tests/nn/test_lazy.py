"""Layers that learn the number of their inputs, and parameters that are computed from others."""

import copy
import inspect

import numpy as np
import pytest

import numus as nm
from numus import nn, optim

LAZY = [
    (nn.LazyLinear, (5,), nn.Linear, (3, 5), (2, 3)),
    (nn.LazyConv1d, (4, 2), nn.Conv1d, (3, 4, 2), (2, 3, 6)),
    (nn.LazyConv2d, (4, 3, 2, 1), nn.Conv2d, (3, 4, 3, 2, 1), (2, 3, 6, 5)),
    (nn.LazyConv3d, (4, 2), nn.Conv3d, (3, 4, 2), (1, 3, 3, 4, 3)),
    (nn.LazyConvTranspose1d, (4, 2, 2), nn.ConvTranspose1d, (3, 4, 2, 2), (2, 3, 6)),
    (nn.LazyConvTranspose2d, (4, 2), nn.ConvTranspose2d, (3, 4, 2), (2, 3, 4, 5)),
    (nn.LazyConvTranspose3d, (4, 2), nn.ConvTranspose3d, (3, 4, 2), (1, 3, 2, 2, 2)),
    (nn.LazyBatchNorm1d, (), nn.BatchNorm1d, (3,), (4, 3)),
    (nn.LazyBatchNorm2d, (1e-3,), nn.BatchNorm2d, (3, 1e-3), (4, 3, 2, 2)),
    (nn.LazyBatchNorm3d, (), nn.BatchNorm3d, (3,), (4, 3, 2, 2, 2)),
    (nn.LazyInstanceNorm1d, (1e-5, 0.1, True), nn.InstanceNorm1d, (3, 1e-5, 0.1, True), (4, 3, 5)),
    (nn.LazyInstanceNorm2d, (), nn.InstanceNorm2d, (3,), (3, 4, 5)),
    (nn.LazyInstanceNorm3d, (), nn.InstanceNorm3d, (3,), (2, 3, 2, 4, 5)),
]


@pytest.mark.parametrize(("kind", "args", "plain", "whole", "shape"), LAZY)
def test_lazy_layers_become_plain_ones(kind, args, plain, whole, shape):
    nm.random.seed(3)
    lazy = kind(*args)
    assert kind.__name__ in repr(lazy)
    held = list(lazy.parameters())
    nm.random.seed(4)
    x = nm.random.normal(shape)
    nm.random.seed(5)
    found = lazy(x)
    nm.random.seed(5)
    made = plain(*whole)
    assert type(lazy) is plain
    assert repr(lazy) == repr(made)
    assert [id(p) for p in lazy.parameters()] == [id(p) for p in held]
    assert all(type(p) is nn.Parameter for p in held)
    assert list(lazy.state_dict()) == list(made.state_dict())
    for ours, theirs in zip(lazy.parameters(), made.parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    np.testing.assert_allclose(found.numpy(), made(x).numpy(), rtol=1e-5, atol=1e-6)
    other = kind(*args)
    other.load_state_dict(made.state_dict())  # which tells the number as well
    if made.state_dict():
        assert type(other) is plain
    np.testing.assert_allclose(other(x).numpy(), made(x).numpy(), rtol=1e-5, atol=1e-6)


def test_lazy_layers_take_the_arguments_of_plain_ones():
    lazy, plain = inspect.signature(nn.LazyConv2d), inspect.signature(nn.Conv2d)
    assert list(lazy.parameters) == [name for name in plain.parameters if name != "in_channels"]
    with pytest.raises(TypeError, match="LazyConv2d: missing a required argument"):
        nn.LazyConv2d()
    layer = nn.LazyBatchNorm1d(bias=False)
    layer(nm.ones((2, 3)))
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


def test_lazy_models():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match="has no shape yet"):
        optim.SGD(model.parameters())
    model.to(nm.float64).eval()
    calls = []
    model[3].register_forward_hook(lambda *_: calls.append(1))
    x = nm.ones((2, 3, 6, 6), dtype=nm.float64)
    assert model(x).shape == (2, 2)
    assert model[3].weight.dtype == nm.float64
    assert (model[3].in_features, model[3].training, calls) == (64, False, [1])
    model(x)
    assert calls == [1, 1]
    with pytest.raises(nm.errors.TracingError, match="call the model once"):
        nm.jit(nn.LazyLinear(2))(nm.ones((1, 2)))


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T

    def right_inverse(self, x):
        return x.triu()


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


def test_parametrisations():
    p = nn.utils.parametrize
    layer = nn.Linear(3, 3)
    assert not p.is_parametrized(layer)
    p.register_parametrization(layer, "weight", Symmetric())
    assert p.is_parametrized(layer, "weight")
    assert not p.is_parametrized(layer, "bias")
    assert type(layer).__name__ == "ParametrizedLinear"
    names = ["bias", "parametrizations.weight.original"]
    assert [n for n, _ in layer.named_parameters()] == names
    w = layer.weight
    np.testing.assert_array_equal(w.numpy(), w.numpy().T)
    layer.weight = nm.asarray(np.arange(9.0, dtype=np.float32).reshape(3, 3))
    assert layer.weight.tolist() == [[0, 1, 2], [1, 4, 5], [2, 5, 8]]
    p.register_parametrization(layer, "weight", Doubled())
    assert layer.weight.tolist()[0] == [0, 2, 4]
    with pytest.raises(TypeError, match="Doubled has no right_inverse"):
        layer.weight = nm.zeros((3, 3))
    with p.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer.state_dict())
    x = nm.ones((2, 3))
    np.testing.assert_array_equal(twin(x).numpy(), layer(x).numpy())
    layer(x).sum().backward()
    grad = layer.parametrizations["weight"].original.grad.numpy()
    np.testing.assert_array_equal(grad, [[4, 8, 8], [0, 4, 8], [0, 0, 4]])
    before = layer(x).numpy().copy()
    p.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_array_equal(layer(x).numpy(), before)
    p.remove_parametrizations(twin, "weight", leave_parametrized=False)
    assert twin.weight.tolist()[1] == [0, 4, 5]
    with pytest.raises(ValueError, match="is not parametrised"):
        p.remove_parametrizations(twin, "weight")
    with pytest.raises(ValueError, match="no parameter or buffer 'nothing'"):
        p.register_parametrization(twin, "nothing", Doubled())
    with pytest.raises(ValueError, match="would become"):
        p.register_parametrization(nn.Linear(2, 3), "weight", nn.Flatten(0))


def test_parametrised_models_train_under_jit():
    nm.random.seed(0)
    norm = nn.utils.parametrizations
    model = nn.Sequential(norm.weight_norm(nn.Linear(3, 8)), norm.spectral_norm(nn.Linear(8, 1)))
    trainer = optim.Trainer(optim.SGD(model.parameters(), lr=0.1))
    x = nm.random.normal((16, 3))
    y = x.sum(axis=1, keepdims=True)
    first = trainer.train_step(lambda: nn.mse_loss(model(x), y)).item()
    for _ in range(30):
        last = trainer.train_step(lambda: nn.mse_loss(model(x), y)).item()
    assert last < first / 2
    gain = np.linalg.svd(model[1].weight.detach().numpy())[1][0]
    assert gain == pytest.approx(1.0, abs=1e-3)


def test_packed_sequences():
    rnn = nn.utils.rnn
    rows = [nm.arange(3.0), nm.arange(5.0), nm.arange(1.0)]
    packed = rnn.pack_sequence(rows, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 2, 2, 1, 1]
    assert packed.lengths().tolist() == [5, 3, 1]
    assert [x.tolist() for x in rnn.unpack_sequence(packed)] == [x.tolist() for x in rows]
    padded, lengths = rnn.pad_packed_sequence(packed, True, -1.0, total_length=6)
    assert padded.shape == (3, 6)
    assert padded[2].tolist() == [0, -1, -1, -1, -1, -1]
    assert lengths.tolist() == [3, 5, 1]
    whole = rnn.pack_sequence([nm.arange(3), nm.arange(1)])
    assert rnn.pad_packed_sequence(whole)[0].dtype == nm.int64
    assert rnn.pad_sequence([nm.arange(3), nm.arange(1)], padding_value=-1.0).dtype == nm.int64
    left = rnn.pad_sequence(rows, batch_first=True, padding_side="left")
    assert left[2].tolist() == [0, 0, 0, 0, 0]
    assert left[0].tolist() == [0, 0, 0, 1, 2]
    with pytest.raises(ValueError, match="do not decrease"):
        rnn.pack_sequence(rows)
    with pytest.raises(nm.errors.ShapeError, match="lengths"):
        rnn.pack_padded_sequence(padded, [7, 1, 1], batch_first=True)
    with pytest.raises(ValueError, match="total_length 2"):
        rnn.pad_packed_sequence(packed, total_length=2)
    with pytest.raises(nm.errors.ShapeError, match="packed elements of size 4"):
        nn.GRU(4, 2)(rnn.pack_sequence([nm.ones((2, 3))]))


def test_adaptive_softmax_is_a_distribution():
    nm.random.seed(1)
    layer = nn.AdaptiveLogSoftmaxWithLoss(16, 40, [5, 12], 2.0)
    x = nm.random.normal((6, 16))
    logs = layer.log_prob(x)
    np.testing.assert_allclose(nm.exp(logs).sum(axis=1).numpy(), 1.0, rtol=1e-5)
    target = nm.asarray([0, 4, 5, 11, 12, 39])
    out, loss = layer(x, target)
    picked = nm.take_along_axis(logs, target[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(out.numpy(), picked.numpy(), rtol=1e-5)
    assert loss.item() == pytest.approx(-picked.mean().item(), rel=1e-5)
    assert layer.predict(x).tolist() == nm.argmax(logs, axis=1).tolist()
    with pytest.raises(nm.errors.IndexRangeError, match="class 40"):
        layer(x, nm.asarray([0, 4, 5, 11, 12, 40]))
    with pytest.raises(ValueError, match="numbers that increase"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 5])


def test_parts_of_modules_by_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert model.get_buffer("1.running_mean") is model[1].running_mean
    with pytest.raises(AttributeError, match=r"no buffer '0.weight'"):
        model.get_buffer("0.weight")
    model.set_submodule("0", nn.Identity())
    assert isinstance(model[0], nn.Identity)
    with pytest.raises(AttributeError, match="has no '2'"):
        model.set_submodule("2", nn.Identity())


def test_statistics_after_averaging():
    nm.random.seed(2)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    batches = [nm.random.normal((8, 3)) for _ in range(3)]
    optim.update_bn([(x, None) for x in batches], model.eval())
    hidden = [model[0](x).numpy() for x in batches]
    expected = np.mean([h.mean(axis=0) for h in hidden], axis=0)
    np.testing.assert_allclose(model[1].running_mean.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert model[1].momentum == 0.1
    assert not model.training


def test_a_state_that_does_not_fit_leaves_layers_lazy():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    good = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)).state_dict()
    with pytest.raises(ValueError, match="does not fit"):
        model.load_state_dict({**good, "1.bias": nm.ones(7)})
    assert type(model[0]) is nn.LazyLinear
    model.load_state_dict(good)
    assert model[0].in_features == 5
    np.testing.assert_array_equal(model[0].weight.numpy(), good["0.weight"].numpy())
