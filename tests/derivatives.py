"""Derivatives of a function by the rules of its primitives, against finite differences."""

import numpy as np

import numus as nm
from numus.evaluation import host_array
from numus.functions._base import node_of
from numus.primitives import elementwise as ew


def _fresh(array):
    node = node_of(np.array(array), "test")
    node.tracked = True
    return node


def _order(root):
    order, seen = [], set()

    def visit(node):
        if node in seen:
            return
        seen.add(node)
        for x in node.inputs:
            visit(x)
        order.append(node)

    visit(root)
    return order


def reverse(f, arrays, cotangent):
    """The cotangents of the inputs."""
    inputs = [_fresh(a) for a in arrays]
    out = f(*(nm.Tensor(n) for n in inputs))._node
    order = _order(out)
    found = {out: _fresh(cotangent)}
    for node in reversed(order):
        g = found.get(node)
        if g is None or not node.inputs or not node.tracked:
            continue
        for x, d in zip(node.inputs, node.prim.vjp(node, g), strict=True):
            if d is not None and x.tracked:
                assert d.shape == x.shape
                assert d.dtype is x.dtype
                found[x] = ew.add(found[x], d) if x in found else d
    return [
        host_array(found[n]).copy() if n in found else np.zeros_like(a)
        for n, a in zip(inputs, arrays, strict=True)
    ]


def forward(f, arrays, tangents):
    """The tangent of the output."""
    inputs = [_fresh(a) for a in arrays]
    out = f(*(nm.Tensor(n) for n in inputs))._node
    found = dict(zip(inputs, (_fresh(t) for t in tangents), strict=True))
    for node in _order(out):
        if node.inputs and node.tracked:
            tangent = node.prim.jvp(node, [found.get(x) for x in node.inputs])
            if tangent is not None:
                assert tangent.shape == node.shape
                found[node] = tangent
    return host_array(found[out]).copy() if out in found else np.zeros(out.shape)


def value_of(f, arrays):
    return f(*(nm.Tensor(_fresh(a)) for a in arrays)).numpy()


def check(f, *arrays, seed=0, step=1e-6, rtol=1e-5, atol=1e-7):
    """Reverse against forward, and forward against central differences."""
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(a) for a in arrays]

    def like(a):
        t = rng.standard_normal(a.shape)
        return t + 1j * rng.standard_normal(a.shape) if np.iscomplexobj(a) else t

    tangents = [like(a) for a in arrays]
    plus = value_of(f, [a + step * t for a, t in zip(arrays, tangents, strict=True)])
    minus = value_of(f, [a - step * t for a, t in zip(arrays, tangents, strict=True)])
    expected = (plus - minus) / (2 * step)
    np.testing.assert_allclose(forward(f, arrays, tangents), expected, rtol, atol)
    w = like(expected)
    pulled = reverse(f, arrays, w)
    left = np.sum(np.conj(w) * expected).real
    right = sum(np.sum(np.conj(p) * t).real for p, t in zip(pulled, tangents, strict=True))
    np.testing.assert_allclose(right, left, rtol, atol * max(1, expected.size))
