"""A program for JAX: gaussian_process."""

import jax
import jax.numpy as jnp
import jax.scipy as scipy
from jax import grad, jit, vmap, value_and_grad
from jax import random
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from functools import partial


def cov_map(cov_func, xs, xs2=None):
    if xs2 is None:
        return vmap(lambda x: vmap(lambda y: cov_func(x, y))(xs))(xs)
    else:
        return vmap(lambda x: vmap(lambda y: cov_func(x, y))(xs))(xs2).T


def softplus(x):
    return jnp.logaddexp(x, 0.0)


def exp_quadratic(x1, x2):
    return jnp.exp(-jnp.sum((x1 - x2) ** 2))


def gp(params, x, y, xtest=None, compute_marginal_likelihood=False):
    noise = softplus(params["noise"])
    amp = softplus(params["amplitude"])
    ls = softplus(params["lengthscale"])
    ymean = jnp.mean(y)
    y = y - ymean
    x = x / ls
    train_cov = amp * cov_map(exp_quadratic, x) + jnp.eye(x.shape[0]) * (noise + 1e-6)
    chol = scipy.linalg.cholesky(train_cov, lower=True)
    kinvy = scipy.linalg.solve_triangular(
        chol.T, scipy.linalg.solve_triangular(chol, y, lower=True)
    )
    if compute_marginal_likelihood:
        log2pi = jnp.log(2.0 * 3.1415)
        ml = jnp.sum(
            -0.5 * jnp.dot(y.T, kinvy)
            - jnp.sum(jnp.log(jnp.diag(chol)))
            - (x.shape[0] / 2.0) * log2pi
        )
        ml -= jnp.sum(-0.5 * jnp.log(2 * 3.1415) - jnp.log(amp) - jnp.log(noise) ** 2)
        return -ml
    if xtest is not None:
        xtest = xtest / ls
    cross_cov = amp * cov_map(exp_quadratic, x, xtest)
    mu = jnp.dot(cross_cov.T, kinvy) + ymean
    v = scipy.linalg.solve_triangular(chol, cross_cov, lower=True)
    var = amp * cov_map(exp_quadratic, xtest) - jnp.dot(v.T, v)
    return mu, var


marginal_likelihood = partial(gp, compute_marginal_likelihood=True)
predict = partial(gp, compute_marginal_likelihood=False)
grad_fun = jit(grad(marginal_likelihood))
y_fun = lambda x: jnp.sin(x)
x = (jnp.linspace(-4, 4, 12))[:, None]
y = y_fun(x[:, 0]) + 0.1 * random.normal(random.PRNGKey(0), shape=(x.shape[0],))
params = {k: jnp.zeros((1,)) for k in ("amplitude", "noise", "lengthscale")}
params = {
    "amplitude": jnp.zeros((1, 1)),
    "noise": jnp.zeros((1, 1)) - 5.0,
    "lengthscale": jnp.zeros((1, 1)),
}
momentums = dict([(k, p * 0.0) for k, p in params.items()])
scales = dict([(k, p * 0.0 + 1.0) for k, p in params.items()])
lr = 0.01


def train_step(params, momentums, scales, x, y):
    grads = grad_fun(params, x, y)
    for k in params:
        momentums[k] = 0.9 * momentums[k] + 0.1 * grads[k][0]
        scales[k] = 0.9 * scales[k] + 0.1 * grads[k][0] ** 2
        params[k] -= lr * momentums[k] / jnp.sqrt(scales[k] + 1e-5)
    return params, momentums, scales


for i in range(20):
    params, momentums, scales = train_step(params, momentums, scales, x, y)
mu, var = predict(params, x, y, jnp.linspace(-3, 3, 9)[:, None])
print(jax.tree_util.tree_map(lambda a: a.shape, params), marginal_likelihood(params, x, y))
err = jnp.abs(mu - jnp.sin(jnp.linspace(-3, 3, 9))).max()
print(err)
assert err < 0.5
c = cho_factor(jnp.eye(3) * 2.0, lower=True)
print(cho_solve(c, jnp.ones(3)))
