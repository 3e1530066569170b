"""A program for JAX: kalman."""

import jax
import jax.numpy as jnp
from jax import lax, jit, random
from typing import NamedTuple


class Params(NamedTuple):
    A: jnp.ndarray
    C: jnp.ndarray
    Q: jnp.ndarray
    R: jnp.ndarray


class State(NamedTuple):
    mean: jnp.ndarray
    cov: jnp.ndarray


dt = 0.1
p = Params(
    jnp.array([[1.0, dt], [0, 1.0]]), jnp.array([[1.0, 0]]), 0.01 * jnp.eye(2), jnp.array([[0.25]])
)


def simulate(key, p, T):
    k0, k1 = random.split(key)

    def step(x, key):
        kq, kr = random.split(key)
        x = p.A @ x + random.multivariate_normal(kq, jnp.zeros(2), p.Q)
        return x, (x, p.C @ x + random.normal(kr, (1,)) * jnp.sqrt(p.R[0, 0]))

    return lax.scan(step, jnp.array([0.0, 1.0]), random.split(k1, T))[1]


@jit
def kalman(p, ys):
    def step(carry, y):
        s, ll = carry
        m, P = p.A @ s.mean, p.A @ s.cov @ p.A.T + p.Q
        S = p.C @ P @ p.C.T + p.R
        K = jnp.linalg.solve(S, p.C @ P).T
        r = y - p.C @ m
        ll = ll - 0.5 * (r @ jnp.linalg.solve(S, r) + jnp.linalg.slogdet(2 * jnp.pi * S)[1])
        new = State(m + K @ r, (jnp.eye(2) - K @ p.C) @ P)
        return (new, ll), new

    (_, ll), states = lax.scan(step, (State(jnp.zeros(2), jnp.eye(2)), 0.0), ys)
    return ll, states


xs, ys = simulate(random.key(1), p, 40)
ll, st = kalman(p, ys)
print(ll, st.mean.shape, st.cov.shape)
rmse = jnp.sqrt(jnp.mean((st.mean[:, 0] - xs[:, 0]) ** 2))
raw = jnp.sqrt(jnp.mean((ys[:, 0] - xs[:, 0]) ** 2))
print(rmse, raw)
assert rmse < raw
g = jax.grad(lambda q: kalman(p._replace(Q=q * jnp.eye(2)), ys)[0])(0.01)
print("dQ", g)


# smoother backwards
def back(nxt, inp):
    s = inp
    P1 = p.A @ s.cov @ p.A.T + p.Q
    G = jnp.linalg.solve(P1, p.A @ s.cov).T
    new = State(s.mean + G @ (nxt.mean - p.A @ s.mean), s.cov + G @ (nxt.cov - P1) @ G.T)
    return new, new


last = jax.tree.map(lambda a: a[-1], st)
rest = jax.tree.map(lambda a: a[:-1], st)
_, sm = lax.scan(back, last, rest, reverse=True)
print(jnp.sqrt(jnp.mean((sm.mean[:, 0] - xs[:-1, 0]) ** 2)))
assoc = lax.associative_scan(jnp.matmul, jnp.stack([p.A] * 5))
print(assoc[-1])
x = lax.while_loop(
    lambda v: jnp.abs(v[0] ** 2 - 2) > 1e-6, lambda v: ((v[0] + 2 / v[0]) / 2, v[1] + 1), (1.0, 0)
)
print(x)
print(
    lax.cond(True, lambda a: a + 1, lambda a: a - 1, 3.0),
    lax.switch(1, [jnp.sin, jnp.cos], 0.0),
    lax.fori_loop(0, 5, lambda i, a: a * 2, 1),
    lax.map(lambda a: a**2, jnp.arange(4)),
)
