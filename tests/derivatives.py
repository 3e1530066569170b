"""Derivatives of a function: reverse and forward mode against finite differences."""

import numpy as np

import numus as nm
from numus.transforms import grad, jvp, vjp, vmap


def reverse(f, arrays, cotangent):
    """The cotangents of the inputs."""
    _, pull = vjp(f, *map(nm.asarray, arrays))
    return [g.numpy() for g in pull(nm.asarray(cotangent))]


def forward(f, arrays, tangents):
    """The tangent of the output."""
    _, tangent = jvp(f, tuple(map(nm.asarray, arrays)), tuple(map(nm.asarray, tangents)))
    return tangent.numpy()


def check(f, *arrays, seed=12345, step=1e-6, rtol=1e-5, atol=1e-7):
    """Forward mode against central differences, and reverse mode against those."""
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(a) for a in arrays]

    def like(a):
        t = rng.standard_normal(a.shape)
        return t + 1j * rng.standard_normal(a.shape) if np.iscomplexobj(a) else t

    def value(sign):
        moved = (a + sign * step * t for a, t in zip(arrays, tangents, strict=True))
        return f(*map(nm.asarray, moved)).numpy()

    tangents = [like(a) for a in arrays]
    expected = (value(1) - value(-1)) / (2 * step)
    np.testing.assert_allclose(forward(f, arrays, tangents), expected, rtol, atol)
    w = like(expected)
    pulled = reverse(f, arrays, w)
    left = np.sum(np.conj(w) * expected).real
    right = sum(np.sum(np.conj(p) * t).real for p, t in zip(pulled, tangents, strict=True))
    np.testing.assert_allclose(right, left, rtol, atol * max(1, expected.size))


def check_second(f, *arrays, **tolerances):
    """The same for the gradient of a weighted sum of f, which every derivative of f goes into."""
    weights = np.random.default_rng(1).standard_normal(f(*map(nm.asarray, arrays)).shape)

    def total(*xs):
        found = nm.sum(f(*xs) * nm.asarray(weights))
        return nm.real(found) if found.dtype.is_complex else found

    def gradient(*xs):
        return grad(total)(*xs)

    check(gradient, *arrays, **tolerances)


def check_batched(f, *arrays):
    """vmap over a new leading axis against a loop along it."""
    stacks = [np.stack([a * (1 + 0.1 * i) for i in range(3)]) for a in map(np.asarray, arrays)]
    together = vmap(f)(*map(nm.asarray, stacks)).numpy()
    one_by_one = [f(*(nm.asarray(s[i]) for s in stacks)).numpy() for i in range(3)]
    np.testing.assert_allclose(together, np.stack(one_by_one), rtol=1e-10, atol=1e-12)
