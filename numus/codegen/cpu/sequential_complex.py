"""Complex numbers of sequential functions, as pairs of doubles: the lines of LLVM IR of each
operation. Quotients are Smith's (1962), moduli scaled: no square overflows."""

from __future__ import annotations

from collections.abc import Callable

COMPLEX = "{ double, double }"

New = Callable[[str], str]  # a line of IR; the name of its result
Parts = tuple[str, str]


def parts(new: New, x: str) -> Parts:
    re, im = (new(f"extractvalue {COMPLEX} {x}, {i}") for i in range(2))
    return re, im


def whole(new: New, re: str, im: str) -> str:
    half = new(f"insertvalue {COMPLEX} poison, double {re}, 0")
    return new(f"insertvalue {COMPLEX} {half}, double {im}, 1")


def operate(new: New, op: str, x: str, y: str) -> str:
    """fadd, fsub, fmul or fdiv."""
    (a, b), (c, d) = parts(new, x), parts(new, y)

    def double(op: str, x: str, y: str) -> str:
        return new(f"{op} contract double {x}, {y}")

    if op in ("fadd", "fsub"):
        return whole(new, double(op, a, c), double(op, b, d))
    if op == "fmul":
        re = double("fsub", double("fmul", a, c), double("fmul", b, d))
        return whole(new, re, double("fadd", double("fmul", a, d), double("fmul", b, c)))
    wide = new(f"fcmp oge double {_abs(new, c)}, {_abs(new, d)}")
    large, small = (new(f"select i1 {wide}, double {p}, double {q}") for p, q in ((c, d), (d, c)))
    share = double("fdiv", small, large)
    divisor = double("fadd", large, double("fmul", small, share))
    a_share, b_share = double("fmul", a, share), double("fmul", b, share)
    real = (double("fadd", a, b_share), double("fadd", a_share, b))
    imaginary = (double("fsub", b, a_share), double("fsub", b_share, a))
    re, im = (
        double("fdiv", new(f"select i1 {wide}, double {p}, double {q}"), divisor)
        for p, q in (real, imaginary)
    )
    return whole(new, re, im)


def _abs(new: New, x: str) -> str:
    return new(f"call double @llvm.fabs.f64(double {x})")


def modulus(new: New, x: str) -> str:
    a, b = (_abs(new, part) for part in parts(new, x))
    less = new(f"fcmp olt double {a}, {b}")
    large, small = (new(f"select i1 {less}, double {p}, double {q}") for p, q in ((b, a), (a, b)))
    share = new(f"fdiv double {small}, {large}")
    square = new(f"fadd double 1.0, {new(f'fmul double {share}, {share}')}")
    root = new(f"call double @llvm.sqrt.f64(double {square})")
    found = new(f"fmul double {large}, {root}")
    none = new(f"fcmp oeq double {large}, 0.0")
    return new(f"select i1 {none}, double 0.0, double {found}")


def negated(new: New, x: str) -> str:
    re, im = (new(f"fneg double {part}") for part in parts(new, x))
    return whole(new, re, im)


def conjugate(new: New, x: str) -> str:
    re, im = parts(new, x)
    return whole(new, re, new(f"fneg double {im}"))


def equal(new: New, x: str, y: str, is_equal: bool) -> str:
    """Whether both parts are equal, or one is not."""
    ordered, both = ("oeq", "and") if is_equal else ("une", "or")
    pairs = zip(parts(new, x), parts(new, y), strict=True)
    re, im = (new(f"fcmp {ordered} double {p}, {q}") for p, q in pairs)
    return new(f"{both} i1 {re}, {im}")
