"""The same functions differentiated by numus, PyTorch and JAX."""

import numpy as np
import pytest

import numus as nm

# of PyTorch's own forward mode
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")

rng = np.random.default_rng(0)
X, W, B = rng.standard_normal((4, 3)), rng.standard_normal((3, 5)), rng.standard_normal(5)


def network(xp, x, w, b):
    h = xp.tanh(x @ w + b)
    return (h * h).mean() + xp.sin(h).sum()


def softmax_loss(xp, x, w, b):
    z = x @ w + b
    e = xp.exp(z - z.max())
    p = e / e.sum()
    return -(p * xp.log(p)).sum()


def norms(xp, x, w, b):
    y = x @ w - b
    lengths = xp.sqrt((y * y).sum(1) + 1e-3)
    return (1 / lengths).sum() + (w / lengths.mean()).sum()


def pieces(xp, x, w, b):
    y = xp.where(x > 0, x * x, xp.exp(x)) @ w
    return xp.maximum(y, b).sum() + xp.abs(y[1:, ::2]).sum() * y[0, 0]


def polynomial(xp, x, w, b):
    y = (x.T @ x) ** 3 @ w
    return (y.reshape(-1)[2:9] ** 2).sum() / (1 + b @ b)


def attention(xp, x, w, b):
    s = (x @ w) @ (x @ w).T
    a = xp.exp(s - s.max())
    a = a / a.sum(1)[:, None]
    return (a @ (x @ w + b)).sum() + (a * a).sum()


FUNCTIONS = [network, softmax_loss, norms, pieces, polynomial, attention]
functions = pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
ARGS = (X, W, B)
TANGENTS = tuple(rng.standard_normal(a.shape) for a in ARGS)


def numus_results(f):
    g = lambda *xs: f(nm, *xs)
    args, tangents = tuple(map(nm.asarray, ARGS)), tuple(map(nm.asarray, TANGENTS))
    rows = nm.asarray(np.stack([X, X + 0.1]))
    return {
        "grad": nm.grad(g, argnums=(0, 1, 2))(*args),
        "jvp": nm.jvp(g, args, tangents),
        "hessian": nm.hessian(g, argnums=1)(*args),
        "hvp": nm.jvp(nm.grad(g, argnums=(0, 1, 2)), args, tangents)[1],
        "vmap": nm.vmap(nm.grad(g), (0, None, None))(rows, *args[1:]),
        "jacobian": nm.jacrev(nm.grad(g, argnums=2), argnums=0)(*args),
        "forward": nm.jacfwd(nm.grad(g, argnums=2), argnums=0)(*args),
    }


def compare(found, expected):
    for name, ours in found.items():
        theirs = expected[name]
        for a, b in zip(nm.tree.leaves(ours), nm.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a.numpy(), np.asarray(b), rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@functions
def test_torch(f):
    torch = pytest.importorskip("torch")

    g = lambda *xs: f(torch, *xs)
    args, tangents = tuple(map(torch.asarray, ARGS)), tuple(map(torch.asarray, TANGENTS))
    rows = torch.asarray(np.stack([X, X + 0.1]))
    F = torch.func
    expected = {
        "grad": F.grad(g, argnums=(0, 1, 2))(*args),
        "jvp": F.jvp(g, args, tangents),
        "hessian": F.hessian(g, argnums=1)(*args),
        "hvp": F.jvp(F.grad(g, argnums=(0, 1, 2)), args, tangents)[1],
        "vmap": F.vmap(F.grad(g), (0, None, None))(rows, *args[1:]),
        "jacobian": F.jacrev(F.grad(g, argnums=2), argnums=0)(*args),
        "forward": F.jacfwd(F.grad(g, argnums=2), argnums=0)(*args),
    }
    compare(numus_results(f), expected)


@pytest.mark.parametrize("f", [pieces, attention], ids=lambda f: f.__name__)
def test_jax(f):
    jax = pytest.importorskip("jax")
    g = lambda *xs: f(jax.numpy, *xs)
    rows = np.stack([X, X + 0.1])

    @jax.jit  # one compilation instead of one for each operation
    def all_of_them(args, tangents):
        return {
            "grad": jax.grad(g, argnums=(0, 1, 2))(*args),
            "jvp": jax.jvp(g, args, tangents),
            "hessian": jax.hessian(g, argnums=1)(*args),
            "hvp": jax.jvp(jax.grad(g, argnums=(0, 1, 2)), args, tangents)[1],
            "vmap": jax.vmap(jax.grad(g), (0, None, None))(rows, *args[1:]),
            "jacobian": jax.jacrev(jax.grad(g, argnums=2), argnums=0)(*args),
            "forward": jax.jacfwd(jax.grad(g, argnums=2), argnums=0)(*args),
        }

    with jax.enable_x64(True):
        compare(numus_results(f), all_of_them(ARGS, TANGENTS))


@functions
def test_torch_tape(f):
    """backward() twice, accumulating, and a second order by create_graph."""
    torch = pytest.importorskip("torch")
    theirs = [torch.tensor(a, requires_grad=True) for a in ARGS]
    ours = [nm.asarray(a).requires_grad_() for a in ARGS]
    for _ in range(2):
        f(torch, *theirs).backward()
        f(nm, *ours).backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-9, atol=1e-12)
    (g,) = torch.autograd.grad(f(torch, *theirs), theirs[:1], create_graph=True)
    (h,) = nm.autograd.grad(f(nm, *ours), ours[:1], create_graph=True)
    (g * g).sum().backward()
    (h * h).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "tanh", "sin", "abs", "square", "reciprocal"]
)
def test_complex_gradients_follow_torch(name):
    torch = pytest.importorskip("torch")
    z = rng.standard_normal(4) + 1j * rng.standard_normal(4)
    t = torch.tensor(z, requires_grad=True)
    loss = lambda xp, y: xp.real(y * (2 - 1j)).sum() + (xp.abs(y) ** 2).sum()
    loss(torch, getattr(torch, name)(t)).backward()
    found = nm.grad(lambda z: loss(nm, getattr(nm, name)(z)))(nm.asarray(z))
    np.testing.assert_allclose(found.numpy(), t.grad.numpy(), rtol=1e-9)
