"""Zeros, poles and gain of a filter: band transformations, the bilinear transform, and the forms
of polynomials and of second-order sections."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from numus.signal._arguments import Array


@dataclass(frozen=True)
class Zpk:
    """A rational transfer function: k prod(s - z) / prod(s - p)."""

    z: Array
    p: Array
    k: float

    @property
    def degree(self) -> int:
        """Poles beyond the number of zeros."""
        return len(self.p) - len(self.z)

    def lowpass(self, wo: float) -> Zpk:
        return Zpk(self.z * wo, self.p * wo, self.k * wo**self.degree)

    def highpass(self, wo: float) -> Zpk:
        zeros = np.append(wo / self.z, np.zeros(self.degree))
        return Zpk(zeros, wo / self.p, self._high_gain())

    def _high_gain(self) -> float:
        return self.k * float(np.real(np.prod(-self.z) / np.prod(-self.p)))

    def bandpass(self, wo: float, bw: float) -> Zpk:
        zeros = np.append(_split(self.z * bw / 2, wo), np.zeros(self.degree))
        return Zpk(zeros, _split(self.p * bw / 2, wo), self.k * bw**self.degree)

    def bandstop(self, wo: float, bw: float) -> Zpk:
        notches = [1j * wo] * self.degree + [-1j * wo] * self.degree
        zeros = np.append(_split(bw / 2 / self.z, wo), notches)
        return Zpk(zeros, _split(bw / 2 / self.p, wo), self._high_gain())

    def bilinear(self, fs: float) -> Zpk:
        """The digital filter whose response is this one's at 2 fs tan(w / 2)."""
        twice = 2 * fs
        zeros = np.append((twice + self.z) / (twice - self.z), -np.ones(self.degree))
        gain = self.k * float(np.real(np.prod(twice - self.z) / np.prod(twice - self.p)))
        return Zpk(zeros, (twice + self.p) / (twice - self.p), gain)

    def polynomials(self) -> tuple[Array, Array]:
        """b and a, real where roots come in conjugate pairs."""
        return self.k * _poly(self.z), _poly(self.p)

    def sections(self, analog: bool = False) -> Array:
        """Second-order sections; poles are paired with the zeros nearest to them, from those
        nearest to the unit circle (analog: to the imaginary axis), which come last."""
        return _Pairing(self, analog).sections()


def _split(roots: Array, wo: float) -> Array:
    roots = roots.astype(complex)
    apart = np.sqrt(roots**2 - wo**2)
    return np.concatenate([roots + apart, roots - apart])


def _poly(roots: Array) -> Array:
    found = np.poly(roots) if len(roots) else np.ones(1)
    if np.iscomplexobj(found):
        upper = np.sort_complex(roots[np.imag(roots) > 0])
        lower = np.sort_complex(np.conj(roots[np.imag(roots) < 0]))
        if len(upper) == len(lower) and np.allclose(upper, lower):
            found = np.real(found)
    return found


def _one_of_each_pair(roots: Array) -> Array:
    """Roots with positive imaginary parts, one for each conjugate pair, then the real ones."""
    roots = np.atleast_1d(roots).astype(complex)
    near = np.abs(roots.imag) <= 100 * np.finfo(float).eps * np.abs(roots)
    reals = np.sort(roots[near].real).astype(complex)
    upper, lower = roots[~near & (roots.imag > 0)], roots[~near & (roots.imag < 0)]
    if len(upper) != len(lower):
        raise ValueError("signal: complex roots without their conjugates have no real sections")
    upper = upper[np.lexsort((upper.imag, upper.real.round(12)))]
    lower = np.conj(lower)[np.lexsort((-lower.imag, lower.real.round(12)))]
    return np.concatenate([(upper + lower) / 2, reals])


def _take(roots: list[complex], at: int) -> complex:
    return roots.pop(at)


class _Pairing:
    def __init__(self, system: Zpk, analog: bool) -> None:
        z, p = np.asarray(system.z), np.asarray(system.p)
        self.analog, self.gain = analog, system.k
        if not analog:
            size = max(len(z), len(p))
            size += size % 2
            z, p = (np.append(r, np.zeros(size - len(r))) for r in (z, p))
        elif len(p) < len(z):
            raise ValueError("signal: an analog filter has at least as many poles as zeros")
        self.zeros = list(_one_of_each_pair(z))
        self.poles = list(_one_of_each_pair(p))
        self.count = (len(p) + 1) // 2

    def _worst(self, poles: list[complex]) -> int:
        p = np.asarray(poles)
        return int(np.argmin(np.abs(p.real) if self.analog else np.abs(1 - np.abs(p))))

    def _nearest(self, to: complex, real: bool | None = None) -> int:
        order = np.argsort(np.abs(np.asarray(self.zeros) - to), kind="stable")
        ok = [i for i in order if real is None or (self.zeros[i].imag == 0) == real]
        return int(ok[0])

    def sections(self) -> Array:
        out = np.zeros((max(self.count, 1), 6))
        out[:, 2 if self.analog else 0] = 1
        out[:, 5 if self.analog else 3] = 1
        for i in range(self.count - 1, -1, -1):
            z, p = self._next()
            for start, roots in ((0, z), (3, p)):
                c = np.real(np.poly(roots)) if roots else np.ones(1)
                out[i, start : start + 3] = 0
                at = start + 3 - len(c) if self.analog else start
                out[i, at : at + len(c)] = c
        out[0, :3] *= self.gain
        return out

    def _next(self) -> tuple[list[complex], list[complex]]:
        """Zeros and poles of one section."""
        reals = [p for p in self.poles if p.imag == 0]
        p1 = _take(self.poles, self._worst(self.poles))
        if p1.imag == 0 and len(reals) == 1:
            return [_take(self.zeros, self._nearest(p1, True))] if self._has_real() else [], [p1]
        lone = len(reals) == 1 and sum(z.imag == 0 for z in self.zeros) == 1
        if p1.imag and lone and len(self.poles) + 1 == len(self.zeros):
            z1 = _take(self.zeros, self._nearest(p1, False))
            return [z1, z1.conjugate()], [p1, p1.conjugate()]
        if p1.imag:
            p2 = p1.conjugate()
        else:
            where = [i for i, p in enumerate(self.poles) if p.imag == 0]
            p2 = _take(self.poles, where[self._worst([self.poles[i] for i in where])])
        if not self.zeros:
            return [], [p1, p2]
        z1 = _take(self.zeros, self._nearest(p1))
        if z1.imag:
            return [z1, z1.conjugate()], [p1, p2]
        if self._has_real():
            return [z1, _take(self.zeros, self._nearest(p1, True))], [p1, p2]
        return [z1], [p1, p2]

    def _has_real(self) -> bool:
        return any(z.imag == 0 for z in self.zeros)


def warp(wn: Array, fs: float) -> Array:
    """The analog frequencies that the bilinear transform takes to these."""
    return 2 * fs * np.tan(math.pi * wn / fs)
