"""GPU matmuls by every schedule, against NumPy.

On the emulated GPU always; on a real one where `NUMUS_TEST_DEVICES` names `cuda`, which then also
runs as older devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.matmul import wgmma
from numus.compiler.plan import clear_plans
from numus.kernels.matmul.gpu import mma_sync, simt_async
from numus.kernels.matmul.gpu import wgmma as wgmma_kernel
from numus.kernels.matmul.gpu.cost_model import Candidate, fastest
from numus.runtime import devices

simt_machine.install()


def older(capability: int) -> Callable[[int], Any]:
    def start(index: int) -> Any:
        from numus.runtime.cuda import driver
        from numus.runtime.cuda.runtime import CudaRuntime

        assert driver.count()
        return CudaRuntime(nm.device("cpu").runtime, index, capability)

    return start


@pytest.fixture(autouse=True)
def native_kernels() -> Any:
    with nm.kernels.prefer("native"):
        yield


ON_GPU = "cuda" in os.environ.get("NUMUS_TEST_DEVICES", "").split(",")
NAMES = ["simt_sm75", "simt_sm80", "simt_sm90"]
if ON_GPU:
    NAMES = ["cuda", "cuda_70", "cuda_75", "cuda_80"]
    for capability in (70, 75, 80):
        devices.BACKENDS.setdefault(f"cuda_{capability}", older(capability))

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
TOLERANCE = {
    **{"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2},
    # tensor cores accumulate these with fewer bits
    **{"float8_e4m3fn": 1e-3, "float8_e5m2": 1e-3, "complex64": 2e-6, "complex128": 1e-13},
}


@dataclass(frozen=True)
class Case:
    """`ours(nm, a, b)` on tensors, and on float64 (or int64) arrays where no `theirs` is given."""

    dtype: Any
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    tolerance: float | None = None

    def arrays(self) -> list[Any]:
        rng = np.random.default_rng(sum(map(sum, self.shapes)))
        dtype = np.dtype(self.dtype)
        if dtype.kind in "iu":
            low = 0 if dtype.kind == "u" else -100
            return [rng.integers(low, 100, s).astype(dtype) for s in self.shapes]
        if dtype.kind == "c":
            pairs = [(rng.standard_normal(s), rng.standard_normal(s)) for s in self.shapes]
            return [(x + 1j * y).astype(dtype) for x, y in pairs]
        return [rng.standard_normal(s).astype(dtype) for s in self.shapes]


def _plain(a: Any, b: Any) -> Any:
    return a @ b


def _case(dtype: Any, left: Any, right: Any, ours: Any = _plain, **kwargs: Any) -> Case:
    theirs = kwargs.pop("theirs", ours)
    return Case(dtype, (left, right), ours, theirs, **kwargs)


def _to_dtype(dtype: str) -> Any:
    return lambda a, b: nm.matmul(a, b, dtype=dtype)


def _tf32(a: Any, b: Any) -> Any:
    with nm.matmul_precision("tf32"):
        return a @ b


def _tf32_transposed(a: Any, b: Any) -> Any:
    with nm.matmul_precision("tf32"):
        return a @ b.T


def _fused(a: Any, b: Any) -> Any:
    return nm.relu((a * 2) @ b + 1)


def _fused_reference(a: Any, b: Any) -> Any:
    return np.maximum((a * 2) @ b + 1, 0)


TRANS = {
    "nn": lambda a, b: a @ b,
    "nt": lambda a, b: a @ b.T,
    "tn": lambda a, b: a.T @ b,
    "tt": lambda a, b: a.T @ b.T,
}


def _cases() -> dict[str, Case]:
    found = {}
    for name, dtype in (("bf16", BF16), ("f16", "f2"), ("f32", "f4"), ("f64", "f8")):
        for trans, f in TRANS.items():
            found[f"{name} {trans}"] = _case(dtype, (72, 72), (72, 72), f)
        found[f"{name} ragged"] = _case(dtype, (131, 77), (77, 69))
        found[f"{name} cut"] = _case(dtype, (130, 88), (88, 152))
        found[f"{name} batch"] = _case(dtype, (3, 66, 64), (3, 64, 72))
        found[f"{name} one for all"] = _case(dtype, (3, 66, 64), (64, 72))
        found[f"{name} fused"] = _case(dtype, (70, 80), (80, 72), _fused, theirs=_fused_reference)
    rounded = 2e-3  # relative to the largest
    found["tf32"] = _case("f4", (70, 80), (80, 72), _tf32, theirs=_plain, tolerance=rounded)
    transposed = TRANS["nt"]
    found["tf32 nt"] = _case(
        "f4", (70, 80), (72, 80), _tf32_transposed, theirs=transposed, tolerance=rounded
    )
    found["tf32 ragged"] = _case("f4", (70, 81), (81, 71), _tf32, theirs=_plain, tolerance=rounded)
    for name, dtype, wide in (
        *(("i8", "i1", "int32"), ("u8", "u1", "int32")),
        *(("e4m3", E4M3, "float32"), ("e5m2", E5M2, "float32")),
    ):
        found[name] = _case(dtype, (70, 80), (80, 72), _to_dtype(wide), theirs=_plain)
        found[f"{name} nt"] = _case(
            dtype,
            (70, 80),
            (72, 80),
            lambda a, b, wide=wide: nm.matmul(a, b.T, dtype=wide),
            theirs=transposed,
        )
        found[f"{name} ragged"] = _case(dtype, (70, 131), (131, 73), _to_dtype(wide), theirs=_plain)
    for name, dtype in (("bf16", BF16), ("f16", "f2"), ("f32", "f4"), ("f64", "f8")):
        for trans, f in TRANS.items():
            m, n, k = (8, 96, 264)
            a, b = ((m, k), (k, n))
            shapes = (a if trans[0] == "n" else a[::-1], b if trans[1] == "n" else b[::-1])
            found[f"{name} few rows {trans}"] = _case(dtype, *shapes, f)
            a, b = ((72, 8), (8, 1040))
            shapes = (a if trans[0] == "n" else a[::-1], b if trans[1] == "n" else b[::-1])
            found[f"{name} shallow {trans}"] = _case(dtype, *shapes, f)
        found[f"{name} few columns"] = _case(dtype, (131, 77), (77, 3))
        found[f"{name} a row"] = _case(dtype, (1, 512), (512, 200))
        found[f"{name} 20 rows"] = _case(dtype, (20, 516), (516, 70))
        found[f"{name} few rows batch"] = _case(dtype, (3, 5, 264), (3, 264, 72))
        found[f"{name} few rows fused"] = _case(
            dtype, (6, 264), (264, 72), _fused, theirs=_fused_reference
        )
        found[f"{name} shallow cut"] = _case(dtype, (2, 45, 5), (2, 5, 71))
        found[f"{name} shallow fused"] = _case(
            dtype, (40, 8), (8, 136), _fused, theirs=_fused_reference
        )
        found[f"{name} outer"] = _case(dtype, (70, 1), (1, 130))
    for name, dtype in (("c64", "c8"), ("c128", "c16")):
        for trans, f in TRANS.items():
            found[f"{name} {trans}"] = _case(dtype, (40, 40), (40, 40), f)
        found[f"{name} ragged"] = _case(dtype, (70, 37), (37, 50))
        found[f"{name} batch"] = _case(dtype, (2, 33, 40), (2, 40, 18))
        found[f"{name} fused"] = _case(
            *(dtype, (30, 40), (40, 20), lambda a, b: (a * 2) @ b + 1),
        )
    found["i8 wraps"] = _case("i1", (70, 80), (80, 72), theirs=lambda a, b: (a @ b).astype("i1"))
    found["i32"] = _case("i4", (70, 80), (80, 72))
    return found


CASES = _cases()

# The emulated GPU is slow: a few of each schedule, with every way of loading and storing.
IMITATED = {
    "simt_sm75": "f16 fused,f16 20 rows,f32 few rows nn,f32 shallow cut,c64 ragged",
    "simt_sm80": "f16 nn,bf16 nt,f64 cut,f64 tt,tf32 ragged,i8,u8 nt,f32 fused,f64 few rows nt,"
    "bf16 few columns,f32 outer,c128 tn",
    "simt_sm90": "bf16 nn,bf16 tt,bf16 ragged,bf16 batch,bf16 fused,f32 nn,f32 tt,f32 ragged,"
    "f32 one for all,f64 nt,tf32 nt,i8 nt,i8 wraps,e4m3 nt,e5m2,i32,bf16 few rows nn,"
    "bf16 few rows nt,bf16 few rows batch,bf16 few rows fused,bf16 a row,f32 few rows nn,"
    "f32 few rows tt,f64 few columns,f32 few rows fused,bf16 shallow nn,bf16 shallow tn,"
    "f32 shallow nt,f32 shallow fused,bf16 outer,f64 shallow cut,c64 nn,c64 nt,c64 tt,"
    "c64 ragged,c64 batch,c64 fused,c128 ragged",
}


def _pairs() -> list[tuple[str, str]]:
    if ON_GPU:
        return [(name, device) for device in NAMES for name in CASES]
    return [(name, device) for device, some in IMITATED.items() for name in some.split(",")]


@pytest.mark.parametrize(("name", "device"), _pairs())
def test_matmul(name: str, device: str) -> None:
    case = CASES[name]
    check(case, case.arrays(), device)


def check(case: Case, arrays: list[Any], device: str) -> None:
    got = case.ours(*(nm.asarray(x, device=device) for x in arrays)).numpy()
    compare(case, got, arrays)


def compare(case: Case, got: Any, arrays: list[Any]) -> None:
    kind = np.dtype(case.dtype).kind
    wide = np.int64 if kind in "iu" else np.complex128 if kind == "c" else np.float64
    want = case.theirs(*(x.astype(wide) for x in arrays))
    if wide is np.int64:
        np.testing.assert_array_equal(got, want)
        return
    tolerance = case.tolerance or TOLERANCE[np.dtype(case.dtype).name]
    assert got.shape == want.shape
    error = np.abs(got.astype(wide) - want).max() / np.abs(want).max()
    assert error <= tolerance


@pytest.mark.parametrize(("trans", "copies"), [("nn", 0), ("tn", 1), ("nt", 1)])
def test_complex_products_expand_b_in_registers(trans: str, copies: int) -> None:
    """No kernel writes the expanded matrix; others copy operands whose rows lie otherwise."""
    case, device = CASES[f"c64 {trans}"], NAMES[0] if ON_GPU else "simt_sm90"
    operands = [nm.asarray(x, device=device) for x in case.arrays()]
    nm.eval(operands)
    launched = getattr(nm.device(device).runtime, "launched", [])  # emulated GPUs list them
    launched.clear()
    with nm.kernels.prefer("native"):
        compare(case, case.ours(*operands).numpy(), case.arrays())
    assert ON_GPU or [p.name for p in launched][copies:] == ["simt_async_gemm"]


REPACKED = {
    "bf16 fused": _case(BF16, (70, 81), (81, 73), _fused, theirs=_fused_reference),
    "bf16 turned": _case(BF16, (81, 70), (73, 81), TRANS["tt"]),
    "i8": _case("i1", (70, 81), (81, 73), _to_dtype("int32"), theirs=_plain),
    "u8 batch": _case("u1", (2, 70, 81), (2, 81, 73), _to_dtype("int32"), theirs=_plain),
    "tf32": _case("f4", (70, 81), (81, 73), _tf32, theirs=_plain, tolerance=2e-3),
}


@pytest.mark.parametrize("name", REPACKED)
def test_repacked_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma, "REPACK_MIN_EXTENT", dict.fromkeys((1, 2, 4), 64))
    check(REPACKED[name], REPACKED[name].arrays(), NAMES[0] if ON_GPU else "simt_sm90")


FEW_ROWS = {
    **{f"bf16 {trans}": (BF16, TRANS[trans], None) for trans in TRANS},
    "i8": ("i1", lambda a, b: nm.matmul(a, b.T, dtype="int32"), None),
    "e5m2": (E5M2, lambda a, b: nm.matmul(a, b.T, dtype="float32"), None),
    "tf32": ("f4", _tf32_transposed, 2e-3),
}


@pytest.mark.parametrize(  # bytes from 16-byte alignment: slow to emulate
    ("name", "offset"), [*((name, 0) for name in FEW_ROWS), ("bf16 tn", 8), ("bf16 nt", 8)]
)
def test_wgmma_tiles_of_64_rows(name: str, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each warpgroup has half of the columns."""
    dtype, ours, tolerance = FEW_ROWS[name]
    device = NAMES[0] if ON_GPU else "simt_sm90"
    tiles = wgmma_kernel.TileShape(64, 3, 64)
    monkeypatch.setattr(wgmma_kernel, "choose_tile", lambda *given, **how: (tiles, 1))
    monkeypatch.setattr(wgmma, "REPACK_MIN_EXTENT", dict.fromkeys((1, 2, 4), 64))
    rows, columns, k = (40, 48, 72) if offset else (80, 96, 144)
    trans = name.split()[-1] if name.startswith("bf16") else "nt"
    left, right = (rows, k), (k, columns)
    left, right = (
        left[:: 1 if trans[0] == "n" else -1],
        right[:: 1 if trans[1] == "n" else -1],
    )
    case = _case(dtype, left, right, ours, theirs=TRANS[trans], tolerance=tolerance)
    arrays = case.arrays()
    first = offset // arrays[0].itemsize
    flat = np.concatenate([np.zeros(first, arrays[0].dtype), arrays[0].ravel()])
    moved = nm.asarray(flat, device=device)[first:].reshape(left)
    nm.eval(moved)
    compare(case, ours(moved, nm.asarray(arrays[1], device=device)).numpy(), arrays)


SHAPES = [*simt_async._CYCLES, simt_async.WIDE_TILE, simt_async.TALL_TILE]


@pytest.mark.parametrize("k", [67, 64] if ON_GPU else [67])
@pytest.mark.parametrize("trans", TRANS if ON_GPU else ["nt", "tn"])
@pytest.mark.parametrize("tile", [*SHAPES, *mma_sync._INTERLEAVED_CYCLES], ids=str)
def test_every_tile_shape(tile: Any, trans: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial on all sides, with aligned rows and misaligned ones."""
    dtype, found = "f4", tile
    if not isinstance(tile, simt_async.TileShape):
        dtype, found = "f8", mma_sync.TileShape(*tile[:2], mma_sync.TILE_K_WORDS, 3, *tile[2:])
    monkeypatch.setattr(
        simt_async if dtype == "f4" else mma_sync, "choose_tile", lambda *given: (found, 1)
    )
    beyond = 1 if ON_GPU else -1  # the emulated GPU is slow
    m, n = found.m + 4 * beyond, found.n + (5 if k % 4 else 4) * beyond
    shapes = ((m, k) if trans[0] == "n" else (k, m), (k, n) if trans[1] == "n" else (n, k))
    clear_plans()
    case = _case(dtype, *shapes, TRANS[trans])
    check(case, case.arrays(), NAMES[0] if ON_GPU else "simt_sm90")
    clear_plans()


SQUARE_WARPS = {  # m, n, k, columns of the matrix that B is part of, elements from alignment
    "whole": (128, 256, 16, 256, 0),
    "cut": (84, 148, 20, 148, 0),
    "partial vectors": (84, 150, 20, 152, 0),
    "two blocks": (129, 260, 12, 260, 0),
    "misaligned": (36, 64, 20, 64, 1),
}


@pytest.mark.parametrize("trans", TRANS if ON_GPU else ["nn", "nt", "tt"])
@pytest.mark.parametrize("name", SQUARE_WARPS)
def test_square_warps(name: str, trans: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows past the end repeat the last one and are not stored; past k are zeros."""
    tile = simt_async.WIDE_TILE if trans[0] == "n" else simt_async.TALL_TILE
    monkeypatch.setattr(simt_async, "choose_tile", lambda *given: (tile, 1))
    m, n, k, wide, offset = SQUARE_WARPS[name]
    device = NAMES[0] if ON_GPU else "simt_sm90"
    rng = np.random.default_rng(m)
    bias = rng.standard_normal(n, "f4")
    a = rng.standard_normal((m, k) if trans[0] == "n" else (k, m), "f4")
    left = nm.asarray(a, device=device)
    a, left = (a, left) if trans[0] == "n" else (a.T, left.T)
    flat = rng.standard_normal(k * wide + offset, "f4")
    b = flat[offset:].reshape((k, wide) if trans[1] == "n" else (wide, k))
    near = nm.asarray(flat, device=device)[offset:].reshape(b.shape)
    nm.eval(near)
    right, ours = (b[:, :n], near[:, :n]) if trans[1] == "n" else (b[:n].T, near[:n].T)
    clear_plans()
    found = nm.gelu(left @ ours + nm.asarray(bias, device=device))
    expected = nm.gelu(nm.asarray(a.astype("f8") @ right + bias)).numpy()
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5, rtol=2e-6)
    clear_plans()


def test_square_warps_are_for_large_matmuls() -> None:
    import dataclasses

    target = dataclasses.replace(simt_machine.TARGET, num_cores=132)
    for size, large in ((256, False), (1024, False), (2048, True), (4096, True)):
        for tile in (simt_async.WIDE_TILE, simt_async.TALL_TILE):
            tiles, split_k = simt_async.choose_tile(target, 1, size, size, size, tile)
            assert (tiles is tile) is large
            assert split_k == 1 or not large
        assert simt_async.choose_tile(target, 1, size, size, size)[0] in simt_async._CYCLES
    assert (
        simt_async.choose_tile(target, 1, 4096, 4096, 8, simt_async.WIDE_TILE)[0]
        in simt_async._CYCLES
    )


@pytest.mark.parametrize(
    ("trans", "k", "dtype", "tile"),
    [
        *(("nn", 64, "f4", simt_async.WIDE_TILE), ("nt", 64, "f4", simt_async.WIDE_TILE)),
        *(("tn", 64, "f4", simt_async.TALL_TILE), ("nt", 67, "f4", None), ("nn", 64, "i4", None)),
    ],
)
def test_square_warps_need_aligned_float32(
    trans: str, k: int, dtype: str, tile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows begin at multiples of 16 bytes."""
    asked = []
    choose = simt_async.choose_tile
    monkeypatch.setattr(
        simt_async, "choose_tile", lambda *given: asked.append(given[-1]) or choose(*given)
    )
    left, right = (
        (36, k) if trans[0] == "n" else (k, 36),
        (k, 40) if trans[1] == "n" else (40, k),
    )
    case = _case(dtype, left, right, TRANS[trans])
    clear_plans()
    check(case, case.arrays(), NAMES[0] if ON_GPU else "simt_sm90")
    clear_plans()
    assert asked == [tile]


@pytest.mark.parametrize("device", NAMES if ON_GPU else ["simt_sm90"])
@pytest.mark.parametrize("dtype", [BF16, "f4", "f8"] if ON_GPU else [BF16, "f4"])
def test_split_k(dtype: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 20480 if ON_GPU else 1024 if dtype is BF16 else 512
    if not ON_GPU:
        import dataclasses

        runtime = nm.device(device).runtime
        many = dataclasses.replace(runtime.target, num_cores=12)
        monkeypatch.setattr(runtime, "target", many)
    case = _case(dtype, (66, depth), (depth, 72))
    check(case, case.arrays(), device)


@pytest.mark.parametrize("device", NAMES if ON_GPU else ["simt_sm90"])
@pytest.mark.parametrize("dtype", [BF16, "f4", "f8"])
@pytest.mark.parametrize("offset", [1, 2] if ON_GPU else [1])
def test_misaligned_memory(dtype: Any, offset: int, device: str) -> None:
    case = _case(dtype, (70, 80), (80, 72))
    arrays = case.arrays()
    flat = np.concatenate([np.zeros(offset, arrays[0].dtype), arrays[0].ravel()])
    moved = nm.asarray(flat, device=device)[offset:].reshape(70, 80)
    nm.eval(moved)
    compare(case, (moved @ nm.asarray(arrays[1], device=device)).numpy(), arrays)


@pytest.mark.parametrize("device", NAMES if ON_GPU else ["simt_sm90"])
@pytest.mark.parametrize("dtype", [BF16, "f4"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    "shapes", [((8, 264), (264, 72)), ((3, 264), (264, 72)), ((40, 8), (8, 80))]
)
def test_misaligned_vectors(dtype: Any, side: int, shapes: Any, device: str) -> None:
    case = _case(dtype, *shapes)
    arrays = case.arrays()
    flat = np.concatenate([np.zeros(1, arrays[side].dtype), arrays[side].ravel()])
    moved = nm.asarray(flat, device=device)[1:].reshape(shapes[side])
    nm.eval(moved)
    operands = [nm.asarray(x, device=device) for x in arrays]
    operands[side] = moved
    compare(case, (operands[0] @ operands[1]).numpy(), arrays)


def test_split_k_fills_all_sms() -> None:
    target = simt_machine.TARGET
    sms = target.num_cores
    small = Candidate("small", 1, 64, (1e4, 1.2e4), 5)
    large = Candidate("large", 8 * sms, 64, (3e4,), 5)
    best, split_k, blocks_per_sm = fastest(target, [large, small], 0)
    assert (best.tile, split_k, blocks_per_sm) == ("small", 2 * sms, 2)  # two blocks per SM
    assert fastest(target, [large], 0)[1:] == (1, 1)
    assert fastest(target, [small], 1 << 40)[1] == 1  # splits cost the bytes they move
    few = Candidate("few", 1, 5, (1e4,), 5, min_split_k_tiles=1)
    assert fastest(target, [few], 0)[1] in (2, 3, 5)  # whole K-tiles, none of the splits empty
