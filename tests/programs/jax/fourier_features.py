"""An image learned from coordinates through random Fourier features (Tancik and others 2020)."""

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import random


def target(coords):
    x, y = coords[..., 0], coords[..., 1]
    return jnp.stack([jnp.sin(12 * x) * jnp.cos(9 * y), jnp.where(x > y, 1.0, -1.0)], axis=-1)


def input_mapping(x, B):
    if B is None:
        return x
    x_proj = (2.0 * jnp.pi * x) @ B.T
    return jnp.concatenate([jnp.sin(x_proj), jnp.cos(x_proj)], axis=-1)


def init_network(key, sizes):
    params = []
    for n_in, n_out in zip(sizes[:-1], sizes[1:]):
        key, sub = random.split(key)
        params.append(
            {"w": random.normal(sub, (n_in, n_out)) * jnp.sqrt(2.0 / n_in), "b": jnp.zeros(n_out)}
        )
    return params


def apply(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def adam_init(params):
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    return zeros, zeros, jnp.zeros((), jnp.int32)


@jax.jit
def adam_update(params, grads, state, lr=5e-3, b1=0.9, b2=0.999):
    m, v, t = state
    t = t + 1
    m = jax.tree_util.tree_map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree_util.tree_map(lambda v, g: b2 * v + (1 - b2) * g**2, v, grads)
    scale = jnp.sqrt(1 - b2**t) / (1 - b1**t)
    params = jax.tree_util.tree_map(
        lambda p, m, v: p - lr * scale * m / (jnp.sqrt(v) + 1e-8), params, m, v
    )
    return params, (m, v, t)


def main(steps=300, size=16):
    key = random.PRNGKey(0)
    B = random.normal(key, (24, 2)) * 2.0
    axis = jnp.linspace(0, 1, size, endpoint=False)
    coords = jnp.stack(jnp.meshgrid(axis, axis), axis=-1)
    x, y = input_mapping(coords, B), target(coords)

    def loss(params):
        return 0.5 * jnp.mean((apply(params, x) - y) ** 2)

    params = init_network(key, [x.shape[-1], 32, 2])
    state = adam_init(params)
    step = jax.jit(jax.value_and_grad(loss))
    history = []
    for _ in range(steps):
        value, grads = step(params)
        params, state = adam_update(params, grads, state)
        history.append(float(value))
    return history[0], history[-1]


if __name__ == "__main__":
    print(main())
