"""Rules of the PTX ISA that LLVM does not check in inline assembly: those of wgmma.

A driver refuses a kernel that breaks one; here is neither a driver nor an assembler.
"""

import re

_MMA = re.compile(r"wgmma\.mma_async(?P<sparse>\.sp)?\.(?P<rest>[^;]*);")
_FORM = re.compile(r"sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+) (.*)", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|[^\s,{}]+")
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_KINDS = ({"f16"}, {"bf16"}, {"tf32"}, {"e4m3", "e5m2"}, {"s8", "u8"})  # that multiply each other
_K_BYTES = 32  # of one instruction; twice as many of a sparse one


def wgmma_forms(text: str) -> set[tuple[str, str, int]]:
    """(dtype of A, of B, columns) of each MMA of warpgroups."""
    found = (_FORM.fullmatch(m["rest"]) for m in _MMA.finditer(text))
    return {(m[4], m[5], int(m[1])) for m in found}


def check(text: str) -> None:
    """The forms of wgmma that an assembler of the text's version takes."""
    version = float(re.search(r"^\.version (\S+)", text, re.M)[1])
    for match in _MMA.finditer(text):
        assert re.search(r"^\.target sm_90a", text, re.M), "wgmma is Hopper's alone"
        form = _FORM.fullmatch(match["rest"])
        assert form is not None, match[0]
        _check_form(form, bool(match["sparse"]), version)


def _check_form(form: re.Match, sparse: bool, version: float) -> None:
    n, k, (d, a, b) = int(form[1]), int(form[2]), form.group(3, 4, 5)
    whole, integer = form[0], a in ("s8", "u8")
    assert any({a, b} <= kind for kind in _KINDS), whole
    assert version >= (8.4 if integer and a != b else 8.2 if sparse else 8.0), whole
    assert d == "s32" if integer else d in ("f32", "f16"), whole
    assert k * _BYTES[a] == _K_BYTES * (2 if sparse else 1), whole
    step = 16 if integer and n > 24 else 8
    assert 8 <= n <= 256, whole
    assert n % step == 0, whole
    sums, left, right, *rest = _OPERAND.findall(form[6])
    registers = n // 2 // (2 if d == "f16" else 1)
    assert len(sums[1:-1].split(",")) == registers, whole
    in_registers = left.startswith("{")
    assert not in_registers or len(left[1:-1].split(",")) == 4, whole
    assert not right.startswith("{"), "B is in shared memory"
    if sparse:
        _, selector, *rest = rest
        assert selector in "01", whole
    _, *flags = rest  # after what keeps the sums
    signs, transposed = (0 if integer else 2), (2 - in_registers if _BYTES[a] == 2 else 0)
    assert len(flags) == signs + transposed, whole
    assert all(flag in ("1", "-1") for flag in flags[:signs]), whole
    assert all(flag in "01" for flag in flags[signs:]), whole
