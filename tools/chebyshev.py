"""Piecewise polynomials of the special functions (Chebyshev interpolation, truncated).

    python -m tools.chebyshev [FILE ...]     all files of tools/special_fits.py, or those named

rewrites the tables of numus/kernels/special/. A piece is a function on an interval of one variable;
its degree is the smallest that keeps the relative error below an eighth of an ulp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp

from tools.minimax import literal, rounded, split

TARGET = Path(__file__).parents[1] / "numus/kernels/special"
DIGITS = 40
_MOST = 56  # interpolation points, and the highest degree

HEAD = '''"""Made by `python -m tools.chebyshev`; defined in tools/special_fits.py."""

# fmt: off
from numus.kernels.special._piece import Piece

'''


@dataclass(frozen=True)
class Want:
    """A function of one variable on [a, b]; its reference is read as `f(x)` in mpmath."""

    name: str
    about: str
    of: Callable[[Any], Any]
    a: Any
    b: Any
    absolute: bool = False  # the error is measured against the largest value
    kinds: tuple[int, ...] = (24, 53)

    def source(self) -> str:
        return piece(self)


@dataclass(frozen=True)
class Number:
    """A constant as a double-word, in each precision."""

    name: str
    about: str
    value: Callable[[], Any]

    def source(self) -> str:
        words = (", ".join(map(repr, split(self.value(), bits, 2))) for bits in (24, 53))
        return f"# {self.about}\n{self.name} = (\n    ({next(words)}),\n    ({next(words)}),\n)"


def chebyshev(f: Callable[[Any], Any], a: Any, b: Any, n: int) -> list[Any]:
    """The first n Chebyshev coefficients of f on [a, b]."""
    middle, half = (a + b) / 2, (b - a) / 2
    angles = [mp.pi * (mp.mpf(k) + mp.mpf(1) / 2) / n for k in range(n)]
    values = [mp.mpf(f(middle + half * mp.cos(t))) for t in angles]
    out = []
    for j in range(n):
        total = mp.fsum(v * mp.cos(j * t) for v, t in zip(values, angles, strict=True))
        out.append(total * (1 if j == 0 else 2) / n)
    return out


def monomials(c: Sequence[Any], a: Any, b: Any, at: Any) -> list[Any]:
    """A Chebyshev series as a polynomial in u - at."""
    half = (b - a) / 2
    shift = (at - (a + b) / 2) / half  # t = (u - at) / half + shift
    previous, current = [mp.mpf(1)], [shift, 1 / half]
    total = [c[0], *[mp.mpf(0)] * (len(c) - 1)]
    for j in range(1, len(c)):
        for k, v in enumerate(current):
            total[k] += c[j] * v
        following = [mp.mpf(0)] * (len(current) + 1)
        for k, v in enumerate(current):
            following[k] += 2 * shift * v
            following[k + 1] += 2 * v / half
        for k, v in enumerate(previous):
            following[k] -= v
        previous, current = current, following
    return total


def _middle(a: Any, b: Any) -> float:
    """A short number near the middle: differences from it are exact, or nearly so."""
    exact = float((a + b) / 2)
    if a == 0 or exact == 0:
        return 0.0 if abs(float(a + b)) < 1e-12 else _short(exact)
    return _short(exact)


def _short(x: float) -> float:
    mantissa, exponent = mp.frexp(mp.mpf(x))
    return float(mp.ldexp(mp.nint(mantissa * 64), exponent - 6))


def piece(want: Want) -> str:
    a, b = mp.mpf(want.a), mp.mpf(want.b)
    at = mp.mpf(_middle(a, b))
    c = chebyshev(want.of, a, b, _MOST)
    grid = [a + (b - a) * (mp.mpf(k) + mp.mpf("0.37")) / 150 for k in range(150)]
    exact = [want.of(x) for x in grid]
    largest = max(abs(v) for v in exact)
    scale = [largest if want.absolute else abs(v) for v in exact]
    tables = []
    for bits in (24, 53):
        if bits not in want.kinds:
            tables.append((bits, [], None))
            continue
        # what is left out of the series bounds the error well
        smallest = min(scale)
        tail, degree = mp.mpf(0), len(c) - 1
        while degree > 1 and tail + abs(c[degree]) < smallest * mp.mpf(2) ** (-bits - 2):
            tail += abs(c[degree])
            degree -= 1
        rough = [mp.mpf(rounded(v, bits)) for v in monomials(c[: degree + 1], a, b, at)]
        error = max(
            abs(_value(rough, x - at) - v) / s for x, v, s in zip(grid, exact, scale, strict=True)
        )
        tables.append((bits, [float(v) for v in rough], error))
        print(f"{want.name} {bits}: degree {degree}, 2**{float(mp.log(error, 2)):.1f}", flush=True)
    lines = [f"# {want.about}", f"{want.name} = Piece("]
    lines.append(f"    {float(at)!r},")
    for bits, values, error in tables:
        if not values:
            lines.append("    (),")
            continue
        note = f"  # error 2**{float(mp.log(error, 2)):.1f}"
        lines += [f"    ({note}", literal(values, bits), "    ),"]
    return "\n".join([*lines, ")"])


def _value(c: Sequence[Any], x: Any) -> Any:
    total = mp.mpf(0)
    for v in reversed(c):
        total = total * x + v
    return total


def main(names: Sequence[str]) -> None:
    from tools.special_fits import FILES

    mp.mp.dps = DIGITS
    for name, wants in FILES.items():
        if not names or name in names:
            blocks = "\n\n".join(w.source() for w in wants)
            (TARGET / f"{name}.py").write_text(HEAD + blocks + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
