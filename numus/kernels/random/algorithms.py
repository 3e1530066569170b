"""Rejection and inversion of distributions whose draws need a varying number of random words.

Each algorithm is written once over an `Ops`: kernel IR for devices, NumPy for the reference. Trial
t of element i takes the words of counters (i, 4 t + 1), (i, 4 t + 2), ...: a draw depends on the
key and its place alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

TRIALS = 64  # rejected all: not in the age of the universe
TERMS = 256  # of an inversion: far beyond the means that are inverted
_INVERTED_MEAN = 10.0  # means up to here are inverted, larger ones transformed and rejected


class Ops(Protocol):
    """What the algorithms compute with; values are of one float type."""

    def uniform(self, trial: Any, which: int) -> Any:
        """In (0, 1]."""

    def uniforms(self, trial: Any) -> tuple[Any, Any]:
        """Two of them, of one counter in float32."""

    def normal(self, trial: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def log1p(self, x: Any) -> Any: ...
    def exp(self, x: Any) -> Any: ...
    def sqrt(self, x: Any) -> Any: ...
    def floor(self, x: Any) -> Any: ...
    def abs(self, x: Any) -> Any: ...
    def cos(self, x: Any) -> Any: ...
    def acos(self, x: Any) -> Any: ...
    def pow(self, x: Any, y: Any) -> Any: ...
    def phi(self, u: Any) -> Any:
        """u - log1p(u) without cancellation."""

    def lgamma(self, x: Any) -> Any: ...
    def select(self, condition: Any, yes: Any, no: Any) -> Any: ...
    def rarely(self, condition: Any, yes: Any, no: Any) -> Any:
        """select, whose `yes` is computed only where some element needs it."""

    def number(self, value: float) -> Any: ...
    def first_trial(self) -> Any: ...
    def iterate(self, limit: int, initial: tuple[Any, ...], step: Callable[..., Any]) -> Any: ...


def _rejection(
    o: Ops, attempt: Callable[[Any], tuple[Any, Any]], start: Any, settled: Any = None
) -> Any:
    """The first value of attempt(trial) = (accepted, value) that is accepted.

    Where a draw is `settled` without, no trial is made for its sake.
    """
    one, zero = o.number(1.0), o.number(0.0)
    waiting = one if settled is None else o.select(settled, zero, one)

    def step(value: Any, waiting: Any, trial: Any) -> Any:
        accepted, found = attempt(trial)
        following = (o.select(accepted, found, value), o.select(accepted, zero, one), trial + 1)
        return waiting > 0.5, following

    return o.iterate(TRIALS, (start, waiting, o.first_trial()), step)[0]


def _marsaglia(o: Ops, a: Any) -> tuple[Any, Any, Any]:
    """(d, v, log of the power of a uniform): gamma(a) is d v, times that power where a < 1."""
    small = a < 1.0
    d = o.select(small, a + 1.0, a) - 1 / 3
    c = 1.0 / o.sqrt(d * 9.0)

    def attempt(trial: Any) -> tuple[Any, Any]:
        x = o.normal(trial)
        root = 1.0 + c * x
        v = root * root * root
        positive = root > 0.0
        bound = x * x * 0.5 + d * ((1.0 - v) + o.log(o.select(positive, v, o.number(1.0))))
        return positive & (o.log(o.uniform(trial, 2)) < bound), v

    v = _rejection(o, attempt, o.number(1.0))
    power = o.log(o.uniform(o.first_trial(), 3)) / a
    return d, v, o.rarely(small, power, o.number(0.0))


def gamma(o: Ops, a: Any) -> Any:
    """The gamma distribution of scale 1 (Marsaglia and Tsang 2000)."""
    d, v, power = _marsaglia(o, a)
    return d * v * o.exp(power)


def log_gamma(o: Ops, a: Any) -> Any:
    """The logarithm of a gamma draw, which does not underflow at small a."""
    d, v, power = _marsaglia(o, a)
    return o.log(d * v) + power


def _stirling_rest(o: Ops, k: Any) -> Any:
    """log k! less Stirling's formula, for k >= 1; 0 at 0."""
    some = k > 0.5
    inverse = 1.0 / o.select(some, k, o.number(1.0))
    square = inverse * inverse
    rest = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260)))
    return o.select(some, rest, o.number(0.0))


def _deviance(o: Ops, k: Any, mean: Any) -> Any:
    """k log(k / mean) + mean - k; the mean where k is 0 (Loader 2000)."""
    some = k > 0.5
    safe = o.select(some, k, o.number(1.0))
    return o.select(some, safe * o.phi((mean - safe) / safe), mean)


def _root_log(o: Ops, k: Any) -> Any:
    """log(2 pi k) / 2; 0 at 0."""
    some = k > 0.5
    safe = o.select(some, k, o.number(1.0))
    return o.select(some, o.log(safe * (2 * math.pi)) * 0.5, o.number(0.0))


def poisson(o: Ops, mean: Any) -> Any:
    """Inversion up to a mean of 10, beyond that PTRS (Hörmann 1993)."""
    zero = o.number(0.0)
    small = mean < _INVERTED_MEAN
    low = o.select(small, mean, zero)
    u = o.uniform(o.first_trial(), 3)
    start = o.exp(-low)

    def search(k: Any, p: Any, total: Any) -> Any:
        following = p * low / (k + 1.0)
        return (u > total) & (p > 0.0), (k + 1.0, following, total + following)

    inverted = o.iterate(TERMS, (zero, start, start), search)[0]
    mu = o.select(small, o.number(_INVERTED_MEAN), mean)
    b = 0.931 + 2.53 * o.sqrt(mu)
    a = 0.02483 * b - 0.059
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2.0)

    def attempt(trial: Any) -> tuple[Any, Any]:
        u, v = o.uniforms(trial)
        u = u - 0.5
        us = 0.5 - o.abs(u)
        us = o.select(us > 0.0, us, o.number(1e-9))
        k = o.floor((2.0 * a / us + b) * u + mu + 0.43)
        whole = o.select(k > 0.0, k, zero)
        log_p = -_deviance(o, whole, mu) - _stirling_rest(o, whole)
        hat = v * inverse_alpha / (a / (us * us) + b)
        bound = o.log(hat * o.sqrt(o.select(k > 0.5, k * (2 * math.pi), o.number(1.0)))) <= log_p
        sure = (us >= 0.07) & (v <= quick)
        return (k >= 0.0) & (sure | (((us >= 0.013) | (v <= us)) & bound)), k

    return o.select(small, inverted, _rejection(o, attempt, o.floor(mu), small))


def binomial(o: Ops, n: Any, p: Any) -> Any:
    """Inversion up to a mean of 10, beyond that BTRS (Hörmann 1993)."""
    zero, one = o.number(0.0), o.number(1.0)
    flipped = p > 0.5
    q = o.select(flipped, 1.0 - p, p)
    small = n * q < _INVERTED_MEAN
    u = o.uniform(o.first_trial(), 3)
    start = o.exp(n * o.log1p(-q))
    odds = q / (1.0 - q)
    searched = o.select(small, one, zero)

    def search(k: Any, mass: Any, total: Any) -> Any:
        following = mass * (odds * (n - k) / (k + 1.0))
        running = (u > total) & (mass > 0.0) & (searched > 0.5) & (k < n)
        return running, (k + 1.0, following, total + following)

    inverted = o.iterate(TERMS, (zero, start, start), search)[0]
    m, r = o.select(small, o.number(100.0), n), o.select(small, o.number(0.5), q)
    mean, rest = m * r, m * (1.0 - r)
    spread = o.sqrt(mean * (1.0 - r))
    b = 1.15 + 2.53 * spread
    a = 0.0248 * b - 0.0873 + 0.01 * r
    alpha = (2.83 + 5.1 / b) * spread
    quick = 0.92 - 4.2 / b

    def log_mass(k: Any) -> Any:
        other = m - k
        unlikely = _deviance(o, k, mean) + _deviance(o, other, rest)
        roots = _root_log(o, m) - _root_log(o, k) - _root_log(o, other)
        tails = _stirling_rest(o, m) - _stirling_rest(o, k) - _stirling_rest(o, other)
        return roots + tails - unlikely

    most = log_mass(o.floor((m + 1.0) * r))

    def attempt(trial: Any) -> tuple[Any, Any]:
        u, v = o.uniforms(trial)
        u = u - 0.5
        us = 0.5 - o.abs(u)
        us = o.select(us > 0.0, us, o.number(1e-9))
        k = o.floor((2.0 * a / us + b) * u + mean + 0.5)
        inside = (k >= 0.0) & (k <= m)
        bound = o.log(v * alpha / (a / (us * us) + b)) <= log_mass(o.select(inside, k, zero)) - most
        return inside & (((us >= 0.07) & (v <= quick)) | bound), k

    value = o.select(small, inverted, _rejection(o, attempt, o.floor(mean), small))
    return o.select(flipped, n - value, value)


def vonmises(o: Ops, kappa: Any) -> Any:
    """Angles about 0 with concentration kappa (Best and Fisher 1979)."""
    flat = kappa < 1e-4
    k = o.select(flat, o.number(1.0), kappa)
    tau = 1.0 + o.sqrt(1.0 + 4.0 * k * k)
    rho = (tau - o.sqrt(2.0 * tau)) / (2.0 * k)
    r = (1.0 + rho * rho) / (2.0 * rho)

    def attempt(trial: Any) -> tuple[Any, Any]:
        turn, u = o.uniforms(trial)
        z = o.cos(turn * math.pi)
        f = (1.0 + r * z) / (r + z)
        c = k * (r - f)
        return (c * (2.0 - c) - u > 0.0) | (o.log(c / u) + 1.0 - c >= 0.0), f

    f = _rejection(o, attempt, o.number(1.0))
    f = o.select(f > 1.0, o.number(1.0), o.select(f < -1.0, o.number(-1.0), f))
    u = o.uniform(o.first_trial(), 3)
    angle = o.acos(f)
    angle = o.select(u > 0.5, angle, -angle)
    return o.select(flat, (2.0 * u - 1.0) * math.pi, angle)


def zipf(o: Ops, a: Any) -> Any:
    """k >= 1 with probability proportional to k**-a, a > 1 (Devroye 1986, X.6)."""
    less = a - 1.0
    b = o.pow(o.number(2.0), less)
    largest = 2.0**24

    def attempt(trial: Any) -> tuple[Any, Any]:
        u, v = o.uniforms(trial)
        raw = o.exp(-o.log(u) / less)
        x = o.floor(o.select(raw < largest, raw, o.number(largest)))
        t = o.exp(less * o.log1p(1.0 / x))
        return (v * x * (t - 1.0) / (b - 1.0) <= t / b) & (raw < largest), x

    return _rejection(o, attempt, o.number(1.0))


def hypergeometric(o: Ops, good: Any, bad: Any, count: Any) -> Any:
    """Inversion outwards from the mode."""
    total = good + bad
    mode = o.floor((count + 1.0) * (good + 1.0) / (total + 2.0))

    def log_choices(n: Any, k: Any) -> Any:
        return o.lgamma(n + 1.0) - o.lgamma(k + 1.0) - o.lgamma(n - k + 1.0)

    at_mode = o.exp(
        log_choices(good, mode) + log_choices(bad, count - mode) - log_choices(total, count)
    )
    u = o.uniform(o.first_trial(), 3) - at_mode
    one, zero = o.number(1.0), o.number(0.0)
    waiting = o.select(u > 0.0, one, zero)

    def step(high: Any, low: Any, p: Any, q: Any, u: Any, waiting: Any, found: Any) -> Any:
        up = p * ((good - high) * (count - high)) / ((high + 1.0) * (bad - count + high + 1.0))
        up = o.select((high < good) & (high < count), up, zero)
        high = high + 1.0
        after = u - up
        down = q * (low * (bad - count + low)) / ((good - low + 1.0) * (count - low + 1.0))
        down = o.select((low > 0.0) & (low > count - bad), down, zero)
        low = low - 1.0
        last = after - down
        chosen = o.select(after <= 0.0, high, o.select(last <= 0.0, low, found))
        done = (last <= 0.0) | (up + down <= 0.0)
        following = (high, low, up, down, last, o.select(done, zero, one), chosen)
        return waiting > 0.5, following

    out = o.iterate(1 << 14, (mode, mode, at_mode, at_mode, u, waiting, mode), step)
    return out[6]
