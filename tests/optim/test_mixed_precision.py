"""autocast and GradScaler: which float things are computed in, and which steps are left out."""

import numpy as np
import pytest

import numus as nm
from numus import nn, optim
from numus.errors import DTypeError

LOW = [
    ("matmul", lambda x, w: x @ w),
    ("mixed", lambda x, w: x.astype("f16") @ w),
    ("einsum", lambda x, w: nm.einsum("ij,jk->ik", x, w)),
    ("tensordot", lambda x, w: nm.tensordot(x, w, axes=1)),
    ("addmm", lambda x, w: nm.addmm(x, w, w)),
    ("linear", lambda x, w: nn.linear(x, w, w[0])),
    ("conv1d", lambda x, w: nm.conv1d(x[None], w[:, :, None], w[0])),
    ("attention", lambda x, w: nm.scaled_dot_product_attention(x, w, w)),
    ("bmm", lambda x, w: nm.bmm(x[None], w[None])),
]
FULL = [
    ("softmax", lambda x: nm.softmax(x)),
    ("sum", lambda x: x.sum()),
    ("exp", lambda x: nm.exp(x)),
    ("pow", lambda x: x**2),
    ("layer_norm", lambda x: nn.LayerNorm(4)(x)),
    ("group_norm", lambda x: nn.GroupNorm(2, 4)(x)),
    ("cross_entropy", lambda x: nn.cross_entropy(x, nm.asarray([0, 1, 2, 3]))),
    ("mse", lambda x: nn.mse_loss(x, x)),
    ("cosine", lambda x: nn.cosine_similarity(x, x)),
    ("norm", lambda x: nm.norm(x)),
]
AS_GIVEN = [("add", lambda x: x + x), ("relu", nm.relu), ("tanh", nm.tanh), ("max", nm.max)]


@pytest.mark.parametrize("low", ["bf16", "f16"])
def test_policy(low):
    x = nm.ones((4, 4))
    narrow = x.astype(low)
    with nm.autocast(low):
        for name, f in LOW:
            assert f(x, x).dtype is narrow.dtype, name
        for name, f in FULL:
            assert f(narrow).dtype is nm.float32, name
            assert f(x).dtype is nm.float32, name
        for name, f in AS_GIVEN:
            assert f(narrow).dtype is narrow.dtype, name
            assert f(x).dtype is nm.float32, name
        assert (x.astype("f64") @ x.astype("f64")).dtype is nm.float64
        with nm.autocast(enabled=False):
            assert (x @ x).dtype is nm.float32
        assert (x @ x).dtype is narrow.dtype
    assert (x @ x).dtype is nm.float32
    assert nm.softmax(narrow).dtype is narrow.dtype


def test_as_a_decorator_and_in_jit():
    x = nm.ones((2, 2))
    assert nm.autocast("bf16")(lambda: x @ x)().dtype is nm.bfloat16
    product = nm.jit(lambda a: a @ a)
    assert product(x).dtype is nm.float32
    with nm.autocast("f16"):
        assert product(x).dtype is nm.float16
    assert product(x).dtype is nm.float32
    with pytest.raises(DTypeError, match="bfloat16 or float16"):
        nm.autocast("f32")


def test_gradients_are_those_of_the_master_weights():
    nm.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x = nm.random.normal((32, 8), key=nm.random.key(0))
    y = nm.arange(32) % 4
    nn.cross_entropy(model(x), y).backward()
    exact = [p.grad.numpy() for p in model.parameters()]
    model.zero_grad()
    with nm.autocast("bf16"):
        loss = nn.cross_entropy(model(x), y)
    loss.backward()
    assert loss.dtype is nm.float32
    for p, g in zip(model.parameters(), exact, strict=True):
        assert p.grad.dtype is nm.float32
        assert np.abs(p.grad.numpy() - g).max() < 0.03 * np.abs(g).max()


def trained(jitted, steps=12):
    """Losses, scales and weights of a training in float16 with one overflow."""
    nm.random.seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = optim.Adam(model.parameters(), lr=0.05)
    scaler = optim.GradScaler(init_scale=256.0, growth_interval=4)
    x = nm.random.normal((16, 4), key=nm.random.key(2))
    y = x.sum(axis=1, keepdims=True)

    def step(x, y):
        opt.zero_grad()
        with nm.autocast("f16"):
            loss = nn.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss

    run = nm.jit(step) if jitted else step
    rows = []
    for i in range(steps):
        before = model[0].weight.numpy()
        loss = run(x * 1e6 if i == 5 else x, y).item()
        moved = not np.array_equal(before, model[0].weight.numpy())
        rows.append((loss, scaler.get_scale(), moved, opt.state[model[0].weight]["step"].item()))
    return rows


def test_a_bad_step_is_left_out():
    rows = trained(jitted=False)
    assert [moved for _, _, moved, _ in rows] == [i != 5 for i in range(12)]
    assert [scale for _, scale, _, _ in rows][3:11] == [512, 512, 256, 256, 256, 256, 512, 512]
    assert rows[-1][3] == 11
    assert rows[-1][0] < rows[0][0]


def test_the_same_in_jit():
    plain, traced = trained(False), trained(True)
    for a, b in zip(plain, traced, strict=True):
        assert a[1:] == b[1:]
        assert b[0] == pytest.approx(a[0], rel=1e-2, nan_ok=True)


def test_scaler_states_and_errors():
    w = nn.Parameter(nm.ones(1))
    opt = optim.SGD([w], lr=1.0)
    scaler = optim.GradScaler(init_scale=8.0)
    with pytest.raises(ValueError, match="no gradients"):
        scaler.step(opt)
    scaler.scale((w * 3).sum()).backward()
    scaler.unscale_(opt)
    assert w.grad.tolist() == [3.0]
    with pytest.raises(RuntimeError, match="twice"):
        scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    again = optim.GradScaler()
    again.load_state_dict(scaler.state_dict())
    assert again.state_dict() == scaler.state_dict()
    off = optim.GradScaler(enabled=False)
    assert scaler.is_enabled()
    assert not off.is_enabled()
    assert off.scale(w) is w
    assert off.get_scale() == 1.0
    lbfgs = optim.LBFGS([w])
    w.grad = nm.ones(1)
    with pytest.raises(TypeError, match="LBFGS"):
        scaler.step(lbfgs)


def test_products_may_be_asked_to_be_less_exact():
    x = nm.asarray(np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32))

    def nodes(y):
        seen, stack = [], [y._node]
        while stack:
            node = stack.pop()
            seen.append(node)
            stack.extend(node.inputs)
        return [n.params for n in seen if n.prim.name == "contract"]

    exact = x @ x.T
    with nm.matmul_precision("tf32"):
        y = x @ x.T
        wide = x.astype(nm.float64)
        assert nodes(y) == ["tf32"]
        assert nodes(nm.einsum("ij,kj->ik", x, x)) == ["tf32"]
        assert nodes(wide @ wide.T) == [None]
        with nm.matmul_precision("highest"):
            assert nodes(x @ x.T) == [None]
        with nm.autocast("bf16"):
            assert (x @ x.T).dtype is nm.bfloat16
        assert nm.softmax(y).dtype is nm.float32
    assert nodes(x @ x.T) == [None]
    assert nodes(nm.matmul(x, x.T, precision="high")) == ["tf32"]

    def check(found):
        """As always, where no unit is quicker: else, operands are rounded to 11 bits."""
        bound = 0.0 if nm.device().on_host else 2**-9 * (nm.abs(x) @ nm.abs(x).T).numpy()
        assert np.all(np.abs(found.numpy() - exact.numpy()) <= bound)

    check(y)
    with nm.matmul_precision("tf32"):
        z = nm.matmul(x, x.T)
    assert "tf32" in nodes(nm.grad(lambda a: nm.matmul(a, x.T, precision="tf32").sum())(x))
    assert nodes(z) == ["tf32"]
    decorated = nm.jit(nm.matmul_precision("tf32")(lambda a: a @ a.T))
    check(decorated(x))
    with pytest.raises(ValueError, match="autocast"):
        nm.matmul_precision("bf16")


@pytest.mark.parametrize("low", ["bf16", "f16"])
def test_recurrent_layers_are_products(low):
    x = nm.random.normal((3, 2, 4))
    for layer in (nn.RNN(4, 5), nn.GRU(4, 5, bidirectional=True), nn.LSTM(4, 5, proj_size=2)):
        expected, _ = layer(x)
        with nm.autocast(low):
            out, state = layer(x)
            cell = nn.LSTMCell(4, 5)(x[0])
        for y in (out, *nm.tree.leaves(state), *cell):
            assert y.dtype is nm.zeros(1, dtype=low).dtype
        np.testing.assert_allclose(out.astype("f32").numpy(), expected.numpy(), atol=0.03)
        out.astype("f32").sum().backward()
        assert layer.weight_hh_l0.grad.dtype is nm.float32
