"""NumPy references of unblocked factorisations, over whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.graph import Array


def cholesky(a: Array, params: Any) -> Array:
    n = a.shape[-1]
    u = np.triu(np.conj(np.swapaxes(np.tril(a), -1, -2)))
    with np.errstate(all="ignore"):
        for k in range(n):
            pivot = u[:, k, k].real
            u[:, k, k] = np.where(pivot > 0, np.sqrt(np.abs(pivot)), np.nan)
            u[:, k, k + 1 :] /= u[:, k, k, None]
            row = u[:, k, k + 1 :]
            u[:, k + 1 :, k + 1 :] -= np.triu(np.conj(row)[:, :, None] * row[:, None, :])
    return u


def _magnitude(a: Array) -> Array:
    return np.abs(a.real) + np.abs(a.imag) if np.iscomplexobj(a) else np.abs(a)


def lu(a: Array, params: Any) -> Array:
    batch, m, n = a.shape
    numbers = np.broadcast_to(np.arange(m, dtype=a.dtype)[None, :, None], (batch, m, 1))
    out = np.concatenate([a, numbers, np.zeros_like(numbers)], axis=-1)
    each = np.arange(batch)
    with np.errstate(all="ignore"):
        for k in range(min(m, n)):
            sizes = _magnitude(out[:, k:, k])
            row = k + np.where(np.isnan(sizes).any(-1), 0, np.argmax(sizes, axis=-1))
            lower = out[each, row, : n + 1].copy()
            out[each, row, : n + 1] = out[:, k, : n + 1]
            out[:, k, : n + 1] = lower
            out[:, k, n + 1] = row
            pivot = out[:, k, k, None]
            out[:, k + 1 :, k] = np.where(pivot == 0, 0, out[:, k + 1 :, k] / pivot)
            update = out[:, k + 1 :, k, None] * out[:, k, None, k + 1 : n]
            out[:, k + 1 :, k + 1 : n] -= update
    return out


def solve_lower(a: Array, b: Array, unit_diagonal: bool) -> Array:
    x = b.copy()
    with np.errstate(all="ignore"):
        for k in range(a.shape[-1]):
            if not unit_diagonal:
                x[:, k] /= a[:, k, k, None]
            x[:, k + 1 :] -= a[:, k + 1 :, k, None] * x[:, k, None, :]
    return x


def row_order(swaps: Array, n: int) -> Array:
    order = np.tile(np.arange(n, dtype=swaps.dtype), (len(swaps), 1))
    each = np.arange(len(swaps))
    for k, other in enumerate(swaps.T):
        upper = order[:, k].copy()
        order[:, k] = order[each, other]
        order[each, other] = upper
    return order


def solve_triangular(a: Array, b: Array, triangle: tuple[bool, bool]) -> Array:
    lower, unit = triangle
    if lower:
        return solve_lower(a, b, unit)
    return solve_lower(a[:, ::-1, ::-1], b[:, ::-1], unit)[:, ::-1].copy()


def solve_vectors(a: Array, b: Array, triangle: tuple[bool, bool]) -> Array:
    x = solve_triangular(a, np.swapaxes(b, -1, -2), triangle)
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


def substitute_vectors(a: Array, inverses: Array, b: Array, unit_diagonal: bool) -> Array:
    return solve_vectors(a, b, (True, unit_diagonal))


def householder(a: Array, params: Any) -> Array:
    batch, m, n = a.shape
    out = np.concatenate([a, np.zeros((batch, 1, n), a.dtype)], axis=1)
    with np.errstate(all="ignore"):
        for k in range(min(m, n)):
            alpha, x = out[:, k, k].copy(), out[:, k + 1 : m, k]
            below = np.sum(np.abs(x) ** 2, axis=-1)
            trivial = (below == 0) & (alpha.imag == 0)
            size = np.sqrt(np.abs(alpha) ** 2 + below)
            beta = np.where(trivial, alpha.real, -np.copysign(size, alpha.real))
            tau = np.where(trivial, 0, (beta - alpha) / np.where(trivial, 1, beta))
            out[:, k + 1 : m, k] = x / np.where(trivial, 1, alpha - beta)[:, None]
            v = out[:, k + 1 : m, k]
            rest = out[:, k:m, k + 1 :]
            w = rest[:, 0] + np.einsum("bi,bij->bj", np.conj(v), rest[:, 1:])
            w = w * np.conj(tau)[:, None]
            rest[:, 0] -= w
            rest[:, 1:] -= v[:, :, None] * w[:, None, :]
            out[:, k, k], out[:, m, k] = beta, tau
    return out


def orthogonalize(a: Array, width: int) -> Array:
    out = a.copy()
    rows = a.shape[1]
    epsilon = np.finfo(a.dtype).eps
    for _ in range(40):
        rotated = False
        for x in range(rows):
            for y in range(x + 1, rows):
                rotated |= _rotate(out, x, y, width, epsilon)
        if not rotated:
            break
    return out


def _rotate(out: Array, x: int, y: int, width: int, epsilon: float) -> bool:
    u, v = out[:, x].copy(), out[:, y].copy()
    a, b = (np.sum(np.abs(r[:, :width]) ** 2, axis=-1) for r in (u, v))
    inner = np.sum(u[:, :width] * np.conj(v[:, :width]), axis=-1)
    length = np.abs(inner)
    least = np.finfo(a.dtype).smallest_normal / np.finfo(a.dtype).eps
    needed = length > np.maximum(epsilon * np.sqrt(width * 1.0) * np.sqrt(a) * np.sqrt(b), least)
    if not needed.any():
        return False
    length = np.where(needed, length, 1)
    zeta = (b - a) / (2 * length)
    tangent = np.copysign(1, zeta) / (np.abs(zeta) + np.sqrt(1 + zeta**2))
    cosine = 1 / np.sqrt(1 + tangent**2)
    sine = inner * (cosine * tangent / length)
    cosine = np.where(needed, cosine, 1).astype(a.dtype)[:, None]
    sine = np.where(needed, sine, 0).astype(out.dtype)[:, None]
    out[:, x] = cosine * u - sine * v
    out[:, y] = cosine * v + np.conj(sine) * u
    return True


def lower_cholesky(a: Array, params: Any) -> Array:
    n = a.shape[-1]
    lower = np.conj(np.swapaxes(cholesky(a[:, :n], params), -1, -2))
    rest = solve_lower(lower, np.conj(np.swapaxes(a[:, n:], -1, -2)), False)
    return np.concatenate([lower, np.conj(np.swapaxes(rest, -1, -2))], axis=1)


def cholesky_and_inverse(a: Array, params: Any) -> Array:
    lower = lower_cholesky(a, params)
    return np.concatenate([lower, lower_inverse(lower, False)], axis=-1)


def lower_inverse(a: Array, unit_diagonal: bool) -> Array:
    one = np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return solve_lower(a, one, unit_diagonal)


def solve(a: Array, b: Array, params: Any) -> Array:
    n = a.shape[-1]
    packed = lu(a, params)
    order = packed[..., n].real.astype(np.int64)
    x = solve_lower(packed[..., :n], np.take_along_axis(b, order[..., None], axis=1), True)
    with np.errstate(all="ignore"):
        for k in reversed(range(n)):
            x[:, k] /= packed[:, k, k, None]
            x[:, :k] -= packed[:, :k, k, None] * x[:, k, None, :]
    x[(np.diagonal(packed[..., :n], axis1=-2, axis2=-1) == 0).any(-1)] = np.nan
    return x


def inverse(a: Array, params: Any) -> Array:
    return solve(a, np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape), params)


def determinant(a: Array, params: Any) -> Array:
    n = a.shape[-1]
    packed = lu(a, params)
    moved = (packed[..., n + 1].real != np.arange(n)).sum(axis=-1)
    pivots = np.diagonal(packed[..., :n], axis1=-2, axis2=-1)
    return (np.prod(pivots, axis=-1) * (1 - 2 * (moved % 2)))[:, None, None].astype(a.dtype)


def qr(a: Array, vectors: bool) -> Array:
    return np.concatenate(np.linalg.qr(a), axis=1) if vectors else np.array(np.linalg.qr(a, "r"))


def eigh(a: Array, vectors: bool) -> Array:
    values, columns = np.linalg.eigh(a)
    found = values[:, None, :].astype(a.dtype)
    return np.concatenate([found, columns], axis=1) if vectors else found


def svd(a: Array, vectors: bool) -> Array:
    """NaN for matrices that are not finite, at which NumPy raises."""
    finite = np.isfinite(a).all(axis=(-2, -1), keepdims=True)
    return np.where(finite, _svd(np.where(finite, a, 0), vectors), np.nan).astype(a.dtype)


def _svd(a: Array, vectors: bool) -> Array:
    if not vectors:
        return np.linalg.svd(a, compute_uv=False)[:, None, :].astype(a.dtype)
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    right = np.conj(np.swapaxes(vh, -1, -2))
    return np.concatenate([u, right, s[:, None, :].astype(a.dtype)], axis=1)
