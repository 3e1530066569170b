"""A classifier of spirals, with gradients per example by vmap, clipped and averaged."""

from functools import partial

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import grad, jit, random, vmap
from numus.jax.scipy.special import logsumexp


def random_layer_params(m, n, key, scale=1e-1):
    w_key, b_key = random.split(key)
    return scale * random.normal(w_key, (n, m)), scale * random.normal(b_key, (n,))


def init_network_params(sizes, key):
    keys = random.split(key, len(sizes))
    return [random_layer_params(m, n, k, 0.5) for m, n, k in zip(sizes[:-1], sizes[1:], keys)]


def predict(params, point):
    activations = point
    for w, b in params[:-1]:
        activations = jnp.tanh(jnp.dot(w, activations) + b)
    final_w, final_b = params[-1]
    logits = jnp.dot(final_w, activations) + final_b
    return logits - logsumexp(logits)


batched_predict = vmap(predict, in_axes=(None, 0))


def loss(params, point, target):
    return -jnp.sum(predict(params, point) * target)


def accuracy(params, points, targets):
    target_class = jnp.argmax(targets, axis=1)
    predicted_class = jnp.argmax(batched_predict(params, points), axis=1)
    return jnp.mean(predicted_class == target_class)


@partial(jit, static_argnames=["clip"])
def update(params, x, y, lr, clip=1.0):
    grads = vmap(grad(loss), in_axes=(None, 0, 0))(params, x, y)
    leaves = jax.tree_util.tree_leaves(grads)
    norms = jnp.sqrt(sum(jnp.sum(g.reshape(g.shape[0], -1) ** 2, axis=1) for g in leaves))
    scale = jnp.minimum(1.0, clip / norms)
    mean = jax.tree_util.tree_map(lambda g: jnp.einsum("b,b...->...", scale, g) / len(scale), grads)
    return [(w - lr * dw, b - lr * db) for (w, b), (dw, db) in zip(params, mean)]


def spirals(key, n):
    t = jnp.sqrt(random.uniform(key, (n,))) * 3.0
    label = jnp.arange(n) % 2
    angle = t + jnp.pi * label
    points = jnp.stack([t * jnp.cos(angle), t * jnp.sin(angle)], axis=1)
    return points, jax.nn.one_hot(label, 2)


def main(steps=300):
    key, data_key = random.split(random.PRNGKey(0))
    points, targets = spirals(data_key, 128)
    params = init_network_params([2, 32, 32, 2], key)
    before = accuracy(params, points, targets)
    for _ in range(steps):
        params = update(params, points, targets, 0.5)
    return float(before), float(accuracy(params, points, targets))


if __name__ == "__main__":
    print(main())
