"""Linear algebra: large matrices, sizes that are no multiple of a block, and stacks of small ones.

numus's rows are measured as preferred (`nm.kernels.prefer`): by default, LAPACK where it is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm

from .libraries import jnp, torch
from .workloads import Inputs, add_workload

BATCHES = ((10_000, 4), (1_000, 16), (500, 64))


def _general(*shape: int, dtype: type) -> Callable[..., Inputs]:
    """Random matrices with a diagonal that keeps them away from singular ones."""

    def make(rng: np.random.Generator) -> Inputs:
        a = rng.standard_normal(shape) + np.sqrt(shape[-1]) * np.eye(*shape[-2:])
        return [a.astype(dtype)]

    return make


def _positive(*shape: int, dtype: type) -> Callable[..., Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        a = rng.standard_normal(shape)
        return [(a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)]

    return make


def _system(*shape: int, dtype: type) -> Callable[..., Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        right = rng.standard_normal((*shape[:-1], 1)).astype(dtype)
        return [*_general(*shape, dtype=dtype)(rng), right]

    return make


def _row(name: str, label: str, inputs: Callable[..., Inputs]) -> None:
    """A function that all libraries have under one name."""

    def of(module: Any) -> Callable[..., Any]:
        return lambda *xs: getattr(module.linalg, name)(*xs)

    add_workload(label, inputs, numus=of(nm), numpy=of(np), torch=of(torch), jax=of(jnp))


for _dtype, _suffix in ((np.float64, "f64"), (np.float32, "f32")):
    for _n in (1024, 1000):
        _off = "" if _n == 1024 else "off_"
        _row("cholesky", f"cholesky_{_suffix}_{_off}{_n}", _positive(_n, _n, dtype=_dtype))
        _row("solve", f"solve_{_suffix}_{_off}{_n}", _system(_n, _n, dtype=_dtype))
    for _n in (512, 500, 333):
        _off = "" if _n == 512 else "off_"
        _row("qr", f"qr_{_suffix}_{_off}{_n}", _general(_n, _n, dtype=_dtype))
        _row("eigh", f"eigh_{_suffix}_{_off}{_n}", _positive(_n, _n, dtype=_dtype))
        _row("svd", f"svd_{_suffix}_{_off}{_n}", _general(_n, _n, dtype=_dtype))
    _row("eig", f"eig_{_suffix}_256", _general(256, 256, dtype=_dtype))
    for _batch, _n in BATCHES:
        _label = f"{_suffix}_{_batch}x{_n}x{_n}"
        for _name in ("inv", "det", "qr", "svd"):
            _row(_name, f"{_name}_{_label}", _general(_batch, _n, _n, dtype=_dtype))
        for _name in ("cholesky", "eigh"):
            _row(_name, f"{_name}_{_label}", _positive(_batch, _n, _n, dtype=_dtype))
        _row("solve", f"solve_{_label}", _system(_batch, _n, _n, dtype=_dtype))
