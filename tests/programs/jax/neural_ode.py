"""A neural differential equation: fourth-order Runge-Kutta under lax.scan, fitted to a spiral."""

import numus.jax as jax
import numus.jax.numpy as jnp
from numus.jax import lax, random


def field(params, y, t):
    (w1, b1), (w2, b2) = params
    return jnp.tanh(y**3 @ w1 + b1) @ w2 + b2


def odeint(func, y0, ts, params):
    def rk4(y, t_and_h):
        t, h = t_and_h
        k1 = func(params, y, t)
        k2 = func(params, y + h * k1 / 2, t + h / 2)
        k3 = func(params, y + h * k2 / 2, t + h / 2)
        k4 = func(params, y + h * k3, t + h)
        y = y + h * (k1 + 2 * k2 + 2 * k3 + k4) / 6
        return y, y

    _, ys = lax.scan(rk4, y0, (ts[:-1], jnp.diff(ts)))
    return jnp.concatenate([y0[None], ys])


def spiral(params, y, t):
    return y**3 @ params


def loss_fn(params, y0, ts, target):
    predicted = jax.vmap(lambda y: odeint(field, y, ts, params), out_axes=1)(y0)
    return jnp.mean(jnp.abs(predicted - target))


def adam(params, grads, state, lr=1e-2, b1=0.9, b2=0.999):
    count, mu, nu = state
    count = count + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, nu, grads)
    scale = lr * jnp.sqrt(1 - b2**count) / (1 - b1**count)
    params = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
    return params, (count, mu, nu)


@jax.jit
def train_step(params, state, y0, ts, target):
    loss, grads = jax.value_and_grad(loss_fn)(params, y0, ts, target)
    params, state = adam(params, grads, state)
    return params, state, loss


def main(steps=120):
    key1, key2 = random.split(random.key(0))
    params = [
        (random.normal(key1, (2, 32)) * 0.3, jnp.zeros(32)),
        (random.normal(key2, (32, 2)) * 0.1, jnp.zeros(2)),
    ]
    ts = jnp.linspace(0.0, 1.5, 20)
    y0 = jnp.array([[2.0, 0.0], [0.0, 1.5], [-1.0, 1.0]])
    true = jnp.array([[-0.1, 2.0], [-2.0, -0.1]])
    target = jax.vmap(lambda y: odeint(spiral, y, ts, true), out_axes=1)(y0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (jnp.array(0.0), zeros, zeros)
    first = loss_fn(params, y0, ts, target)
    for _ in range(steps):
        params, state, loss = train_step(params, state, y0, ts, target)
    return float(first), float(loss)


if __name__ == "__main__":
    print(main())
