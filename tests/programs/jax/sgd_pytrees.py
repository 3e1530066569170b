"""A linear and a convolutional model in containers of one's own, trained by SGD with a schedule."""

from typing import NamedTuple

import numpy as np

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import lax


class TrainingState(NamedTuple):
    params: dict
    velocity: dict
    step: jax.Array


@jax.tree_util.register_pytree_node_class
class Schedule:
    def __init__(self, rate, steps):
        self.rate, self.steps = rate, steps

    def tree_flatten(self):
        return (self.rate,), self.steps

    @classmethod
    def tree_unflatten(cls, steps, children):
        return cls(children[0], steps)

    def __call__(self, step):
        return self.rate * 0.5 * (1 + jnp.cos(jnp.pi * step / self.steps))


def init(rng):
    return {
        "conv": {"w": jnp.asarray(rng.normal(size=(4, 1, 3, 3)) * 0.3), "b": jnp.zeros((4, 1, 1))},
        "dense": {"w": jnp.asarray(rng.normal(size=(16, 2)) * 0.3), "b": jnp.zeros(2)},
    }


def forward(params, images):
    x = lax.conv_general_dilated(images, params["conv"]["w"], (2, 2), "SAME")
    x = jax.nn.relu(x + params["conv"]["b"])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(x.shape[0], -1) @ params["dense"]["w"] + params["dense"]["b"]


def loss_fn(params, images, labels):
    logits = jax.nn.log_softmax(forward(params, images))
    decay = sum(jnp.vdot(p, p) for p in jax.tree_util.tree_leaves(params))
    picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    return -jnp.mean(picked) + 1e-4 * decay


@jax.jit
def update(state, schedule, images, labels):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, images, labels)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, state.velocity, grads)
    rate = schedule(state.step)
    params = jax.tree_util.tree_map(lambda p, v: p - rate * v, state.params, velocity)
    return TrainingState(params, velocity, state.step + 1), loss


def main(steps=60):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 64)
    images = rng.normal(size=(64, 1, 8, 8))
    images[labels == 1, :, :, 4:] += 1.0  # brighter at the right
    params = init(rng)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    state = TrainingState(params, zeros, jnp.zeros((), jnp.int32))
    schedule = Schedule(jnp.float32(0.1), steps)
    images, labels = jnp.asarray(images), jnp.asarray(labels)
    first = loss_fn(params, images, labels)
    for _ in range(steps):
        state, loss = update(state, schedule, images, labels)
    sizes = {k: v["w"].shape for k, v in state.params.items()}
    assert sizes == {"conv": (4, 1, 3, 3), "dense": (16, 2)}
    assert int(state.step) == steps
    return float(first), float(loss)


if __name__ == "__main__":
    print(main())
