"""Matrices that are factorised in place, on emulated CPUs with fewer and narrower registers."""

from __future__ import annotations

import numpy as np
import pytest
from llvm_harness import targets
from test_cpu_gemm import narrow_cpu, numbers

import numus as nm
from numus.compiler import plan as plans


@pytest.mark.parametrize("llvm_target", [t for t in targets() if t != "host"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_registers_show_in_no_result(llvm_target, dtype):
    """Complex tiles of 16 registers have two rows: fewer than the steps that others write out."""
    device, n = narrow_cpu(llvm_target), 86
    a, b = numbers((n, n), dtype), numbers((n, 3), dtype)
    positive = a @ a.conj().T + n * np.eye(n, dtype=dtype)
    near = 100 * n * np.finfo(dtype).eps
    with nm.kernels.prefer("native"):
        factor = nm.linalg.cholesky(nm.asarray(positive, device=device)).numpy()
        x = nm.linalg.solve(nm.asarray(a, device=device), nm.asarray(b, device=device)).numpy()
        q, r = (y.numpy() for y in nm.linalg.qr(nm.asarray(a, device=device)))
    assert np.abs(factor @ factor.conj().T - positive).max() < near * np.abs(positive).max()
    assert np.abs(a @ x - b).max() < near * np.abs(x).max()
    assert np.abs(q @ r - a).max() < near
    assert np.abs(q.conj().T @ q - np.eye(n)).max() < near
    plans.clear_plans()  # they hold the narrow runtime
