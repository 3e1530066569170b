"""JAX's functions and their arguments, where they differ from numus's own."""

import numpy as np
import pytest

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import lax, random, tree_util

RNG = np.random.default_rng(0)


def equal(found, wanted, dtype=None):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6, atol=1e-6)
    if dtype is not None:
        assert np.asarray(found).dtype == dtype


def test_dtypes_have_32_bits_unless_asked_for():
    a = RNG.standard_normal(3)
    assert jnp.asarray(a).dtype == jnp.float32
    assert jnp.arange(3).dtype == jnp.int32
    assert jnp.array([1, 2]).dtype == jnp.int32
    assert jnp.zeros(3, dtype=float).dtype == jnp.float32
    assert jnp.sin(a).dtype == jnp.float32
    assert jnp.float32(0.5).dtype == jnp.float32
    with jax.enable_x64():
        assert jnp.asarray(a).dtype == jnp.float64
        assert jnp.arange(3).dtype == jnp.int64


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"])
def test_reductions_with_a_mask(name):
    a = RNG.standard_normal((4, 5)).astype("float32")
    mask = RNG.random((4, 5)) < 0.7
    mask[:, 0] = True
    start = {"max": {"initial": -9}, "min": {"initial": 9}}.get(name, {})
    wanted = getattr(np, name)(a, axis=1, where=mask, **start)
    equal(getattr(jnp, name)(jnp.asarray(a), axis=1, where=mask, **start), wanted)


def test_arguments():
    a = RNG.standard_normal((3, 4)).astype("float32")
    x = jnp.asarray(a)
    equal(jnp.std(x, axis=0, ddof=1), a.std(axis=0, ddof=1))
    equal(jnp.clip(x, a_min=-0.5, a_max=0.5), a.clip(-0.5, 0.5))
    equal(jnp.matmul(x, x.T, precision=lax.cond), a @ a.T)
    equal(jnp.linspace(x[0], x[1], 5, axis=1), np.linspace(a[0], a[1], 5, axis=1))
    equal(jnp.concatenate([a, x], dtype=jnp.float16), np.concatenate([a, a]).astype("f2"), "f2")
    equal(jnp.take(x, jnp.array([-9, 9]), axis=0, mode="clip"), a[[0, 2]])
    equal(jnp.take(x, jnp.array([-1, 4]), axis=0, mode="wrap"), a[[2, 1]])
    equal(jnp.full_like(x, 3, shape=(2,)), np.full(2, 3.0))
    for found, wanted in zip(
        jnp.meshgrid(a[0], a[1], sparse=True), np.meshgrid(a[0], a[1], sparse=True), strict=True
    ):
        equal(found, wanted)
    mean, weight = jnp.average(x, axis=0, weights=jnp.array([1.0, 2.0, 3.0]), returned=True)
    equal(mean, np.average(a, axis=0, weights=[1, 2, 3]))
    equal(weight, np.full(4, 6.0))


def test_sizes_that_are_known_under_jit():
    x = jnp.array([3, 0, 1, 1, 2])
    (at,) = jax.jit(lambda x: jnp.nonzero(x, size=6, fill_value=-1))(x)
    equal(at, [0, 2, 3, 4, -1, -1])
    values, counts = jax.jit(lambda x: jnp.unique(x, size=5, return_counts=True))(x)
    equal(values, [0, 1, 2, 3, 0])
    equal(counts, [1, 2, 1, 1, 0])
    _, inverse = jnp.unique(x, size=4, return_inverse=True)
    equal(inverse, [3, 0, 1, 1, 2])
    repeated = jax.jit(lambda x, n: jnp.repeat(x, n, total_repeat_length=6))(
        x, jnp.array([1, 0, 2, 1, 2])
    )
    equal(repeated, [3, 1, 1, 1, 2, 2])


def test_updates():
    x = jnp.zeros((3, 3))
    equal(x.at[1].set(2.0), [[0] * 3, [2] * 3, [0] * 3])
    equal(x.at[jnp.array([0, 0]), 1].add(1.0)[0], [0, 2, 0])
    equal(x.at[0, :2].subtract(1.0)[0], [-1, -1, 0])
    y = jnp.array([1.0, 2.0, 4.0])
    equal(y.at[jnp.array([1, 1])].multiply(3.0), [1, 18, 4])
    equal(y.at[1:].divide(2.0), [1, 1, 2])
    equal(y.at[jnp.array([0, 2, 0])].max(3.0), [3, 2, 4])
    equal(y.at[y > 1].min(1.5), [1, 1.5, 1.5])
    equal(y.at[2].power(0.5), [1, 2, 2])
    equal(y.at[0].apply(jnp.negative), [-1, 2, 4])
    equal(y.at[1].get(), 2)
    equal(jax.grad(lambda y: (y.at[jnp.array([1, 1])].multiply(3.0) ** 2).sum())(y), [2, 324, 8])
    at = jax.vmap(lambda row, i: row.at[i].add(1.0))(x, jnp.array([2, 0, 1]))
    equal(at, np.eye(3)[[2, 0, 1]])


def test_slices():
    a = np.arange(12.0, dtype="float32").reshape(3, 4)
    x = jnp.asarray(a)
    equal(lax.dynamic_slice(x, (2, 3), (2, 2)), a[1:3, 2:4])  # moved inside
    equal(lax.dynamic_slice_in_dim(x, jnp.array(1), 2, axis=1), a[:, 1:3])
    equal(lax.dynamic_index_in_dim(x, 2, keepdims=False), a[2])
    updated = jax.jit(lax.dynamic_update_slice)(x, jnp.ones((1, 2)), (jnp.array(1), jnp.array(3)))
    wanted = a.copy()
    wanted[1, 2:] = 1
    equal(updated, wanted)
    equal(lax.slice(x, (0, 1), (3, 4), (2, 2)), a[::2, 1:4:2])
    equal(lax.pad(x, 7.0, [(1, -1, 0), (0, 0, 1)])[0], np.full(7, 7))
    equal(lax.pad(x, 7.0, [(1, -1, 0), (0, 0, 1)])[1, ::2], a[0])
    equal(lax.rev(x, (0,)), a[::-1])
    equal(lax.broadcast_in_dim(x[0], (2, 4), (1,)), np.stack([a[0], a[0]]))
    equal(lax.collapse(x, 0, 2), a.ravel())
    numbers = (((1,), (1,)), ((), ()))
    equal(lax.dot_general(x, x, numbers), a @ a.T)
    batched = lax.dot_general(jnp.stack([x, x]), jnp.stack([x, x]), (((2,), (2,)), ((0,), (0,))))
    equal(batched, np.stack([a @ a.T] * 2))


def test_other_names_of_lax():
    a = np.arange(12.0, dtype="float32").reshape(3, 4)
    x = jnp.asarray(a)
    equal(lax.reduce(x, 0.0, lax.add, (0,)), a.sum(0))
    equal(lax.reduce(x, 0.0, lax.max, (0, 1)), a.max())
    for found, wanted in zip(lax.split(x, (1, 2)), (a[:1], a[1:]), strict=True):
        equal(found, wanted)
    shifted = lax.shift_right_logical(jnp.array([-1, 8], dtype=jnp.int32), 1)
    equal(shifted, [2**31 - 1, 4], "i4")
    equal(lax.bitcast_convert_type(jnp.array([1.0]), jnp.int32), [0x3F800000], "i4")
    with pytest.raises(TypeError, match="equal widths"):
        lax.bitcast_convert_type(x, jnp.int8)
    equal(lax.fft(x, "fft", (4,)), np.fft.fft(a))
    equal(lax.top_k(x, 2)[0], a[:, :1:-1])
    equal(lax.sort_key_val(-x[0], x[1])[1], a[1, ::-1])
    equal(lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 2), "SAME").shape, (3, 2))
    assert jax.typeof(x).shape == (3, 4)
    with jax.default_matmul_precision("float32"):
        equal(x @ x.T, a @ a.T)


def test_control_flow():
    branches = [lambda x: x, lambda x: 2 * x, lambda x: -x]
    for number, wanted in ((0, 3), (1, 6), (2, -3), (9, -3), (-1, 3)):
        equal(jax.jit(lambda i: lax.switch(i, branches, jnp.float32(3)))(jnp.array(number)), wanted)
        equal(lax.switch(number, branches, jnp.float32(3)), wanted)
    equal(lax.map(lambda x: x**2, jnp.arange(4.0)), [0, 1, 4, 9])
    equal(lax.fori_loop(0, 5, lambda i, x: x + i, jnp.array(0)), 10)
    equal(lax.while_loop(lambda x: x < 9, lambda x: x * 2, jnp.array(1)), 16)
    equal(jax.grad(lambda x: lax.stop_gradient(x) * x)(3.0), 3)
    equal(lax.cond(True, lambda x: x + 1, lambda x: x - 1, operand=jnp.array(1)), 2)


def test_prints_of_compiled_programs(capsys):
    @jax.jit
    def f(x):
        jax.debug.print("sum {total}", total=x.sum())
        _, ys = lax.scan(lambda c, y: (jax.debug.print("carry {}", c), (c + y, c))[1], 0.0, x)
        return ys

    for _ in range(2):  # traced, and then replayed
        equal(f(jnp.arange(3.0)), [0, 0, 1])
        lines = capsys.readouterr().out.splitlines()
        assert lines == ["sum 3.", "carry 0.", "carry 0.", "carry 1."]
    with pytest.raises(ValueError, match="cannot leave"):
        jax.jit(
            lambda x: lax.while_loop(
                lambda x: x < 9, lambda x: (jax.debug.print("{}", x), x + 1)[1], x
            )
        )(jnp.array(0))


def test_containers():
    tree = {"a": (1, None), "b": [2, 3]}
    leaves, shape = tree_util.tree_flatten(tree)
    assert leaves == [1, 2, 3]
    assert tree_util.tree_unflatten(shape, leaves) == tree
    with_none = tree_util.tree_leaves(tree, is_leaf=lambda x: x is None)
    assert with_none == [1, None, 2, 3]
    pairs = tree_util.tree_map(lambda x, y: (x, y), {"a": 1}, {"a": [7, 8]})
    assert pairs == {"a": (1, [7, 8])}
    paths = [tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(tree)]
    assert paths == ["['a'][0]", "['b'][0]", "['b'][1]"]
    assert tree_util.tree_reduce(lambda a, b: a + b, tree) == 6
    turned = tree_util.tree_transpose(
        tree_util.tree_structure([0, 0]), tree_util.tree_structure({"x": 0}), [{"x": 1}, {"x": 2}]
    )
    assert turned == {"x": [1, 2]}
    partial = tree_util.Partial(lambda a, b: a + b, jnp.ones(2))
    equal(jax.jit(lambda f, x: f(x))(partial, jnp.ones(2)), [2, 2])


def test_shapes_without_values():
    found = jax.eval_shape(lambda x: {"y": x @ x.T}, jax.ShapeDtypeStruct((3, 4), jnp.float32))
    assert found["y"].shape == (3, 3)
    assert found["y"].dtype == jnp.float32


def test_custom_gradient():
    @jax.custom_gradient
    def f(x):
        return x**2, lambda g: (g * 10,)

    equal(jax.grad(f)(3.0), 10)


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda k: random.normal(k, (20_000,)), 0, 1),
        (lambda k: random.uniform(k, (20_000,), minval=-1, maxval=3), 1, 4 / 12**0.5),
        (lambda k: random.randint(k, (20_000,), 2, 6), 3.5, 1.25**0.5),
        (lambda k: random.bernoulli(k, 0.3, (20_000,)), 0.3, 0.21**0.5),
        (lambda k: random.exponential(k, (20_000,)), 1, 1),
        (lambda k: random.gamma(k, 3.0, (20_000,)), 3, 3**0.5),
        (lambda k: random.beta(k, 2.0, 2.0, (20_000,)), 0.5, 0.05**0.5),
        (lambda k: random.poisson(k, 4.0, (20_000,)), 4, 2),
        (lambda k: random.rademacher(k, (20_000,)), 0, 1),
        (lambda k: random.pareto(k, 5.0, (20_000,)), 1.25, (5 / 48) ** 0.5),
        (
            lambda k: random.categorical(k, jnp.log(jnp.array([0.5, 0.5])), shape=(20_000,)),
            0.5,
            0.5,
        ),
    ],
)
def test_draws(draw, mean, deviation):
    x = np.asarray(draw(random.PRNGKey(3)), "float64")
    assert x.shape == (20_000,)
    assert abs(x.mean() - mean) < 5 * deviation / 20_000**0.5
    assert abs(x.std() - deviation) < 0.1 * deviation + 0.02


def test_keys_are_those_of_jax():
    equal(random.split(random.PRNGKey(0)), [[1797259609, 2579123966], [928981903, 3453687069]])


def test_orthogonal():
    q = random.orthogonal(random.PRNGKey(0), 5)
    np.testing.assert_allclose(np.asarray(q @ q.T), np.eye(5), atol=1e-5)


def test_attention_and_softmax():
    q, k, v = (RNG.standard_normal((2, 5, 4, 8)).astype("float32") for _ in range(3))
    found = jax.nn.dot_product_attention(q, k[:, :, :2], v[:, :, :2], is_causal=True)
    assert found.shape == (2, 5, 4, 8)
    scores = np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k[:, :, :2], 2, 2)) / 8**0.5
    scores[..., ~np.tri(5, dtype=bool)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    wanted = np.einsum("bhqk,bkhd->bqhd", p, np.repeat(v[:, :, :2], 2, 2))
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-5)
    equal(jax.nn.softmax(jnp.zeros((2, 2)), axis=(0, 1)), np.full((2, 2), 0.25))
    equal(jax.nn.one_hot(jnp.array([1, 0]), 3, axis=0), np.eye(3)[:, [1, 0]])


def test_unknown_names_are_named():
    with pytest.raises(AttributeError, match=r"jax\.numpy.*no attribute 'nothing'"):
        _ = jnp.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jax.nothing


def test_names_of_python_stay_pythons():
    for module, names in ((jnp, ("bool", "abs", "sum")), (lax, ("max", "min"))):
        for name in names:
            getattr(module, name)
    assert jnp.asarray([1.0], copy=True).shape == (1,)
    assert lax.dynamic_slice(jnp.arange(4), (3,), (2,)).tolist() == [2, 3]


def test_positions_out_of_range_by_mode():
    x = jnp.arange(6.0).reshape(2, 3)
    at = jnp.array([0, 7, -1])
    assert x.at[at, 1].get(mode="fill", fill_value=-1).tolist() == [1, -1, 4]
    assert x.at[at].get(mode="clip").tolist() == [[0, 1, 2], [3, 4, 5], [3, 4, 5]]
    assert np.isnan(float(x.at[5, 5].get(mode="fill")))
    assert x.at[at, ..., 0].set(9, mode="drop").tolist() == [[9, 1, 2], [9, 4, 5]]
    assert x.at[..., jnp.array([1, 3, 1])].add(10, mode="drop").tolist() == [[0, 21, 2], [3, 24, 5]]
    assert x.at[7].set(1, mode="drop", unique_indices=True).tolist() == x.tolist()
    with pytest.raises(ValueError, match="one of"):
        x.at[0].set(1, mode="wrap")


def test_containers_become_vectors_and_return():
    from numus.jax.flatten_util import ravel_pytree

    flat, unravel = ravel_pytree({"w": jnp.ones((2, 2)), "b": [1, jnp.zeros(1)]})
    assert flat.shape == (6,)
    assert unravel(flat)["b"][0].dtype == jnp.int32
    assert unravel(2 * flat)["w"].tolist() == [[2, 2], [2, 2]]
    with pytest.raises(ValueError, match="unravel"):
        unravel(flat[1:])
    assert jax.devices()[0].platform in ("cpu", "gpu")
