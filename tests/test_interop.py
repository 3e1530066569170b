"""Other libraries and Python's protocols: NumPy's dispatch, einops, scikit-learn, copies, HTML."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import numus as nm
import numus.numpy
from numus import nn, optim


@pytest.fixture
def x():
    return nm.asarray([[1.0, 2.0], [3.0, 5.0]])


@pytest.mark.parametrize(
    "call",
    [
        np.sum, np.mean, np.std, np.max, np.median, np.cumsum, np.transpose, np.exp, np.sqrt,
        np.linalg.norm, np.linalg.inv, np.fft.fft, np.argmax, np.ravel,
        lambda x: np.sum(x, axis=0, keepdims=True), lambda x: np.var(x, axis=1, ddof=1),
        lambda x: np.concatenate([x, x], axis=1), lambda x: np.where(x > 2, x, 0),
        lambda x: np.add.reduce(x), lambda x: np.multiply.outer(x, x), lambda x: np.clip(x, 2, 3),
        lambda x: np.percentile(x, 30), lambda x: np.add(x, 1, dtype=np.float64),
    ],
)  # fmt: skip
def test_functions_of_numpy_give_tensors(call, x):
    mine = call(x)
    theirs = call(x.numpy())
    assert type(mine) is nm.Tensor
    assert mine.dtype.np == theirs.dtype
    np.testing.assert_allclose(np.asarray(mine), theirs, rtol=1e-5)


def test_gradients_flow_through_numpys_functions(x):
    slope = nm.grad(lambda x: np.sum(np.exp(x) * x))(x)
    np.testing.assert_allclose(slope.numpy(), np.exp(x.numpy()) * (x.numpy() + 1), rtol=1e-5)


def test_numpys_own_arrays_are_written_to(x):
    array = np.ones((2, 2))
    array += x
    np.copyto(array[0], x[1])
    assert type(array) is np.ndarray
    assert array.tolist() == [[3.0, 5.0], [4.0, 6.0]]


def test_mixed_operators(x):
    for found in (np.ones(2) + x, np.float64(2) * x, x - np.ones(2, np.float32)):
        assert type(found) is nm.Tensor
    assert (np.float64(2) * x).dtype is nm.float32
    face = numus.numpy.ones(2)
    assert type(np.ones(2) * face) is type(np.exp(face)) is numus.numpy.ndarray


def test_tensors_of_the_face(x):
    face = numus.numpy.asarray(x)
    back = nm.asarray(face)
    assert type(back) is nm.Tensor
    face[0, 0] = 9
    assert x[0, 0].item() == back[0, 0].item() == 9
    assert nm.median(face).item() == 4


def test_dir_shows_public_names():
    shown = dir(nm)
    assert {"sum", "nn", "Tensor", "numpy"} <= set(shown)
    assert not {"importlib", "sys", "lazy", "operators", "TYPE_CHECKING"} & set(shown)


def model_and(make):
    nm.random.seed(0)  # with some others all units are dead
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, make(model.parameters())


def take_step(model, optimizer):
    optimizer.zero_grad()
    nn.mse_loss(model(nm.ones((2, 3))), nm.zeros((2, 1))).backward()
    optimizer.step()


COPIES = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize(
    "make",
    [lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.Adam(p, lr=0.1)],
    ids=["SGD", "Adam"],
)
def test_copies_of_optimizers(make, duplicate):
    """A copy goes on from the same state, with parameters of its own."""
    pair = model_and(make)
    take_step(*pair)
    other = duplicate(pair)
    before = pair[0][0].weight.numpy()
    take_step(*other)
    np.testing.assert_array_equal(pair[0][0].weight.numpy(), before)
    take_step(*pair)
    np.testing.assert_array_equal(pair[0][0].weight.numpy(), other[0][0].weight.numpy())
    other[1].param_groups[0]["lr"] = 0.0
    after = other[0][0].weight.numpy()
    if make(other[0].parameters()).defaults.get("momentum", 0) == 0:
        take_step(*other)
        np.testing.assert_array_equal(other[0][0].weight.numpy(), after)


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle"])
def test_copies_of_schedulers(duplicate):
    model, optimizer = model_and(lambda p: optim.SGD(p, lr=0.1))
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    _, other, copied = duplicate((model, optimizer, scheduler))
    for _ in range(2):
        copied.step()
    assert other.param_groups[0]["lr"] == pytest.approx(0.05)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle"])
def test_copies_of_trainers(duplicate):
    model, optimizer = model_and(lambda p: optim.SGD(p, lr=0.1))
    trainer = optim.Trainer(optimizer, model, nn.mse_loss)
    batches = [(nm.ones((4, 3)), nm.zeros((4, 1)))] * 2
    trainer.fit(batches, epochs=1, progress=False)
    other = duplicate(trainer)
    before = model[0].weight.numpy()
    other.fit(batches, epochs=2, progress=False)
    assert (trainer.step, other.step) == (2, 4)
    np.testing.assert_array_equal(model[0].weight.numpy(), before)
    assert (other.model[0].weight.numpy() != before).any()


def test_html_of_tensors_models_and_explanations(x):
    assert "<td>5.</td>" in x._repr_html_()
    assert "…" in nm.zeros((2, 50))._repr_html_()
    assert "⋮" in nm.zeros((50, 2))._repr_html_()
    assert "<pre>" in nm.zeros((2, 2, 2))._repr_html_()
    assert "8 parameters" in nn.Linear(3, 2)._repr_html_()
    found = nm.explain(lambda x: nm.exp(x) + 1, x, timed=False)._repr_html_()
    assert found.count("<tr>") == 1 + len(nm.explain(lambda x: nm.exp(x) + 1, x).kernels)


def test_einops_registers_when_it_is_imported(x):
    pytest.importorskip("einops")
    code = (
        "import sys, numus as nm; assert 'einops' not in sys.modules; import einops; "
        "x = nm.arange(24.0).reshape(2, 3, 4); "
        "print(einops.rearrange(x, 'b (h p) w -> (b h) w p', p=3).shape, "
        "einops.reduce(x, 'b h w -> b', 'mean').tolist(), "
        "einops.repeat(x, 'b h w -> b h w c', c=2).shape, "
        "einops.einsum(x, x, 'b h w, b k w -> b h k').shape)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "(2, 4, 3) [5.5, 17.5] (2, 3, 4, 2) (2, 3, 3)"


def test_a_backend_of_einops_needs_nothing_but_the_base_class(x):
    """What einops' loader would be given, without einops."""
    import types

    from numus.functions.interop import einops_backend

    module = types.ModuleType("backends")
    module.AbstractBackend = type("AbstractBackend", (), {"shape": lambda self, x: x.shape})
    einops_backend.register(module)
    backend = module.NumusBackend()
    assert backend.is_appropriate_type(x)
    assert backend.tile(backend.add_axis(x, 0), (3, 1, 1)).shape == (3, 2, 2)
    assert backend.is_float_type(x)


def test_jax_takes_tensors(x):
    jnp = pytest.importorskip("jax.numpy")
    assert jnp.asarray(x).tolist() == x.tolist()
