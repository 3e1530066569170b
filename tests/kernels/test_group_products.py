"""Products by every kind of unit that NVIDIA GPUs have, against NumPy.

On the imitated machine always; on a GPU where `NUMUS_TEST_DEVICES` names `cuda`, which then also
pretends to be older than it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import group_machine
import ml_dtypes
import numpy as np
import pytest

import numus as nm
from numus.compiler.lower.matmul import wgmma
from numus.compiler.plan import clear_plans
from numus.kernels.matmul.gpu import mma_sync as warp
from numus.kernels.matmul.gpu import simt_async as threads
from numus.kernels.matmul.gpu import wgmma as wgmma_kernel
from numus.kernels.matmul.gpu.cost_model import Way, quickest
from numus.runtime import devices

group_machine.install()


def older(capability: int) -> Callable[[int], Any]:
    def start(index: int) -> Any:
        from numus.runtime.cuda import driver
        from numus.runtime.cuda.runtime import CudaRuntime

        assert driver.count()
        return CudaRuntime(nm.device("cpu").runtime, index, capability)

    return start


@pytest.fixture(autouse=True)
def own_kernels() -> Any:
    with nm.kernels.prefer("native"):
        yield


ON_GPU = "cuda" in os.environ.get("NUMUS_TEST_DEVICES", "").split(",")
NAMES = ["groups_75", "groups_80", "groups_90"]
if ON_GPU:
    NAMES = ["cuda", "cuda_70", "cuda_75", "cuda_80"]
    for capability in (70, 75, 80):
        devices.BACKENDS.setdefault(f"cuda_{capability}", older(capability))

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
TOLERANCE = {
    **{"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2},
    # of which the units keep fewer digits while they add up
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


def _wide(dtype: str) -> Any:
    return lambda a, b: nm.matmul(a, b, dtype=dtype)


def _tf32(a: Any, b: Any) -> Any:
    with nm.matmul_precision("tf32"):
        return a @ b


def _tf32_turned(a: Any, b: Any) -> Any:
    with nm.matmul_precision("tf32"):
        return a @ b.T


def _fused(a: Any, b: Any) -> Any:
    return nm.relu((a * 2) @ b + 1)


def _fused_reference(a: Any, b: Any) -> Any:
    return np.maximum((a * 2) @ b + 1, 0)


TURNS = {
    "nn": lambda a, b: a @ b,
    "nt": lambda a, b: a @ b.T,
    "tn": lambda a, b: a.T @ b,
    "tt": lambda a, b: a.T @ b.T,
}


def _cases() -> dict[str, Case]:
    found = {}
    for name, dtype in (("bf16", BF16), ("f16", "f2"), ("f32", "f4"), ("f64", "f8")):
        for turn, f in TURNS.items():
            found[f"{name} {turn}"] = _case(dtype, (72, 72), (72, 72), f)
        found[f"{name} ragged"] = _case(dtype, (131, 77), (77, 69))
        found[f"{name} cut"] = _case(dtype, (130, 88), (88, 152))
        found[f"{name} batch"] = _case(dtype, (3, 66, 64), (3, 64, 72))
        found[f"{name} one for all"] = _case(dtype, (3, 66, 64), (64, 72))
        found[f"{name} fused"] = _case(dtype, (70, 80), (80, 72), _fused, theirs=_fused_reference)
    rounded = 2e-3  # relative to the largest
    found["tf32"] = _case("f4", (70, 80), (80, 72), _tf32, theirs=_plain, tolerance=rounded)
    turned = TURNS["nt"]
    found["tf32 nt"] = _case(
        "f4", (70, 80), (72, 80), _tf32_turned, theirs=turned, tolerance=rounded
    )
    found["tf32 ragged"] = _case("f4", (70, 81), (81, 71), _tf32, theirs=_plain, tolerance=rounded)
    for name, dtype, wide in (
        *(("i8", "i1", "int32"), ("u8", "u1", "int32")),
        *(("e4m3", E4M3, "float32"), ("e5m2", E5M2, "float32")),
    ):
        found[name] = _case(dtype, (70, 80), (80, 72), _wide(wide), theirs=_plain)
        found[f"{name} nt"] = _case(
            dtype,
            (70, 80),
            (72, 80),
            lambda a, b, wide=wide: nm.matmul(a, b.T, dtype=wide),
            theirs=turned,
        )
        found[f"{name} ragged"] = _case(dtype, (70, 131), (131, 73), _wide(wide), theirs=_plain)
    for name, dtype in (("bf16", BF16), ("f16", "f2"), ("f32", "f4"), ("f64", "f8")):
        for turn, f in TURNS.items():
            m, n, k = (8, 96, 264)
            a, b = ((m, k), (k, n))
            shapes = (a if turn[0] == "n" else a[::-1], b if turn[1] == "n" else b[::-1])
            found[f"{name} few rows {turn}"] = _case(dtype, *shapes, f)
            a, b = ((72, 8), (8, 1040))
            shapes = (a if turn[0] == "n" else a[::-1], b if turn[1] == "n" else b[::-1])
            found[f"{name} shallow {turn}"] = _case(dtype, *shapes, f)
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
        for turn, f in TURNS.items():
            found[f"{name} {turn}"] = _case(dtype, (40, 40), (40, 40), f)
        found[f"{name} ragged"] = _case(dtype, (70, 37), (37, 50))
        found[f"{name} batch"] = _case(dtype, (2, 33, 40), (2, 40, 18))
        found[f"{name} fused"] = _case(
            *(dtype, (30, 40), (40, 20), lambda a, b: (a * 2) @ b + 1),
        )
    found["i8 wraps"] = _case("i1", (70, 80), (80, 72), theirs=lambda a, b: (a @ b).astype("i1"))
    found["i32"] = _case("i4", (70, 80), (80, 72))
    return found


CASES = _cases()

# The imitated machine is slow: of each kind of unit a few, in every way of reading and writing.
IMITATED = {
    "groups_75": "f16 fused,f16 20 rows,f32 few rows nn,f32 shallow cut,c64 ragged",
    "groups_80": "f16 nn,bf16 nt,f64 cut,f64 tt,tf32 ragged,i8,u8 nt,f32 fused,f64 few rows nt,"
    "bf16 few columns,f32 outer,c128 tn",
    "groups_90": "bf16 nn,bf16 tt,bf16 ragged,bf16 batch,bf16 fused,f32 nn,f32 tt,f32 ragged,"
    "f32 one for all,f64 nt,tf32 nt,i8 nt,i8 wraps,e4m3 nt,e5m2,i32,bf16 few rows nn,"
    "bf16 few rows nt,bf16 few rows batch,bf16 few rows fused,bf16 a row,f32 few rows nn,"
    "f32 few rows tt,f64 few columns,f32 few rows fused,bf16 shallow nn,bf16 shallow tn,"
    "f32 shallow nt,f32 shallow fused,bf16 outer,f64 shallow cut,c64 nn,c64 nt,c64 batch,"
    "c64 fused,c128 ragged",
}


def _pairs() -> list[tuple[str, str]]:
    if ON_GPU:
        return [(name, device) for device in NAMES for name in CASES]
    return [(name, device) for device, some in IMITATED.items() for name in some.split(",")]


@pytest.mark.parametrize(("name", "device"), _pairs())
def test_products(name: str, device: str) -> None:
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


PACKED = {
    "bf16 fused": _case(BF16, (70, 81), (81, 73), _fused, theirs=_fused_reference),
    "bf16 turned": _case(BF16, (81, 70), (73, 81), TURNS["tt"]),
    "i8": _case("i1", (70, 81), (81, 73), _wide("int32"), theirs=_plain),
    "u8 batch": _case("u1", (2, 70, 81), (2, 81, 73), _wide("int32"), theirs=_plain),
    "tf32": _case("f4", (70, 81), (81, 73), _tf32, theirs=_plain, tolerance=2e-3),
}


@pytest.mark.parametrize("name", PACKED)
def test_operands_that_are_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma, "REUSED", dict.fromkeys((1, 2, 4), 64))
    check(PACKED[name], PACKED[name].arrays(), NAMES[0] if ON_GPU else "groups_90")


FEW_ROWS = {
    **{f"bf16 {turn}": (BF16, TURNS[turn], None) for turn in TURNS},
    "i8": ("i1", lambda a, b: nm.matmul(a, b.T, dtype="int32"), None),
    "e5m2": (E5M2, lambda a, b: nm.matmul(a, b.T, dtype="float32"), None),
    "tf32": ("f4", _tf32_turned, 2e-3),
}


@pytest.mark.parametrize(  # bytes from where the engine could read: slow to imitate
    ("name", "away"), [*((name, 0) for name in FEW_ROWS), ("bf16 tn", 8), ("bf16 nt", 8)]
)
def test_tiles_of_few_rows(name: str, away: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the columns for every 128 threads, where there are 64 rows."""
    dtype, ours, tolerance = FEW_ROWS[name]
    device = NAMES[0] if ON_GPU else "groups_90"
    tiles = wgmma_kernel.Tiles(64, 3, 64)
    monkeypatch.setattr(wgmma_kernel, "choose", lambda *given, **how: (tiles, 1))
    monkeypatch.setattr(wgmma, "REUSED", dict.fromkeys((1, 2, 4), 64))
    rows, columns, k = (40, 48, 72) if away else (80, 96, 144)
    turned = name.split()[-1] if name.startswith("bf16") else "nt"
    left, right = (rows, k), (k, columns)
    left, right = left[:: 1 if turned[0] == "n" else -1], right[:: 1 if turned[1] == "n" else -1]
    case = _case(dtype, left, right, ours, theirs=TURNS[turned], tolerance=tolerance)
    arrays = case.arrays()
    first = away // arrays[0].itemsize
    flat = np.concatenate([np.zeros(first, arrays[0].dtype), arrays[0].ravel()])
    moved = nm.asarray(flat, device=device)[first:].reshape(left)
    nm.eval(moved)
    compare(case, ours(moved, nm.asarray(arrays[1], device=device)).numpy(), arrays)


SHAPES = [*threads._TIMES, threads.WIDE, threads.TALL]


@pytest.mark.parametrize("k", [67, 64] if ON_GPU else [67])
@pytest.mark.parametrize("turn", TURNS if ON_GPU else ["nt", "tn"])
@pytest.mark.parametrize("tile", [*SHAPES, *warp._WOVEN_TIMES], ids=str)
def test_tiles_of_all_shapes(tile: Any, turn: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off on all sides, in lines that lie at whole runs and in others."""
    dtype, found = "f4", tile
    if not isinstance(tile, threads.Tiles):
        dtype, found = "f8", warp.Tiles(*tile[:2], warp.DEPTH, 3, *tile[2:])
    monkeypatch.setattr(threads if dtype == "f4" else warp, "choose", lambda *given: (found, 1))
    beyond = 1 if ON_GPU else -1  # the imitated machine is slow
    m, n = found.rows + 4 * beyond, found.columns + (5 if k % 4 else 4) * beyond
    shapes = ((m, k) if turn[0] == "n" else (k, m), (k, n) if turn[1] == "n" else (n, k))
    clear_plans()
    case = _case(dtype, *shapes, TURNS[turn])
    check(case, case.arrays(), NAMES[0] if ON_GPU else "groups_90")
    clear_plans()


SQUARES = {  # rows, columns and k, columns that B is a part of, elements from an aligned place
    "whole": (128, 256, 16, 256, 0),
    "cut": (84, 148, 20, 148, 0),
    "cut within runs": (84, 150, 20, 152, 0),
    "two groups": (129, 260, 12, 260, 0),
    "not aligned": (36, 64, 20, 64, 1),
}


@pytest.mark.parametrize("turn", TURNS if ON_GPU else ["nn", "nt", "tt"])
@pytest.mark.parametrize("name", SQUARES)
def test_squares(name: str, turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines beyond the last are copies of it, of which nothing is left; beyond k are zeros."""
    tile = threads.WIDE if turn[0] == "n" else threads.TALL
    monkeypatch.setattr(threads, "choose", lambda *given: (tile, 1))
    m, n, k, wide, away = SQUARES[name]
    device = NAMES[0] if ON_GPU else "groups_90"
    rng = np.random.default_rng(m)
    bias = rng.standard_normal(n, "f4")
    a = rng.standard_normal((m, k) if turn[0] == "n" else (k, m), "f4")
    left = nm.asarray(a, device=device)
    a, left = (a, left) if turn[0] == "n" else (a.T, left.T)
    flat = rng.standard_normal(k * wide + away, "f4")
    b = flat[away:].reshape((k, wide) if turn[1] == "n" else (wide, k))
    near = nm.asarray(flat, device=device)[away:].reshape(b.shape)
    nm.eval(near)
    right, ours = (b[:, :n], near[:, :n]) if turn[1] == "n" else (b[:n].T, near[:n].T)
    clear_plans()
    found = nm.gelu(left @ ours + nm.asarray(bias, device=device))
    expected = nm.gelu(nm.asarray(a.astype("f8") @ right + bias)).numpy()
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5, rtol=2e-6)
    clear_plans()


def test_squares_are_for_large_products() -> None:
    import dataclasses

    target = dataclasses.replace(group_machine.TARGET, num_cores=132)
    for size, large in ((256, False), (1024, False), (2048, True), (4096, True)):
        for squares in (threads.WIDE, threads.TALL):
            tiles, pieces = threads.choose(target, 1, size, size, size, squares)
            assert (tiles is squares) is large
            assert pieces == 1 or not large
        assert threads.choose(target, 1, size, size, size)[0] in threads._TIMES
    assert threads.choose(target, 1, 4096, 4096, 8, threads.WIDE)[0] in threads._TIMES


@pytest.mark.parametrize(
    ("turn", "k", "dtype", "squares"),
    [
        *(("nn", 64, "f4", threads.WIDE), ("nt", 64, "f4", threads.WIDE)),
        *(("tn", 64, "f4", threads.TALL), ("nt", 67, "f4", None), ("nn", 64, "i4", None)),
    ],
)
def test_where_squares_may_be(
    turn: str, k: int, dtype: str, squares: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where float32 lies in whole runs."""
    asked = []
    choose = threads.choose
    monkeypatch.setattr(threads, "choose", lambda *given: asked.append(given[-1]) or choose(*given))
    left, right = (36, k) if turn[0] == "n" else (k, 36), (k, 40) if turn[1] == "n" else (40, k)
    case = _case(dtype, left, right, TURNS[turn])
    clear_plans()
    check(case, case.arrays(), NAMES[0] if ON_GPU else "groups_90")
    clear_plans()
    assert asked == [squares]


@pytest.mark.parametrize("device", NAMES if ON_GPU else ["groups_90"])
@pytest.mark.parametrize("dtype", [BF16, "f4", "f8"] if ON_GPU else [BF16, "f4"])
def test_long_sums_in_pieces(dtype: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 20480 if ON_GPU else 1024 if dtype is BF16 else 512
    if not ON_GPU:
        import dataclasses

        runtime = nm.device(device).runtime
        many = dataclasses.replace(runtime.target, num_cores=12)
        monkeypatch.setattr(runtime, "target", many)
    case = _case(dtype, (66, depth), (depth, 72))
    check(case, case.arrays(), device)


@pytest.mark.parametrize("device", NAMES if ON_GPU else ["groups_90"])
@pytest.mark.parametrize("dtype", [BF16, "f4", "f8"])
@pytest.mark.parametrize("away", [1, 2] if ON_GPU else [1])
def test_memory_that_is_not_aligned(dtype: Any, away: int, device: str) -> None:
    case = _case(dtype, (70, 80), (80, 72))
    arrays = case.arrays()
    flat = np.concatenate([np.zeros(away, arrays[0].dtype), arrays[0].ravel()])
    moved = nm.asarray(flat, device=device)[away:].reshape(70, 80)
    nm.eval(moved)
    compare(case, (moved @ nm.asarray(arrays[1], device=device)).numpy(), arrays)


@pytest.mark.parametrize("device", NAMES if ON_GPU else ["groups_90"])
@pytest.mark.parametrize("dtype", [BF16, "f4"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    "shapes", [((8, 264), (264, 72)), ((3, 264), (264, 72)), ((40, 8), (8, 80))]
)
def test_runs_that_are_not_aligned(dtype: Any, side: int, shapes: Any, device: str) -> None:
    case = _case(dtype, *shapes)
    arrays = case.arrays()
    flat = np.concatenate([np.zeros(1, arrays[side].dtype), arrays[side].ravel()])
    moved = nm.asarray(flat, device=device)[1:].reshape(shapes[side])
    nm.eval(moved)
    operands = [nm.asarray(x, device=device) for x in arrays]
    operands[side] = moved
    compare(case, (operands[0] @ operands[1]).numpy(), arrays)


def test_pieces_keep_all_units_busy() -> None:
    target = group_machine.TARGET
    units = target.num_cores
    small = Way("small", 1, 64, (1e4, 1.2e4), 5)
    large = Way("large", 8 * units, 64, (3e4,), 5)
    way, pieces, together = quickest(target, [large, small], 0)
    assert (way.tiles, pieces, together) == ("small", 2 * units, 2)  # two groups for each
    assert quickest(target, [large], 0)[1:] == (1, 1)
    assert quickest(target, [small], 1 << 40)[1] == 1  # pieces cost what they move
    few = Way("few", 1, 5, (1e4,), 5, least=1)
    assert quickest(target, [few], 0)[1] in (2, 3, 5)  # of whole slices, none of them empty
