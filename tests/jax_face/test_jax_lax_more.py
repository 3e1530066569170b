"""Operations of `jax.lax` beyond the first ones, against results recorded from JAX."""

import numpy as np
import pytest

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import lax

X = np.arange(24.0, dtype=np.float32).reshape(4, 6)


def test_gather_of_windows():
    at = jnp.asarray(np.array([[1, 2], [3, 4], [9, 0]]))
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0, 1))
    found = lax.gather(jnp.asarray(X), at, numbers, (1, 2))
    assert found.tolist() == [[8, 9], [22, 23], [18, 19]]
    filled = lax.gather(jnp.asarray(X), at, numbers, (1, 2), mode="fill", fill_value=-1.0)
    assert filled.tolist() == [[8, 9], [22, 23], [-1, -1]]


@pytest.mark.parametrize(
    ("name", "row"),
    [("scatter", 2 * np.ones(6)), ("scatter_add", X[1] + 4), ("scatter_sub", X[1] - 4),
     ("scatter_mul", X[1] * 4), ("scatter_min", np.minimum(X[1], 2)),
     ("scatter_max", np.maximum(X[1], 2))],
)  # fmt: skip
def test_scatter_drops_what_does_not_fit(name, row):
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    at, new = jnp.asarray(np.array([[1], [1], [7]])), jnp.asarray(np.full((3, 6), 2.0, np.float32))
    wanted = X.copy()
    wanted[1] = row
    assert getattr(lax, name)(jnp.asarray(X), at, new, numbers).tolist() == wanted.tolist()


def test_bits_and_rounding():
    assert lax.clz(jnp.asarray(np.array([0, 1, 255, -1], np.int32))).tolist() == [32, 31, 24, 0]
    product = lax.mulhi(jnp.asarray(np.int32(2**31 - 1)), jnp.asarray(np.int32(2**30)))
    assert product.item() == 536870911
    assert lax.reduce_xor(jnp.asarray(np.array([[5, 3], [2, 9]])), (0,)).tolist() == [7, 10]
    x = jnp.asarray(np.array([1.2345678, 70000.0, 1e-7, 3.14159], np.float32))
    assert lax.reduce_precision(x, 5, 10).tolist() == [1.234375, np.inf, 0.0, 3.140625]


def test_convolutions():
    image = jnp.asarray(np.arange(64.0, dtype=np.float32).reshape(2, 2, 4, 4))
    patches = lax.conv_general_dilated_patches(image, (2, 2), (1, 1), "VALID")
    assert patches.shape == (2, 8, 3, 3)
    assert patches[0, :, 0, 0].tolist() == [0, 1, 4, 5, 16, 17, 20, 21]
    weights = jnp.asarray(np.arange(24.0, dtype=np.float32).reshape(2, 2, 2, 3))
    last = jnp.asarray(np.arange(64.0, dtype=np.float32).reshape(2, 4, 4, 2))
    found = lax.conv_transpose(last, weights, (2, 2), "SAME")
    assert (found.shape, found.sum().item()) == ((2, 8, 8, 3), 278784.0)
    assert found[0, 1, :, 0].tolist() == [9, 3, 39, 9, 69, 15, 99, 21]


def test_implicit_functions():
    def newton(f, x):
        for _ in range(20):
            x = x - f(x) / (2 * x)
        return x

    def root(a):
        solve = lambda g, y: y / g(jnp.asarray(1.0))
        return lax.custom_root(lambda v: v * v - a, jnp.asarray(1.0), newton, solve)

    assert root(jnp.asarray(2.0)).item() == pytest.approx(2**0.5, rel=1e-6)
    assert jax.grad(root)(jnp.asarray(2.0)).item() == pytest.approx(0.5 / 2**0.5, rel=1e-6)
    a = jnp.asarray([[3.0, 1.0], [1.0, 2.0]])

    def total(b):
        solve = lambda matvec, y: jnp.linalg.solve(a, y)
        return lax.custom_linear_solve(lambda v: a @ v, b, solve, symmetric=True).sum()

    assert np.allclose(jax.grad(total)(jnp.asarray([1.0, 2.0])).numpy(), [0.2, 0.4])


def test_passes_and_references():
    forward, backward = jax.fwd_and_bwd(lambda x, w: (x * w).sum(), argnums=(0, 1))
    y, residuals = forward(jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 4.0]))
    gradients = backward(residuals, jnp.asarray(1.0))
    assert (y.item(), [g.tolist() for g in gradients]) == (11.0, [[3, 4], [1, 2]])
    (back,) = jax.linear_transpose(lambda v: v[:2] * 3, jnp.zeros(3))(jnp.asarray([1.0, 2.0]))
    assert back.tolist() == [3, 6, 0]
    ref = jax.new_ref(jnp.zeros(3))
    held = jax.freeze(ref)
    ref[0] = 5.0
    assert (held.tolist(), ref.tolist()) == ([0, 0, 0], [5, 0, 0])
