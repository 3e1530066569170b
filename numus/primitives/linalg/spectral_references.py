"""NumPy references of non-symmetric eigenproblems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numus.graph import Array


def _each(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of matrices, over a batch."""

    def reference(*args: Any) -> Array:
        *arrays, params = args
        more = () if params is None else (params,)
        with np.errstate(all="ignore"):
            return np.stack([function(*each, *more) for each in zip(*arrays, strict=True)])

    return reference


def _reflection(x: Array) -> Array:
    """The unitary matrix, Hermitian but for a phase, that turns x towards the first axis."""
    size = np.linalg.norm(x)
    if size == 0 or not np.isfinite(size):
        return np.eye(len(x), dtype=x.dtype)
    phase = x[0] / abs(x[0]) if x[0] != 0 else 1
    v = x.copy()
    v[0] += phase * size
    v /= np.linalg.norm(v)
    return np.eye(len(x), dtype=x.dtype) - 2 * np.outer(v, np.conj(v))


def _hessenberg(a: Array) -> Array:
    n = len(a)
    h, q = a.copy(), np.eye(n, dtype=a.dtype)
    for k in range(n - 1 if np.iscomplexobj(a) else n - 2):
        turn = _reflection(h[k + 1 :, k])
        if np.iscomplexobj(a) and h[k + 1, k] != 0:  # a real subdiagonal
            turn[0] *= abs(h[k + 1, k]) / h[k + 1, k]
        back = np.conj(turn.T)
        h[k + 1 :] = turn @ h[k + 1 :]
        h[k + 2 :, k] = 0
        h[:, k + 1 :] = h[:, k + 1 :] @ back
        q[:, k + 1 :] = q[:, k + 1 :] @ back
    return np.concatenate([h, q.T, np.zeros((1, n), a.dtype)])


def _first_column(h: Array, tries: int) -> Array:
    """Of (H - s₁)(H - s₂), or H - s where numbers are complex."""
    if np.iscomplexobj(h):
        shifts = np.linalg.eigvals(h[-2:, -2:])
        shift = shifts[np.argmin(np.abs(shifts - h[-1, -1]))]
        shift = h[-1, -1] + abs(h[-1, -2]) if tries % 10 == 0 else shift
        return np.array([h[0, 0] - shift, h[1, 0]])
    trace, det = np.trace(h[-2:, -2:]), np.linalg.det(h[-2:, -2:])
    if tries % 10 == 0:
        size = abs(h[-1, -2]) + abs(h[-2, -3])
        corner = 0.75 * size + h[-1, -1]
        trace, det = 2 * corner, corner**2 + 0.4375 * size**2
    square = h[:3, :2] @ h[:2, 0]
    return np.array([square[0] - trace * h[0, 0] + det, square[1] - trace * h[1, 0], square[2]])


def _similarity(t: Array, z: Array, turn: Array, at: int) -> None:
    """turnᴴ t turn and z turn, in rows and columns from `at` on."""
    span = slice(at, at + len(turn))
    t[span] = np.conj(turn.T) @ t[span]
    t[:, span] = t[:, span] @ turn
    z[:, span] = z[:, span] @ turn


def _standardised(t: Array, z: Array, k: int) -> None:
    """The real block of order 2 from row k on: triangular, or with equal diagonal elements."""
    (a, b), (c, d) = t[k : k + 2, k : k + 2]
    middle = (a - d) / 2
    inner = middle**2 + b * c
    if c == 0:
        return
    if inner >= 0:
        first = np.array([middle + np.copysign(np.sqrt(inner), middle), c])
        x, y = first / np.linalg.norm(first) if first.any() else (1.0, 0.0)
    else:
        angle = np.arctan2(-(a - d), b + c) / 2
        x, y = np.cos(angle), np.sin(angle)
    _similarity(t, z, np.array([[x, -y], [y, x]], t.dtype), k)
    if inner >= 0:
        t[k + 1, k] = 0
    else:
        t[k, k] = t[k + 1, k + 1] = (t[k, k] + t[k + 1, k + 1]) / 2


def _schur(packed: Array) -> Array:
    n = packed.shape[-1]
    t, z = packed[:n].copy(), packed[n : 2 * n].T.copy()
    epsilon = np.finfo(t.dtype).eps
    width = 2 if np.iscomplexobj(t) else 3
    high, tries = n - 1, 0
    for _ in range(30 * max(n, 10)):
        if high < 0:
            break
        low = high
        while low > 0:
            around = abs(t[low, low]) + abs(t[low - 1, low - 1]) or np.max(np.abs(t))
            if not abs(t[low, low - 1]) > epsilon * around:
                t[low, low - 1] = 0
                break
            low -= 1
        if high - low < width - 1:
            if high > low:
                _standardised(t, z, low)
            high, tries = low - 1, 0
            continue
        tries += 1
        column = _first_column(t[low : high + 1, low : high + 1], tries)
        for k in range(low, high):
            end = min(k + width, high + 1)
            if k > low:
                column = t[k:end, k - 1].copy()
            turn = _reflection(column[: end - k])
            _similarity(t, z, turn, k)
            if k > low:
                t[k + 1 : end, k - 1] = 0
    info = np.zeros((1, n), t.dtype)
    info[0, :1] = high + 1
    return np.concatenate([t, z.T, info])


def _triangular_vectors(s: Array, t: Array, least: Array) -> Array:
    n = len(s)
    out = np.zeros_like(s)
    for k in range(n):
        size = max(abs(s[k, k]), abs(t[k, k])) or 1
        matrix = (t[k, k] / size) * s - (s[k, k] / size) * t
        out[k, k] = 1
        for i in range(k - 1, -1, -1):
            gap = matrix[i, i] if abs(matrix[i, i]) >= least[0, 0].real else least[0, 0]
            out[k, i] = -(matrix[i, i + 1 : k + 1] @ out[k, i + 1 : k + 1]) / gap
            if abs(out[k, i]) > 2.0**30:
                out[k] /= abs(out[k, i])
    return out


def _triangular_sylvester(a: Array, b: Array, c: Array, part: str) -> Array:
    x = c.copy()
    sides = {"all": (-1, 0, 1), "lower": (1,), "upper": (-1,)}[part]
    for k in range(len(b)):
        x[:, k] -= x[:, :k] @ b[:k, k]
        for i in range(len(a) - 1, -1, -1):
            rest = x[i, k] - a[i, i + 1 :] @ x[i + 1 :, k]
            x[i, k] = rest / (a[i, i] + b[k, k]) if np.sign(i - k) in sides else 0
    return x.T


def _triangular_root(t: Array) -> Array:
    r = np.diag(np.sqrt(np.diag(t)))
    for j in range(len(t)):
        for i in range(j - 1, -1, -1):
            rest = t[i, j] - r[i, i + 1 : j] @ r[i + 1 : j, j]
            total = r[i, i] + r[j, j]
            r[i, j] = rest / total if total != 0 or rest != 0 else 0
    return r.T


def _columns(x: Array, y: Array) -> Array:
    """The unitary matrix after which the row (x, y) is (0, r)."""
    size = np.hypot(abs(x), abs(y))
    if size == 0:
        return np.eye(2, dtype=complex)
    x, y = x / size, y / size
    return np.array([[y, np.conj(x)], [-x, np.conj(y)]])


class _Pencil:
    def __init__(self, a: Array, b: Array) -> None:
        self.s, self.t = a.copy(), np.triu(b)
        self.q, self.z = (np.eye(len(a), dtype=a.dtype) for _ in range(2))

    def rows(self, k: int, turn: Array) -> None:
        for m in (self.s, self.t):
            m[k : k + 2] = turn @ m[k : k + 2]
        self.q[:, k : k + 2] = self.q[:, k : k + 2] @ np.conj(turn.T)

    def columns(self, k: int, turn: Array) -> None:
        for m in (self.s, self.t, self.z):
            m[:, k : k + 2] = m[:, k : k + 2] @ turn

    def clear_s(self, k: int, column: int) -> None:
        self.rows(k, np.conj(_reflection(self.s[k : k + 2, column]).T))
        self.s[k + 1, column] = 0

    def clear_t(self, k: int) -> None:
        self.columns(k, _columns(*self.t[k + 1, k : k + 2]))
        self.t[k + 1, k] = 0


def _qz(a: Array, b: Array) -> Array:
    n = len(a)
    pencil = _Pencil(a, b)
    s, t = pencil.s, pencil.t
    for j in range(n - 2):
        for k in range(n - 2, j, -1):
            pencil.clear_s(k, j)
            pencil.clear_t(k)
    epsilon = np.finfo(a.dtype).eps
    small_s, small_t = (epsilon * np.max(np.abs(m)) for m in (s, t))
    high = n - 1
    for tries in range(30 * max(n, 10)):
        if high < 0:
            break
        low = max([i for i in range(1, high + 1) if not abs(s[i, i - 1]) > small_s], default=0)
        if low > 0:
            s[low, low - 1] = 0
        if low == high:
            high -= 1
        elif abs(t[high, high]) <= small_t:
            t[high, high] = 0
            pencil.columns(high - 1, _columns(*s[high, high - 1 : high + 1]))
            s[high, high - 1] = 0
        elif abs(t[low, low]) <= small_t:
            t[low, low] = 0
            pencil.clear_s(low, low)
        else:
            _qz_sweep(pencil, low, high, tries, small_t)
    info = np.zeros((1, n), a.dtype)
    info[0, :1] = high + 1
    return np.concatenate([s, t, pencil.q.T, pencil.z.T, info])


def _qz_sweep(pencil: _Pencil, low: int, high: int, tries: int, small_t: float) -> None:
    s, t = pencil.s, pencil.t
    last = slice(high - 1, high + 1)
    shift = s[high, high] / t[high, high]
    if abs(t[high - 1, high - 1]) > small_t:
        block = s[last, last] @ np.linalg.inv(t[last, last])
        shifts = np.linalg.eigvals(block)
        shift = shifts[np.argmin(np.abs(shifts - block[1, 1]))]
        shift = block[1, 1] + abs(block[1, 0]) if tries % 10 == 9 else shift
    column = s[low : low + 2, low] - shift * t[low : low + 2, low]
    pencil.rows(low, np.conj(_reflection(column).T))
    pencil.clear_t(low)
    for k in range(low + 1, high):
        pencil.clear_s(k, k - 1)
        pencil.clear_t(k)


hessenberg, schur = _each(_hessenberg), _each(_schur)


def _quasi_vectors(t: Array, least: Array) -> Array:
    """Each by its own equations, with the block of its eigenvalue at the end."""
    n = len(t)
    x = np.zeros((n, n), np.result_type(t, np.complex64))
    for k in range(n):
        follows = k > 0 and t[k, k - 1] != 0
        leads = not follows and k + 1 < n and t[k + 1, k] != 0
        top = k - 1 if follows else k
        value = x.dtype.type(t[k, k])
        x[k, k] = 1
        if follows or leads:
            b, c = t[top, top + 1], t[top + 1, top]
            size = np.sqrt(abs(b)) * np.sqrt(abs(c)) * (-1 if follows else 1)
            value += 1j * size
            x[top : top + 2, k] = (1, 1j * size / b) if abs(b) >= abs(c) else (-size / c, 1j)
        last = top
        while last:
            first = last - 2 if last > 1 and t[last - 1, last - 2] != 0 else last - 1
            block = t[first:last, first:last] - value * np.eye(last - first)
            right = -t[first:last, last:] @ x[last:, k]
            if last - first == 1:
                block = block if abs(block[0, 0]) >= least[0, 0] else least[:1, :1]
            x[first:last, k] = np.linalg.solve(block, right)
            x[:, k] /= max(1, np.max(np.abs(x[:, k])))
            last = first
    return np.concatenate([x.real, x.imag], axis=1)


quasi_vectors = _each(_quasi_vectors)
triangular_vectors, triangular_root = _each(_triangular_vectors), _each(_triangular_root)
triangular_sylvester = _each(_triangular_sylvester)
qz = _each(_qz)
