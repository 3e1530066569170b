"""A program for JAX: cnn."""

import time, itertools
import numpy as onp
import jax
import jax.numpy as jnp
from jax import jit, grad, random, lax, nn, tree_util
from jax.nn import initializers, relu, log_softmax, one_hot
from jax.flatten_util import ravel_pytree


def conv(x, w, b, stride=1, padding="SAME"):
    return (
        lax.conv_general_dilated(
            x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        + b
    )


def init(key):
    k = random.split(key, 4)
    glorot, he = initializers.glorot_normal(), initializers.he_normal()
    return [
        (he(k[0], (3, 3, 1, 8)), jnp.zeros(8)),
        (he(k[1], (3, 3, 8, 8)), jnp.zeros(8)),
        (glorot(k[2], (4 * 4 * 8, 4)), jnp.zeros(4)),
    ]


def apply(params, x, train=False, key=None):
    x = relu(conv(x, *params[0]))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = relu(conv(x, *params[1]))
    if train:
        x = jnp.where(random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)
    x = x.reshape((x.shape[0], -1))
    w, b = params[2]
    return log_softmax(x @ w + b)


def loss(params, batch, key):
    x, y = batch
    return -jnp.mean(jnp.sum(apply(params, x, True, key) * one_hot(y, 4), axis=1)) + 1e-4 * sum(
        jnp.vdot(l, l) for l in tree_util.tree_leaves(params)
    )


def data(seed, n=64):
    r = onp.random.RandomState(seed)
    y = r.randint(0, 4, n)
    x = r.randn(n, 8, 8, 1).astype("float32") * 0.3
    for i, c in enumerate(y):
        x[i, (c // 2) * 4 : (c // 2) * 4 + 4, (c % 2) * 4 : (c % 2) * 4 + 4, 0] += 1
    return jnp.asarray(x), jnp.asarray(y)


# an Adam by hand, over pytrees
def adam_init(p):
    z = tree_util.tree_map(jnp.zeros_like, p)
    return (z, z, 0)


@jit
def update(params, state, batch, key):
    m, v, t = state
    l, g = jax.value_and_grad(loss)(params, batch, key)
    t = t + 1
    m = tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree_util.tree_map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
    new = jax.tree.map(
        lambda p, m, v: p - 5e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8),
        params,
        m,
        v,
    )
    return new, (m, v, t), l


key = random.PRNGKey(0)
params = init(key)
st = adam_init(params)
b = data(0)
ls = []
for i in range(25):
    key, sub = random.split(key)
    params, st, l = update(params, st, b, sub)
    ls.append(float(l))
acc = jnp.mean(jnp.argmax(apply(params, b[0]), axis=-1) == b[1])
print(ls[0], ls[-1], acc)
assert ls[-1] < 0.5 * ls[0]
flat, unravel = ravel_pytree(params)
print(flat.shape, tree_util.tree_structure(unravel(flat)) == tree_util.tree_structure(params))
print(
    jax.eval_shape(apply, params, jnp.zeros((5, 8, 8, 1))),
    jax.make_jaxpr(lambda x: x + 1)(1.0) is not None,
)
per_ex = jax.vmap(grad(lambda p, x, y: -apply(p, x[None])[0, y]), in_axes=(None, 0, 0))(
    params, b[0][:3], b[1][:3]
)
print(per_ex[0][0].shape)
H = jax.jit(lambda v: jax.jvp(grad(lambda p: loss(unravel(p), b, key)), (flat,), (v,))[1])(
    jnp.ones_like(flat)
)
print(H.shape)
y = lax.conv_transpose(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 3)), (2, 2), "SAME")
print(
    y.shape,
    lax.conv_general_dilated(
        jnp.ones((1, 2, 6)), jnp.ones((3, 1, 3)), (1,), [(1, 1)], feature_group_count=1
    ).shape
    if False
    else "",
)
J = jax.jacfwd(lambda x: jnp.sin(x) * x[0])(jnp.arange(3.0))
print(
    J,
    jax.jacrev(jnp.cumsum)(jnp.arange(3.0)),
    jax.hessian(lambda x: jnp.prod(x))(jnp.array([1.0, 2.0, 3.0])),
)
print(
    jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(1.0),
    jax.lax.stop_gradient(3.0),
    jax.device_count() >= 1,
    jax.devices()[0].platform,
)


class Stack:
    def __init__(self, a, b):
        self.a, self.b = a, b


tree_util.register_pytree_node(Stack, lambda s: ((s.a, s.b), None), lambda _, c: Stack(*c))
print(jax.tree.map(lambda x: x * 2, Stack(1.0, jnp.ones(2))).b)
x = jnp.arange(6.0).reshape(2, 3)
x = x.at[0, 1].set(9).at[:, 2].multiply(2).at[jnp.array([0, 0]), 0].add(1.0)
print(x, x.at[5, 5].get(mode="fill", fill_value=-1) if True else "")
jax.debug.print("x = {x}", x=x.sum())
print(
    jnp.allclose(jax.nn.softmax(x).sum(-1), 1),
    jax.nn.gelu(1.0),
    jnp.select([x > 3, x > 1], [x, -x], 0),
    jnp.where(x > 2, size=3),
    jnp.unique(x, size=4),
    jax.random.choice(random.key(1), 5, (3,), replace=False).shape,
)
with jax.disable_jit():
    print(update(params, st, b, key)[2] > 0)
