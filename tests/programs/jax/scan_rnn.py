"""A gated recurrent network under lax.scan that remembers the first symbol of a sequence."""

from functools import partial

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import lax, random


def gru_init(key, inputs, hidden):
    keys = random.split(key, 3)
    return {
        "wi": jax.nn.initializers.lecun_normal()(keys[0], (inputs, 3 * hidden)),
        "wh": jax.nn.initializers.orthogonal()(keys[1], (hidden, 3 * hidden)),
        "b": jnp.zeros(3 * hidden),
        "out": jax.nn.initializers.lecun_normal()(keys[2], (hidden, inputs)),
    }


def gru_step(params, h, x):
    gates_x = x @ params["wi"] + params["b"]
    gates_h = h @ params["wh"]
    rx, zx, nx = jnp.split(gates_x, 3, axis=-1)
    rh, zh, nh = jnp.split(gates_h, 3, axis=-1)
    r, z = jax.nn.sigmoid(rx + rh), jax.nn.sigmoid(zx + zh)
    n = jnp.tanh(nx + r * nh)
    h = (1 - z) * n + z * h
    return h, h


@partial(jax.checkpoint)
def logits_of(params, h):
    return h @ params["out"]


def loss_fn(params, tokens, classes):
    x = jnp.swapaxes(jax.nn.one_hot(tokens, classes), 0, 1)
    h0 = jnp.zeros((tokens.shape[0], params["wh"].shape[0]))
    h, hs = lax.scan(partial(gru_step, params), h0, x)
    assert hs.shape == (x.shape[0], *h.shape)
    logp = jax.nn.log_softmax(logits_of(params, h))
    return -jnp.mean(jnp.sum(logp * jax.nn.one_hot(tokens[:, 0], classes), axis=-1))


@partial(jax.jit, static_argnums=3)
def update(params, squares, tokens, classes):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, classes)
    squares = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g * g, squares, grads)
    params = jax.tree.map(
        lambda p, g, s: p - 0.02 * g * lax.rsqrt(s + 1e-8), params, grads, squares
    )
    return params, squares, loss


def main(steps=80):
    key = random.PRNGKey(42)
    key, init_key = random.split(key)
    params = gru_init(init_key, 4, 24)
    squares = jax.tree.map(jnp.zeros_like, params)
    losses = []
    for i in range(steps):
        tokens = random.randint(random.fold_in(key, i), (32, 8), 0, 4)
        params, squares, loss = update(params, squares, tokens, 4)
        losses.append(float(loss))
    return losses[0], losses[-1]


if __name__ == "__main__":
    print(main())
