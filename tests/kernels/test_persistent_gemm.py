"""Persistent wgmma GEMM, against NumPy.

On the emulated GPU always; on a GPU where `NUMUS_TEST_DEVICES` names `cuda`.
"""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.matmul import wgmma
from numus.compiler.plan import clear_plans
from numus.kernels.matmul.gpu import wgmma as wgmma_kernel

simt_machine.install()

ON_GPU = "cuda" in os.environ.get("NUMUS_TEST_DEVICES", "").split(",")
DEVICE = "cuda" if ON_GPU else "simt_sm90"
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
TILES = [(64, 64), (128, 64), (128, 128), (128, 256)] if ON_GPU else [(64, 64)]
TOLERANCE = {"bfloat16": 1.6e-2, "float16": 2e-3, "float32": 2e-3, "float8_e4m3fn": 1.6e-2}


@pytest.fixture(autouse=True)
def native_kernels() -> Any:
    clear_plans()
    with nm.kernels.prefer("native"):
        yield
    clear_plans()


@pytest.fixture
def persistent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that forces a tile; it returns the list of those used."""
    taken: list[wgmma_kernel.TileShape] = []
    gemm = wgmma_kernel.wgmma_gemm

    def seen(call: Any, g: Any) -> Any:
        taken.append(call.tile)
        return gemm(call, g)

    def ask(tile: tuple[int, int], blocks_per_sm: int = 1, split_k: int = 1) -> Any:
        def choose_tile(target: Any, *given: Any, persistent: bool) -> Any:
            return wgmma_kernel.fit_stages(
                target, tile, blocks_per_sm, persistent=persistent
            ), split_k

        monkeypatch.setattr(wgmma_kernel, "choose_tile", choose_tile)
        return taken

    monkeypatch.setattr(wgmma_kernel, "wgmma_gemm", seen)
    monkeypatch.setattr(wgmma, "REPACK_MIN_EXTENT", dict.fromkeys((1, 2, 4), 64))
    return ask


def drawn(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed + sum(shape))
    if np.dtype(dtype).kind == "i":
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def close(got: Any, want: Any, dtype: Any) -> None:
    assert got.shape == want.shape
    if np.dtype(dtype).kind == "i":
        np.testing.assert_array_equal(got, want)
        return
    error = np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()
    assert error <= TOLERANCE[np.dtype(dtype).name]


def put(x: Any) -> Any:
    return nm.asarray(x, device=DEVICE)


def wide(x: Any) -> Any:
    return x.astype(np.int64 if x.dtype.kind == "i" else np.float64)


def sizes(tile: tuple[int, int]) -> tuple[int, int, int]:
    """Several waves of tiles, the last ones partial, with aligned rows."""
    if not ON_GPU:
        return 2 * tile[0] + 9, 2 * tile[1] + 16, 80
    return 40 * tile[0] + 9, 11 * tile[1] + 16, 333 * 8


KINDS = {
    "bf16": (BF16, None),
    "bf16 to f32": (BF16, "float32"),
    "f16": ("f2", None),
    "e4m3 to bf16": (E4M3, "bfloat16"),
    "i8 to i32": ("i1", "int32"),
    "tf32": ("f4", None),
}


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype(kind: str, tile: tuple[int, int], persistent: Any) -> None:
    dtype, result = KINDS[kind]
    if dtype is E4M3 and tile == (128, 256):
        pytest.skip("has too few registers")
    m, n, k = sizes(tile)
    a, b = drawn(m, k, dtype=dtype), drawn(n, k, dtype=dtype, seed=1)
    taken = persistent(tile, 1 if tile[1] > 128 or dtype is E4M3 else 2)
    with nm.matmul_precision("tf32"):
        got = nm.matmul(put(a), put(b).T, dtype=result).numpy()
    assert [t.persistent for t in taken] == [True]
    close(got, wide(a) @ wide(b).T, dtype)


EPILOGUES = {
    "bias": lambda nm, y, v, r: nm.maximum(y + v, 0),
    "residual": lambda nm, y, v, r: r - y * 2,
    "transposed": lambda nm, y, v, r: (y + v).T,
    "compared": lambda nm, y, v, r: y > v,
}


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, tile: tuple[int, int], persistent: Any) -> None:
    m, n, k = sizes(tile)
    a, b, v, r = drawn(m, k), drawn(k, n), drawn(n), drawn(m, n)
    taken = persistent(tile)
    f = EPILOGUES[name]
    got = f(nm, put(a) @ put(b), put(v), put(r)).numpy()
    want = (wide(a) @ wide(b)).astype(BF16).astype(np.float64)
    assert len(taken) == 1
    found = f(np, want, wide(v), wide(r))
    if name == "compared":
        assert (got != found).mean() < 2e-3
    else:
        close(got, found, BF16)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_batches_and_split_k(tile: tuple[int, int], persistent: Any) -> None:
    m, n, k = sizes(tile) if not ON_GPU else (300, 520, 1000)
    a, b = drawn(3, m, k), drawn(3, k, n)
    for split_k in (1, 2):
        taken = persistent(tile, split_k=split_k)
        got = (put(a) @ put(b)).numpy()
        assert all(t.persistent for t in taken)
        close(got, wide(a) @ wide(b), BF16)
        clear_plans()


@pytest.mark.slow
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_misaligned_operands_and_parts_of_results(tile: tuple[int, int], persistent: Any) -> None:
    m, n, k = sizes(tile) if not ON_GPU else (700, 1048, 200)
    flat, b, c = drawn(m * k + 1), drawn(k, n), drawn(3, n)
    moved = put(flat)[1:].reshape(m, k)
    nm.eval(moved)
    taken = persistent(tile)
    got = nm.concat([put(c), moved @ put(b)]).numpy()
    assert taken
    a = flat[1:].reshape(m, k)
    close(got, np.concatenate([wide(c), wide(a) @ wide(b)]), BF16)


def test_partial_rows_are_not_persistent(persistent: Any) -> None:
    """Rows of an odd number of elements, and several results."""
    taken = persistent((64, 64))
    a, b = drawn(70, 80), drawn(80, 73)
    close((put(a) @ put(b)).numpy(), wide(a) @ wide(b), BF16)
    a, b = put(drawn(70, 80)), put(drawn(80, 72))
    y = a @ b
    nm.eval(y, nm.relu(y) * 2)
    assert [t.persistent for t in taken] == [False, False]
