"""Types of sequential functions: what their annotations mean in LLVM IR and in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numus.codegen.cpu.sequential_complex import COMPLEX
from numus.codegen.cpu.sequential_vectors import VECTOR

SCALARS = {"int": "i64", "float": "double", "bool": "i1", "complex": COMPLEX, "Vector": VECTOR}
ARRAYS = {"INDEX32": "i32", "INDEX64": "i64", "FLOAT64": "double", "COMPLEX128": COMPLEX}
DTYPES = {
    **{"INDEX32": np.int32, "INDEX64": np.int64},
    **{"FLOAT64": np.float64, "COMPLEX128": np.complex128},
}
NUMBER_KINDS = {"FLOAT64": "float", "COMPLEX128": "complex"}  # what `Number` is


def signature(
    function: Callable[..., Any], numbers: str = "NUMBERS"
) -> tuple[list[tuple[str, str]], str]:
    """The parameters (name, kind) of a function and the kind of its result; `numbers` are FLOAT64,
    COMPLEX128 or not known yet."""
    meant = {"NUMBERS": numbers, "Number": NUMBER_KINDS.get(numbers, "Number")}
    written: dict[str, str] = function.__annotations__
    notes = {name: meant.get(kind, kind) for name, kind in written.items()}
    result = notes.pop("return", "None")
    return list(notes.items()), result


def type_of(kind: str) -> str:
    if kind in ARRAYS:
        return f"array {ARRAYS[kind]}"
    return {"None": "void"}.get(kind) or SCALARS[kind]


def passed(type_: str) -> str:
    return "ptr" if type_.startswith("array") else type_
