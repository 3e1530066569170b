"""Every form of wgmma that kernels use, against the rules of the PTX ISA, without a GPU."""

import re
import shutil
import subprocess
from dataclasses import replace

import ml_dtypes
import numpy as np
import ptx_rules
import pytest
from test_render_ptx import PtxRuntime

import numus as nm
from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx import renderer
from numus.codegen.nvptx.assembler import Assembler
from numus.functions._base import wrap
from numus.kernels.matmul.gpu import sparse_wgmma
from numus.primitives.quantized.scaled_matmul import code_matmul, scaled_matmul
from numus.runtime import devices

devices.BACKENDS.setdefault("ptx", lambda index: PtxRuntime())

FLOATS8 = (dt.float8_e4m3fn, dt.float8_e5m2)
PAIRS = [
    *((d, d) for d in (dt.float16, dt.bfloat16, dt.float32, dt.int8, dt.uint8)),
    *((a, b) for a in (dt.int8, dt.uint8) for b in (dt.int8, dt.uint8) if a is not b),
    *((a, b) for a in FLOATS8 for b in FLOATS8),
]
TILES = ((128, 256), (128, 128), (128, 96), (128, 64), (64, 64))


def tile_kernel(a, b, tile, k_major, accumulates):
    """One K-tile in shared memory, multiplied."""
    m, n = tile
    scratch = ir.Buffer("k_tiles", a, "scratch", ir.const((m + n) * ir.SWIZZLE_BYTES // a.itemsize))
    accumulator = dt.float32 if a.kind == "float" else dt.int32
    out = ir.Buffer("out", accumulator, "write")
    count = n * m // 128 // 2
    sums = [ir.Register(f"c{i}", accumulator, lanes=True) for i in range(count)]
    block, lane = ir.var("block"), ir.var("lane")
    onto = block if accumulates else None
    mma = ir.WgmmaTile(sums, scratch, m, n, k_major, onto, None if b is a else b)
    stores = [ir.Store(out, lane * count + i, ir.read(c)) for i, c in enumerate(sums)]
    zeros = [ir.Set(c, ir.const(0, accumulator)) for c in sums]
    body = [*zeros, mma, ir.For(lane, ir.const(0), ir.const(256), "lanes", stores)]
    grid = ir.For(block, ir.const(0), ir.scalar("n", ir.INDEX), "grid", body)
    return ir.Kernel("tile", (out, scratch), (("n", ir.INDEX),), [grid], block_size=288)


def tile_text(*how):
    return Assembler(90).ptx(renderer.render(tile_kernel(*how), renderer.NvptxTarget(90)))


def every_tile():
    for a, b in PAIRS:
        majors = [(True, True)]
        if a.itemsize == 2:
            majors += [(True, False), (False, True), (False, False)]
        for tile in TILES:
            for k_major in majors:
                for accumulates in (False, True):
                    yield a, b, tile, k_major, accumulates


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: "-".join(d.name for d in p))
def test_tiles_follow_the_isa(pair):
    for how in every_tile():
        if how[:2] == pair and how[2] in TILES[1:]:  # columns from 32 to 128
            text = tile_text(*how)
            ptx_rules.check(text)
            assert ptx_rules.wgmma_forms(text)


def products():
    """Operands of the products whose kernels feed wgmma by TMA."""

    def zeros(shape, dtype):
        return nm.asarray(np.zeros(shape, dtype), device="ptx")

    for dtype in ("float16", ml_dtypes.bfloat16, "int8", "float32"):
        for m in (64, 333, 4096):
            x, y = zeros((m, 512), dtype), zeros((2048, 512), dtype)
            kind = {"dtype": nm.int32} if dtype == "int8" else {}
            kind |= {"precision": "tf32"} if dtype == "float32" else {}
            yield nm.matmul(x, y.T, **kind)
    for m in (64, 333, 4096):
        codes = code_matmul(zeros((m, 512), "int8")._node, zeros((2048, 128), "uint32")._node)
        yield wrap(codes)
        f8 = [zeros((n, 512), ml_dtypes.float8_e4m3fn) for n in (m, 2048)]
        scales = [zeros((n, 4), "float32") for n in (m, 16)]
        operands = (f8[0]._node, scales[0]._node, f8[1]._node, scales[1]._node)
        yield wrap(scaled_matmul(operands, dt.bfloat16))


def test_products_follow_the_isa():
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    forms = set()
    with nm.kernels.prefer("native"):
        for x in products():
            nm.eval(x)  # checks what it renders
    for kernel, text in runtime.made:
        if kernel.name == "wgmma_gemm":
            forms |= {form[:2] for form in ptx_rules.wgmma_forms(text)}
    same = {(name, name) for name in ("f16", "bf16", "s8", "tf32", "e4m3")}
    assert forms == same | {("s8", "u8")}


@pytest.mark.parametrize("columns", [256, 512])
def test_blocks_of_a_cluster_share_tiles(columns):
    """Sparse products whose pairs of blocks load halves of B for each other, of either order."""
    runtime = nm.device("ptx").runtime
    w, x = (nm.zeros(s, dtype=nm.float16, device="ptx") for s in ((512, 512), (512, columns)))
    packed = nm.sparse.to_semi_structured(w)
    for right in (x, nm.zeros((columns, 512), dtype=nm.float16, device="ptx").T):
        nm.eval(packed.values, packed.metadata, right)
        runtime.made.clear()
        nm.eval(packed @ right)
        (text,) = [text for kernel, text in runtime.made if kernel.name == "wgmma_sp"]
        assert ".reqnctapercluster 2" in text
        assert "multicast::cluster" in text
        # of both blocks: after each k tile of a group of four, and of what is left of one
        assert text.count("mapa.shared::cluster") == 2 * (4 + 3)
        assert text.count("barrier.cluster.wait") == 2


def test_positions_come_from_both_pairs_of_threads():
    """wgmmas of two k tiles take those of threads 0 and 1 of every four, of the next two those of
    threads 2 and 3; all of a group are complete before the next one's positions are selected."""
    runtime = nm.device("ptx").runtime
    w, x = (nm.zeros((512, 512), dtype=nm.bfloat16, device="ptx") for _ in range(2))
    packed = nm.sparse.to_semi_structured(w)
    nm.eval(packed.values, packed.metadata, x)
    runtime.made.clear()
    nm.eval(packed @ x)
    (text,) = [text for kernel, text in runtime.made if kernel.name == "wgmma_sp"]
    pairs = re.findall(r"wgmma\.mma_async\.sp\S* \{[^}]*\}, \S+ \S+ %r\d+, (\d),", text)
    assert pairs == [*"00001111", *"000011"]  # two of each k tile: of a group, and of a part
    waits = "".join(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", text))
    assert "1110" in waits
    assert waits.count("0") == 1 + 3 + 1  # of a group, of parts of one, and of dense tiles


@pytest.mark.parametrize(
    ("m", "n", "columns"), [(4096, 4096, 256), (2048, 2048, 256), (4096, 256, 128)]
)
def test_tiles_of_sparse_products_fill_whole_waves(m, n, columns):
    target = replace(nm.device("ptx").runtime.target, num_cores=132)
    tile = sparse_wgmma.choose_tile(target, 1, m, n, 4096)
    assert tile.n == columns
    assert tile.stages == {256: 5, 128: 8}[columns]


def test_scales_are_loaded_a_k_tile_ahead():
    """Between the MMAs of a k tile and the wait for them, those of the next are on their way."""
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    codes = nm.asarray(np.zeros((4096, 640), ml_dtypes.float8_e4m3fn), device="ptx")
    scales, blocks = (nm.asarray(np.zeros((n, 5), "float32"), device="ptx") for n in (4096, 32))
    nm.eval(wrap(scaled_matmul((codes._node, scales._node, codes._node, blocks._node), dt.float32)))
    (text,) = [text for kernel, text in runtime.made if kernel.name == "wgmma_gemm"]
    _, _, after = text.partition("wgmma.commit_group")
    meanwhile, _, _ = after.partition("wgmma.wait_group")
    assert meanwhile.count("ld.global") == 3  # of two rows, and of a block of columns


@pytest.mark.parametrize("kind", ["float8", "int8"])
def test_blocks_of_a_cluster_share_float8(kind):
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    n, k = 4096, 768
    if kind == "float8":
        codes = nm.asarray(np.zeros((n, k), ml_dtypes.float8_e4m3fn), device="ptx")
        scales, blocks = (nm.asarray(np.zeros((x, 6), "float32"), device="ptx") for x in (n, 32))
        operands = (codes._node, scales._node, codes._node, blocks._node)
        nm.eval(wrap(scaled_matmul(operands, dt.bfloat16)))
    else:
        a = nm.zeros((n, k), dtype=nm.int8, device="ptx")
        words = nm.zeros((n, k // 4), dtype=nm.uint32, device="ptx")
        nm.eval(a, words)
        nm.eval(wrap(code_matmul(a._node, words._node)))
    (text,) = [text for kernel, text in runtime.made if kernel.name == "wgmma_gemm"]
    assert (".reqnctapercluster 2" in text) == (kind == "float8")
    assert ("multicast::cluster" in text) == (kind == "float8")


@pytest.mark.parametrize(
    "line",
    [
        "m64n40k32.s32.s8.s8 {%s}, a, b, 1;",  # no such width
        "m64n32k16.s32.s8.s8 {%s}, a, b, 1;",  # 32 bytes along k
        "m64n32k32.s32.s8.s8 {%s}, a, b, 1, 1, 1;",  # integers have no signs
        "m64n32k32.s32.s8.u8 {%s}, a, b, 1;",  # of a later version
        "m64n32k32.f32.e4m3.e4m3 {%s}, a, b, 1, 1, 1, 0, 1;",  # bytes are K-major
        "m64n32k8.f32.tf32.bf16 {%s}, a, b, 1, 1, 1;",
    ],
)
def test_broken_rules_are_found(line):
    columns = int(line.split("n")[1].split("k")[0])
    line = line % ", ".join(f"c{i}" for i in range(columns // 2))
    text = f".version 8.0\n.target sm_90a\n wgmma.mma_async.sync.aligned.{line}"
    with pytest.raises(AssertionError):
        ptx_rules.check(text)


@pytest.mark.slow
def test_an_assembler_takes_every_tile(tmp_path):
    assembler = shutil.which("ptxas")
    if assembler is None:
        pytest.skip("there is no ptxas")
    for number, how in enumerate(every_tile()):
        path = tmp_path / f"{number}.ptx"
        path.write_text(tile_text(*how))
        subprocess.run([assembler, "-arch=sm_90a", path, "-o", tmp_path / "out"], check=True)


def test_warpgroups_multiply_scaled_tiles_in_turns():
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    shape = (4096, 512)
    codes = nm.asarray(np.zeros(shape, ml_dtypes.float8_e4m3fn), device="ptx")
    scales, blocks = (nm.asarray(np.zeros((n, 4), "float32"), device="ptx") for n in (4096, 32))
    operands = (codes._node, scales._node, codes._node, blocks._node)
    nm.eval(wrap(scaled_matmul(operands, dt.float16)))
    (text,) = [text for kernel, text in runtime.made if kernel.name == "wgmma_gemm"]
    (turn,) = re.findall(r"@first bar\.sync 3, 256; .*@!first bar\.arrive 3, 256;", text)
    assert "@!first bar.sync 4, 256;" in turn
    assert turn.count("wgmma.mma_async") == 4  # of one K-tile, and no wait for them
    assert "wait_group" not in turn
    assert re.search(r"bar\.arrive\s+3, 256;", text)  # the first turn
