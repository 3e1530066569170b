"""Definitions of the approximations of Airy's functions, for tools/special_fits.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp

from tools.chebyshev import Number, Want

Function = Callable[[Any], Any]
_NAMES = ("AI", "AIP", "BI", "BIP")
# zeros at -t: those with t < 2, those with 2 < t < 4.5
_ZEROS = {
    "AI": ((), ("2.3381", "4.0879")),
    "AIP": (("1.0188",), ("3.2482",)),
    "BI": (("1.1737",), ("3.2711",)),
    "BIP": ((), ("2.2944", "4.0732")),
}


def function(name: str, x: Any) -> Any:
    derivative = 1 if name.endswith("P") else 0
    return (mp.airyai if name.startswith("AI") else mp.airybi)(x, derivative=derivative)


def zero(name: str, near: str) -> Any:
    with mp.workdps(mp.mp.dps + 10):
        return mp.findroot(lambda t: function(name, -t), mp.mpf(near))


def over_zeros(name: str, near: tuple[str, ...]) -> Function:
    """f(-t) over the differences from its zeros."""
    zeros = [zero(name, z) for z in near]

    def f(t: Any) -> Any:
        with mp.workdps(mp.mp.dps + 20):
            value = function(name, -mp.mpf(t))
            for z in zeros:
                value /= mp.mpf(t) - z
            return +value

    return f


def grown(name: str) -> Function:
    """f exp(zeta) x**(1/4), its sign that of x**(-1/4) for derivatives; of Bi exp(-zeta)."""

    def f(x: Any) -> Any:
        with mp.workdps(mp.mp.dps + 20):
            x = mp.mpf(x)
            zeta = 2 * x ** mp.mpf("1.5") / 3
            scale = mp.exp(zeta if name.startswith("AI") else -zeta)
            power = x ** mp.mpf("-0.25" if name.endswith("P") else "0.25")
            return +(function(name, x) * scale * power)

    return f


def of_zeta(f: Function) -> Function:
    """f(x) in 1 / zeta; 0 stands for a far but finite argument."""

    def g(v: Any) -> Any:
        zeta = 1 / max(mp.mpf(v), mp.mpf("1e-5"))
        return f((zeta * 3 / 2) ** (mp.mpf(2) / 3))

    return g


def modulus(derivative: bool, phase: bool) -> Function:
    """sqrt(pi) t**(1/4) |Ai(-t) + i Bi(-t)|, or zeta times its phase against zeta - pi/4."""

    def f(v: Any) -> Any:
        with mp.workdps(mp.mp.dps + 25):
            zeta = 1 / mp.sqrt(max(mp.mpf(v), mp.mpf("1e-8")))
            t = (zeta * 3 / 2) ** (mp.mpf(2) / 3)
            a, b = (function(n + ("P" if derivative else ""), -t) for n in ("AI", "BI"))
            # Ai = M cos(theta - psi), Bi = -M sin; Ai' = N sin(theta - chi), Bi' = N cos
            h = mp.mpc(b, a) if derivative else mp.mpc(a, -b)
            h = h * mp.expj(-(zeta - mp.pi / 4))
            if phase:
                return +(-mp.arg(h) * zeta)
            return +(abs(h) * mp.sqrt(mp.pi) * t ** mp.mpf("-0.25" if derivative else "0.25"))

    return f


def pieces(name: str) -> tuple[Want | Number, ...]:
    inner, outer = _ZEROS[name]
    numbers = tuple(
        Number(f"{name}_ZERO{i}", f"a zero of {name}, at -t", lambda z=z: zero(name, z))
        for i, z in enumerate((*inner, *outer))
    )
    far = mp.mpf(2) / 3 * mp.mpf(5) ** mp.mpf("1.5")
    return (
        *numbers,
        Want(name, f"{name}(x), x <= 1", lambda x: function(name, mp.mpf(x)), 0, 1),
        Want(f"{name}_NEXT", "the same, 1 <= x <= 2", lambda x: function(name, mp.mpf(x)), 1, 2),
        Want(f"{name}_MIDDLE", f"{name} exp and power, 2 <= x <= 5", grown(name), 2, 5),
        Want(f"{name}_FAR", "the same in 1 / zeta, x >= 5", of_zeta(grown(name)), 0, 1 / far),
        Want(f"{name}_LEFT", f"{name}(-t) over zeros, t <= 2", over_zeros(name, inner), 0, 2),
        Want(f"{name}_WAVE", "the same, 2 <= t <= 4.5", over_zeros(name, outer), 2, "4.5"),
    )


_V = 1 / (mp.mpf(2) / 3 * mp.mpf("4.5") ** mp.mpf("1.5")) ** 2
AI = (
    *(piece for name in _NAMES[:2] for piece in pieces(name)),
    Want("MODULUS", "the modulus in 1 / zeta**2, t >= 4.5", modulus(False, False), 0, _V),
    Want("PHASE", "its phase, by zeta", modulus(False, True), 0, _V),
    Want("SLOPE_MODULUS", "the modulus of derivatives", modulus(True, False), 0, _V),
    Want("SLOPE_PHASE", "their phase, by zeta", modulus(True, True), 0, _V),
)
BI = tuple(piece for name in _NAMES[2:] for piece in pieces(name))
