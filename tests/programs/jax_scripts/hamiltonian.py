"""A program for JAX: hamiltonian."""

from functools import partial
import jax
import jax.numpy as jnp
import numpy as onp
from jax import random, lax

jax.config.update("jax_enable_x64", False)


def log_prob(x):
    return -0.5 * jnp.sum(x @ jnp.linalg.inv(jnp.array([[1.0, 0.8], [0.8, 1.0]])) * x, axis=-1)


def leapfrog(q, p, eps, n):
    g = jax.grad(log_prob)

    def body(_, qp):
        q, p = qp
        p = p + 0.5 * eps * g(q)
        q = q + eps * p
        return q, p + 0.5 * eps * g(q)

    return lax.fori_loop(0, n, body, (q, p))


@partial(jax.jit, static_argnums=(2, 3))
def hmc_step(key, q, eps, n):
    key, k1, k2 = random.split(key, 3)
    p0 = random.normal(k1, q.shape)
    q1, p1 = leapfrog(q, p0, eps, n)
    accept = (
        jnp.log(random.uniform(k2)) < log_prob(q1) - 0.5 * p1 @ p1 - log_prob(q) + 0.5 * p0 @ p0
    )
    return key, jnp.where(accept, q1, q), accept


key = random.PRNGKey(0)
q = jnp.zeros(2)
qs = []
for i in range(60):
    key, q, a = hmc_step(key, q, 0.25, 8)
    qs.append(q)
qs = jnp.stack(qs)
print(qs.mean(0), onp.cov(onp.asarray(qs).T))


# chains with vmap + scan
def chain(key):
    def step(c, k):
        k1, k2 = random.split(k)
        _, q, a = hmc_step(k1, c, 0.25, 8)
        return q, (q, a)

    return lax.scan(step, random.normal(key, (2,)), random.split(key, 30))[1]


s, acc = jax.vmap(chain)(random.split(random.PRNGKey(1), 16))
print(s.shape, acc.mean(), jnp.corrcoef(s.reshape(-1, 2), rowvar=False)[0, 1])
assert acc.mean() > 0.6 and jnp.corrcoef(s.reshape(-1, 2).T)[0, 1] > 0.5


# custom_vjp / custom_jvp, vmapped Newton, implicit diff
@jax.custom_vjp
def clip_gradient(lo, hi, x):
    return x


def fwd(lo, hi, x):
    return x, (lo, hi)


def bwd(res, g):
    lo, hi = res
    return (None, None, jnp.clip(g, lo, hi))


clip_gradient.defvjp(fwd, bwd)
print(jax.grad(lambda x: jnp.sin(clip_gradient(-0.75, 0.75, x)))(0.1))


@jax.custom_jvp
def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


@log1pexp.defjvp
def log1pexp_jvp(primals, tangents):
    (x,) = primals
    (t,) = tangents
    return log1pexp(x), (1 - 1 / (1 + jnp.exp(x))) * t


print(jax.grad(log1pexp)(100.0), jax.vmap(jax.jit(jax.grad(jax.grad(log1pexp))))(jnp.arange(3.0)))


def newton(f, x0, n=10):
    def body(x, _):
        x = x - f(x) / jax.grad(f)(x)
        return x, x

    return lax.scan(body, x0, None, length=n)[0]


print(jax.vmap(lambda a: newton(lambda x: x**3 - a, 1.0))(jnp.array([1.0, 8.0, 27.0])))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fixed_point(f, a, x_guess):
    def cond_fun(carry):
        x_prev, x = carry
        return jnp.abs(x_prev - x) > 1e-6

    def body_fun(carry):
        _, x = carry
        return x, f(a, x)

    _, x_star = lax.while_loop(cond_fun, body_fun, (x_guess, f(a, x_guess)))
    return x_star


def fixed_point_fwd(f, a, x_init):
    x_star = fixed_point(f, a, x_init)
    return x_star, (a, x_star)


def rev_iter(f, packed, u):
    a, x_star, x_star_bar = packed
    _, vjp_x = jax.vjp(lambda x: f(a, x), x_star)
    return x_star_bar + vjp_x(u)[0]


def fixed_point_rev(f, res, x_star_bar):
    a, x_star = res
    _, vjp_a = jax.vjp(lambda a: f(a, x_star), a)
    (a_bar,) = vjp_a(fixed_point(partial(rev_iter, f), (a, x_star, x_star_bar), x_star_bar))
    return a_bar, jnp.zeros_like(x_star)


fixed_point.defvjp(fixed_point_fwd, fixed_point_rev)


def newton_sqrt(a):
    return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a / 2)


print(newton_sqrt(2.0), jax.grad(newton_sqrt)(2.0), jax.grad(jax.grad(newton_sqrt))(2.0))
