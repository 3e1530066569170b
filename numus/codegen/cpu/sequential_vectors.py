"""Vectors of eight floats of sequential functions, as Python has them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

LANES = 8
VECTOR = f"<{LANES} x double>"  # in LLVM IR
Vector: TypeAlias = np.ndarray[Any, Any]
FLOAT64: TypeAlias = np.ndarray[Any, Any]


def vector_load(x: FLOAT64, at: int) -> Vector:
    """Eight elements."""
    return x[at : at + LANES].copy()


def vector_store(x: FLOAT64, at: int, value: Vector) -> None:
    x[at : at + LANES] = value


def vector_splat(value: float) -> Vector:
    """A vector of one number."""
    return np.full(LANES, value)


def vector_fma(a: Vector, b: Vector, c: Vector) -> Vector:
    """a b + c, rounded once in native code."""
    return a * b + c
