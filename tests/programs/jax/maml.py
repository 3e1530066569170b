"""Model-agnostic meta-learning of sines: a gradient through a gradient step, batched by vmap."""

from functools import partial

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import grad, jit, random, tree_util, vmap
from numus.jax.nn.initializers import glorot_normal, zeros


def init(key, sizes):
    params = []
    for m, n in zip(sizes[:-1], sizes[1:]):
        key, w_key = random.split(key)
        params.append({"w": glorot_normal()(w_key, (m, n)), "b": zeros(key, (n,))})
    return params


def net(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss(params, inputs, targets):
    return jnp.mean((targets - net(params, inputs)) ** 2)


def inner_update(p, x1, y1, alpha=0.1):
    grads = grad(loss)(p, x1, y1)
    return tree_util.tree_map(lambda g, p: p - alpha * g, grads, p)


def maml_loss(p, x1, y1, x2, y2):
    return loss(inner_update(p, x1, y1), x2, y2)


def batch_maml_loss(p, *batch):
    return jnp.mean(vmap(partial(maml_loss, p))(*batch))


def sample_tasks(key, outer_batch_size, inner_batch_size):
    a_key, p_key, x1_key, x2_key = random.split(key, 4)
    amplitude = random.uniform(a_key, (outer_batch_size, 1, 1), minval=0.1, maxval=3.0)
    phase = random.uniform(p_key, (outer_batch_size, 1, 1), minval=0.0, maxval=jnp.pi)
    shape = (outer_batch_size, inner_batch_size, 1)
    x1, x2 = (random.uniform(k, shape, minval=-3.0, maxval=3.0) for k in (x1_key, x2_key))
    return x1, amplitude * jnp.sin(x1 + phase), x2, amplitude * jnp.sin(x2 + phase)


@jit
def step(state, key):
    params, momentum = state
    value, grads = jax.value_and_grad(batch_maml_loss)(params, *sample_tasks(key, 8, 20))
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 1e-2 * m, params, momentum)
    return (params, momentum), value


def main(steps=200):
    key = random.PRNGKey(1)
    params = init(key, [1, 40, 40, 1])
    state = (params, jax.tree.map(jnp.zeros_like, params))
    losses = []
    for key in random.split(key, steps):
        state, value = step(state, key)
        losses.append(value)
    losses = jnp.stack(losses)
    return float(losses[:10].mean()), float(losses[-10:].mean())


if __name__ == "__main__":
    print(main())
