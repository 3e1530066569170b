"""Rendering for NVIDIA GPUs, without one: kernel IR to LLVM IR to PTX."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import ptx_rules
import pytest
import test_snapshots

import numus as nm
from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.divergence import is_computable
from numus.codegen.nvptx import renderer
from numus.codegen.nvptx.assembler import Assembler
from numus.compiler.plan import clear_plans
from numus.evaluation.evaluate import evaluate
from numus.ir import kernel_text
from numus.kernels.matmul.gpu import wgmma as wgmma_kernel
from numus.primitives.linalg import factor
from numus.runtime import devices
from numus.runtime.cuda.properties import capability_fields
from numus.runtime.null import NullProgram, NullRuntime
from numus.target import Target

TARGET = Target(
    name="cuda",
    description="an H100, as far as schedules care",
    dtypes=frozenset(d.name for d in dt.ALL),
    vector_bytes=128,
    vector_registers=64,
    l1_bytes=227 << 10,
    l2_bytes=50 << 20,
    num_cores=132,
    language="ptx",
    block_size=256,
    shared_bytes=227 << 10,
    **capability_fields(90),
)


class PtxRuntime(NullRuntime):
    """Compiles every kernel to PTX and runs nothing."""

    def __init__(self, capability=90):
        super().__init__()
        self.target = TARGET
        self.assembler = Assembler(capability)
        self.nvptx = renderer.NvptxTarget(capability)
        self.made = []

    def compile(self, kernel):
        known = kernel_text(kernel) in self._programs
        program = super().compile(kernel)
        if not known:
            text = self.assembler.ptx(renderer.render(kernel, self.nvptx))
            ptx_rules.check(text)
            self.made.append((kernel, text))
        assert isinstance(program, NullProgram)
        return program


devices.BACKENDS.setdefault("ptx", lambda index: PtxRuntime())


@pytest.fixture
def machine():
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    runtime._programs.clear()
    clear_plans()
    with nm.kernels.prefer("native"):  # a vendor's library may be here
        yield runtime


@pytest.mark.parametrize("name", test_snapshots.GRAPHS)
def test_graphs_become_ptx(name, machine, monkeypatch):
    monkeypatch.setattr(test_snapshots, "NULL", nm.device("ptx"))
    nm.eval(test_snapshots.GRAPHS[name]())
    assert machine.made
    for kernel, text in machine.made:
        assert f".reqntid {renderer.cta_threads(kernel)}" in text
        assert re.search(r"\.entry kernel\(", text)
        assert "local" not in text, "registers are in memory"


def made(machine, function, *shape, dtype="float32"):
    nm.eval(function(nm.asarray(np.zeros(shape, dtype), device="ptx")))
    return [text for _, text in machine.made]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_factorisations_become_ptx(machine, dtype):
    a = nm.asarray(np.zeros((2, 5, 4), dtype), device="ptx")._node
    square = nm.asarray(np.zeros((2, 5, 5), dtype), device="ptx")._node
    made = [factor.lu(a), factor.householder(a), factor.orthogonalize(a, 4)]
    made += [factor.cholesky(square), factor.solve_lower(square, a)]
    names = {x.prim.name for x in made} - {"lu"} | {"lu_panel", "lu_rows", "lu_update"}
    for x in made:  # one by one: together they share launches
        evaluate([x])
    assert {kernel.name for kernel, _ in machine.made} == names
    without = {k.name for k, text in machine.made if not re.search(r"\bbar(rier)?\.sync", text)}
    assert without == {"lu_rows", "orthogonalize"}  # threads of the one work alone, of two, warps


@pytest.mark.parametrize(
    ("width", "total", "dtype"),
    [(32, 32, "float32"), (32, 64, "float32"), (32, 32, "float64"), (32, 32, "complex64")],
)
def test_rotations_are_in_registers_of_warps(machine, width, total, dtype):
    a = nm.asarray(np.zeros((5, width, total), dtype), device="ptx")._node
    evaluate([factor.orthogonalize(a, width)])
    ((kernel, text),) = machine.made
    assert kernel.packed_blocks > 1
    assert "local" not in text
    assert "shared" not in text
    _, step = text.split("redux.sync.max.s32")[0].rsplit("$L__", 1)
    element, part = (np.dtype(dtype).type(0), np.dtype(dtype).type(0).real)
    words = width * element.itemsize + 2 * part.itemsize  # a row, its squared norm and its root
    assert step.count("shfl.sync.bfly") == words // 4


def test_threads_load_and_store_vectors(machine):
    (text,) = made(machine, lambda x: x * 2 + 1, 1 << 16)
    assert text.count("ld.global.v4") == 1
    assert text.count("st.global.v4") == 1
    text = made(machine, lambda x: x.sum(), 1 << 16)[1]
    assert text.count("ld.global.v4") == 5  # four at a time, and one
    text = made(machine, lambda x: x * 2 + 1, 1 << 16, dtype="float64")[-1]
    assert "ld.global.v2.b64" in text


def test_random_bit_adds_are_opaque_to_llvm(machine):
    """It compared their sums, each with all before it, and took a second for this kernel."""
    nm.eval(nm.random.bits((1 << 16,), key=nm.random.key(0, device="ptx")))
    text = max((text for _, text in machine.made), key=len)
    assert text.count("begin inline asm") >= 20  # a sum in each of the rounds
    assert text.count("shf.l.wrap") >= 20  # what LLVM is to see of them


def test_arithmetic_is_not_contracted(machine):
    (text,) = made(machine, lambda x: x * x + x, 1 << 16)
    assert "mul.rn.f32" in text
    assert "add.rn.f32" in text
    assert "fma" not in text


def test_block_reduction_uses_shuffles(machine):
    (text,) = made(machine, lambda x: x.max(axis=-1), 4096, 4096)
    assert "shfl.sync.bfly" in text
    assert "bar.sync" in text
    (text,) = made(machine, lambda x: nm.argmax(x, axis=-1), 4096, 64)[1:]
    assert "shfl.sync.bfly" in text
    assert "bar.sync" not in text  # one warp needs none


def matmul_text(device, dtype, name, precision=None, wide=None):
    """The PTX of the kernel of this name, of a matmul."""
    runtime = nm.device(device).runtime
    runtime.made.clear()
    clear_plans()
    x = nm.asarray(np.zeros((300, 256), dtype), device=device)
    with nm.kernels.prefer("native"):
        nm.eval(nm.relu(nm.matmul(x, x.T, precision=precision, dtype=wide)))
    (text,) = [text for kernel, text in runtime.made if kernel.name == name]
    assert "local" not in text, "registers are in memory"
    return text


TILES = {
    ("float16", None): "m64n32k16.f32.f16.f16",
    (ml_dtypes.bfloat16, None): "m64n32k16.f32.bf16.bf16",
    ("int8", "int32"): "m64n32k32.s32.s8.s8",
    ("uint8", "int32"): "m64n32k32.s32.u8.u8",
    (ml_dtypes.float8_e4m3fn, "float32"): "m64n32k32.f32.e4m3.e4m3",
    (ml_dtypes.float8_e5m2, "float32"): "m64n32k32.f32.e5m2.e5m2",
}


@pytest.mark.parametrize(("dtype", "wide"), TILES)
def test_matmul_uses_wgmma_and_tma(machine, dtype, wide):
    text = matmul_text("ptx", dtype, "wgmma_gemm", wide=wide)
    assert f"wgmma.mma_async.sync.aligned.{TILES[dtype, wide]}" in text
    assert "cp.async.bulk.tensor.3d.shared::cluster.global" in text
    assert "fence.proxy.async" in text  # before what threads have filled themselves is multiplied


def test_persistent_gemm_takes_registers_of_the_producer(machine):
    x = nm.asarray(np.zeros((4096, 512), ml_dtypes.bfloat16), device="ptx")
    with nm.kernels.prefer("native"):
        nm.eval(x @ x.T)
    ((kernel, text),) = machine.made
    assert kernel.persistent
    assert kernel.block_size == 384
    assert "setmaxnreg.inc.sync.aligned.u32 240" in text
    assert "setmaxnreg.dec.sync.aligned.u32 24" in text
    assert "local" not in text
    whole = text[: text.index("st.global.b16")]  # before the stores of partial tiles
    assert whole.count("st.global.v4") == 16
    assert text.count("wgmma.mma_async") == 2 * 4  # K-tiles by TMA, and filled by threads


SIZES = {  # batch, m, n, k: tile and split-K
    (1, 8192, 8192, 8192): ((128, 256), 1),
    (1, 1024, 1024, 1024): ((128, 64), 1),
    (1, 512, 512, 512): ((64, 64), 1),
    (1, 64, 8192, 8192): ((64, 64), 1),
    (1, 128, 256, 16384): ((64, 64), 16),
    (64, 512, 512, 512): ((128, 256), 1),
}


@pytest.mark.parametrize("size", SIZES)
def test_wgmma_tile_and_split_k(size):
    *shape, k = size
    tiles, split_k = wgmma_kernel.choose_tile(TARGET, dt.bfloat16, tuple(shape), k, persistent=True)
    assert ((tiles.m, tiles.n), split_k) == SIZES[size]
    assert wgmma_kernel.choose_tile(TARGET, dt.bfloat16, tuple(shape), k)[0].m == 128


@pytest.mark.parametrize(("shape", "last"), [((512, 512), "mma_sync"), ((8, 512, 512), "wgmma")])
def test_tf32_operands_are_repacked_k_major(machine, shape, last):
    x = nm.asarray(np.zeros(shape, "float32"), device="ptx")
    nm.eval(nm.matmul(x, x, precision="tf32"))
    names = [kernel.name for kernel, _ in machine.made]
    assert f"{last}_gemm" in names
    assert ("pack" in names) == (last == "wgmma")


def test_activations_are_rounded_to_int8_in_the_pass_over_their_rows(machine):
    x, w = (nm.asarray(np.zeros((512, 512), "float32"), device="ptx") for _ in "xw")
    q = nm.quant.quantize(w, "int8-row")
    nm.eval(q)
    machine.made.clear()
    nm.eval(nm.quant.matmul(x.astype("bfloat16"), q.T, activations="int8"))
    names = {kernel.name for kernel, _ in machine.made}
    assert names == {"register_row_reduction", "wgmma_gemm"}
    (text,) = [text for kernel, text in machine.made if kernel.name == "wgmma_gemm"]
    assert ".s32.s8.u8 " in text


def test_conversions_saturate_by_themselves(machine):
    x = nm.asarray(np.ones((64, 1024), np.float32), device="ptx")
    nm.eval(nm.round(x).astype(nm.int32), x.astype(nm.uint32), x.astype(nm.float8_e4m3fn))
    text = "".join(ptx for _, ptx in machine.made)
    assert "cvt.rni.s32.f32" in text  # one instruction rounds and converts
    assert "cvt.rni.f32.f32" not in text
    assert "cvt.rzi.u32.f32" in text
    assert "cvt.rn.satfinite.e4m3x2.f32" in text


def test_repacking_loads_before_it_stores(machine):
    x = nm.asarray(np.zeros((1024, 1024), "float32"), device="ptx")
    nm.eval(nm.matmul(x, x, precision="tf32"))
    (text,) = [text for kernel, text in machine.made if kernel.name == "pack"]
    first = text[: text.index("st.shared")]
    assert first.count("ld.global") == 16


def test_float32_matmul_is_exact_by_default(machine):
    text = matmul_text("ptx", "float32", "simt_async_gemm")
    assert "wgmma" not in text
    assert "mma.sync" not in text
    assert "fma.rn.f32" in text
    assert "cp.async" in text
    text = matmul_text("ptx", "float32", "wgmma_gemm", precision="tf32")
    assert "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32" in text


def skinny_text(dtype, left, right, name, transposed=False):
    """The PTX of the kernel of this name, of matrices of these shapes."""
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    clear_plans()
    a, b = (nm.asarray(np.zeros(s, dtype), device="ptx") for s in (left, right))
    with nm.kernels.prefer("native"):
        nm.eval(a @ (b.T if transposed else b))
    (text,) = [text for kernel, text in runtime.made if kernel.name == name]
    assert "local" not in text, "registers are in memory"
    return text


def test_memory_bound_matmuls_use_vector_accesses(machine):
    text = skinny_text("float32", (8, 4096), (4096, 4096), "gemv")
    assert text.count("ld.global.v4.b32") == 13  # 4 steps of each, and one of the matrix alone
    text = skinny_text(
        ml_dtypes.bfloat16, (8, 4096), (4096, 4096), "gemv_mma_sync", transposed=True
    )
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    assert text.count("ld.global.v4.b32") == 10  # 4 at a time and one, of both
    text = skinny_text(ml_dtypes.bfloat16, (4096, 8), (8, 4096), "small_k_gemm")
    assert text.count("st.global.v4.b32") == 8
    assert text.count("ld.global.v4.b32") == 12  # all columns of a thread, 4 rows


OLDER = {
    (75, "float16", None): "m16n8k8.row.col.f32.f16.f16.f32",
    (80, "float16", None): "m16n8k16.row.col.f32.f16.f16.f32",
    (80, ml_dtypes.bfloat16, None): "m16n8k16.row.col.f32.bf16.bf16.f32",
    (80, "float32", "tf32"): "m16n8k8.row.col.f32.tf32.tf32.f32",
    (80, "float64", None): "m8n8k4.row.col.f64.f64.f64.f64",
    (90, "float64", None): "m16n8k8.row.col.f64.f64.f64.f64",
}


@pytest.mark.parametrize(("capability", "dtype", "precision"), OLDER)
def test_older_devices_use_mma_sync(capability, dtype, precision):
    older = PtxRuntime(capability)
    older.target = dataclasses.replace(TARGET, **capability_fields(capability))
    devices.BACKENDS.setdefault(f"units{capability}", lambda index: older)
    text = matmul_text(f"units{capability}", dtype, "mma_sync_gemm", precision)
    assert f"mma.sync.aligned.{OLDER[capability, dtype, precision]}" in text
    assert ("cp.async" in text) == (capability >= 80)


@pytest.mark.parametrize(
    "size", [33, 64, *(pytest.param(n, marks=pytest.mark.slow) for n in (128, 256))]
)
def test_half_precision_attention_uses_wgmma(machine, size):
    q, k, v = (nm.asarray(np.zeros((2, 500, size), "float16"), device="ptx") for _ in range(3))
    for x in (q, k, v):
        x.requires_grad = True
    nm.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    nm.eval([x.grad for x in (q, k, v)])
    texts = [text for kernel, text in machine.made if kernel.name.startswith("attention_wgmma")]
    assert len(texts) == (4 if size > 128 else 3)
    for text in texts:
        # ptxas serialises wgmmas of a function that calls others, as code for linking does
        assert not re.search(r"\b(div\.rn|sqrt\.rn|(div|rem)\.[su]64)", text)
        assert "wgmma.mma_async.sync.aligned" in text
        assert "cvt.rn.f16x2.f32" in text  # weights go from sums to operands in registers
        assert "ex2.approx.ftz.f32" in text
        copies = text.count("cp.async.cg.shared.global")
        assert copies > 8 if size != 33 else copies <= 4  # rows of 33 are not aligned
        assert "local" not in text, "registers are in memory"


@pytest.mark.slow
def test_all_gradients_of_attention_are_one_pass_by_roles(machine):
    """Of long sequences of large heads."""
    q, k, v, g = (nm.asarray(np.zeros((64, 1100, 128), "float16"), device="ptx") for _ in range(4))
    _, pull = nm.vjp(lambda *x: nm.scaled_dot_product_attention(*x, is_causal=True), q, k, v)
    nm.eval(pull(g))
    texts = {kernel.name: text for kernel, text in machine.made}
    text = texts["attention_wgmma_grad"]
    assert "setmaxnreg.inc.sync.aligned.u32 240" in text
    assert text.count("wgmma.mma_async.sync.aligned") > 30
    assert "red.global.add.f32" in text
    assert "ld.acquire.gpu.global.u32" in text
    assert "local" not in text, "registers are in memory"
    assert "attention_round_dq" in texts


def test_words_of_16_bit_vectors_are_not_taken_apart_where_they_are_loaded(machine):
    """Threads would wait there for the vectors of their next iteration."""
    q, k, v = (
        nm.asarray(np.zeros((8, n, size), "float16"), device="ptx")
        for n, size in ((2, 64), (300, 64), (300, 64))
    )
    nm.eval(nm.scaled_dot_product_attention(q, k, v))
    text = next(t for kernel, t in machine.made if kernel.name == "attention_split_keys")
    assert "ld.global.v4.b32" in text
    assert "mma.sync.aligned.m16n8k16" in text
    assert "mov.b32 \t{%rs" not in text


def test_half_precision_convolutions_use_wgmma_and_tma(machine):
    x, w = (nm.ones(s, dtype="bfloat16", device="ptx") for s in ((8, 128, 28, 28), (64, 128, 3, 3)))
    w.requires_grad = True
    y = nm.conv2d(x, w, padding=1, stride=2)
    y.backward(nm.ones_like(y))
    nm.eval(y, w.grad)
    nm.eval(nm.conv2d(x, nm.ones((64, 64, 3, 3), dtype="bfloat16", device="ptx"), groups=2))
    texts = {kernel.name: text for kernel, text in machine.made if "gemm" in kernel.name}
    assert set(texts) == {"padded_gemm_conv_wgmma", "im2col_gemm"}
    assert "cp.async.bulk.tensor.4d.shared::cluster.global.im2col" in texts["im2col_gemm"]
    for text in texts.values():
        assert "cp.async.bulk.tensor.3d" in text
        assert "wgmma.mma_async" in text
        assert "local" not in text


def test_dependent_launch_has_no_invariant_loads(machine):
    """The driver's assembler moves loads of constants (`ld.global.nc`) before the wait."""
    nm.eval(nm.softmax(nm.asarray(np.zeros((64, 64), "float32"), device="ptx"), axis=-1))
    ((kernel, text),) = machine.made
    assert "griddepcontrol.wait" in text
    assert "ld.global.nc" not in text
    older = Assembler(80).ptx(renderer.render(kernel, renderer.NvptxTarget(80)))
    assert "griddepcontrol" not in older
    assert "ld.global.nc" in older


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_nothing_uses_early_loads_before_the_wait(machine, dtype):
    """An instruction that takes a loaded word, if only to join its halves, waits for memory."""
    x, w = (nm.zeros(s, dtype=dtype, device="ptx") for s in ((1, 2048), (2048, 2048)))
    nm.eval(x, w)
    machine.made.clear()
    nm.eval(nm.jit(lambda x, w: x @ w.T)(x, w))
    ((_, text),) = machine.made
    ahead = text[: text.index("griddepcontrol.wait")]
    loads = re.findall(r"ld\.global\.v4\.\w+\s*\{(.*?)\}", ahead)
    assert len(loads) >= 4
    for name in ", ".join(loads).split(", "):
        assert len(re.findall(rf"{name}\b", ahead)) == 1, name


def test_old_and_new_devices():
    for capability in (70, 75, 80, 86, 89, 90, 100, 120, 199):
        assembler = Assembler(capability)
        machine = PtxRuntime(capability)
        devices.BACKENDS[f"ptx{capability}"] = lambda index, machine=machine: machine
        x = nm.asarray(np.zeros((300, 40), "float32"), device=f"ptx{capability}")
        nm.eval(nm.softmax(x).astype(nm.bfloat16))
        assert all(assembler.cpu in text for _, text in machine.made)


def test_softmax_of_pipelined_attention_overlaps_products(machine):
    """Between the wait for the scores of a block and that for the products of the last one."""
    q = nm.zeros((2, 500, 64), dtype="bfloat16", device="ptx")
    nm.eval(nm.scaled_dot_product_attention(q, q, q))
    (text,) = [text for kernel, text in machine.made if kernel.name == "attention_wgmma"]
    softmax = text[text.index("wgmma.wait_group.sync.aligned 1") :]
    softmax = softmax[: softmax.index("wgmma.wait_group.sync.aligned 0")]
    assert softmax.count("ex2.approx.ftz.f32") >= 48
    assert "mbarrier.try_wait" in softmax  # ptxas moves no wait across it


def test_static_shared_tiles_are_aligned(machine):
    """Their runs are exchanged by the number of their row: that is told from the address."""
    q = nm.zeros((2, 40, 16), dtype="bfloat16", device="ptx")
    k = nm.zeros((2, 30, 16), dtype="bfloat16", device="ptx")
    nm.eval(nm.scaled_dot_product_attention(q, k, k))
    (text,) = [text for kernel, text in machine.made if kernel.name == "attention_wgmma"]
    shared = re.findall(r"\.shared \.align (\d+) \.b8 \w+\[(\d+)\]", text)
    assert len(shared) == 4
    assert all(align == "1024" for align, size in shared if int(size) % 1024 == 0)


def test_broadcast_batches_are_not_copied(machine):
    """Two batch axes that share operands have no common stride: they are read in place, unless
    matrices are so large that repacking them is cheap."""

    def kernels(n):
        x, y = nm.ones((4, 1, n, 64), device="ptx"), nm.ones((2, 64, n), device="ptx")
        x, y = x.astype(nm.bfloat16), y.astype(nm.bfloat16)
        nm.eval(x, y)
        machine.made.clear()
        nm.eval(x @ y)
        return [kernel.name for kernel, _ in machine.made]

    assert kernels(256) == ["mma_sync_gemm"]
    assert kernels(1024)[-1] == "wgmma_gemm"


def test_large_parameters_need_a_later_ptx_version():
    def version(capability, count, kind="i64"):
        parameters = ", ".join(f"{kind} %p{i}" for i in range(count))
        text = f"define ptx_kernel void @kernel({parameters}) {{ ret void }}"
        return float(Assembler(capability).ptx(text).split(".version ")[1].split()[0])

    for capability in (70, 75, 89, 90, 110):
        assert version(capability, 544) < 8.1 == version(capability, 545)
        assert version(capability, 40, "ptr byval([128 x i8]) align 64") == 8.1
    assert version(120, 3) == version(120, 545) > 8.1


def test_concat_of_many_arrays_shares_kernels(machine):
    """Not by one that has a branch, and parameters, for each of them."""
    xs = [nm.asarray(np.zeros((4, 37), "float32"), device="ptx") for _ in range(200)]
    for join in (nm.stack, nm.concat, lambda xs: nm.concat(xs, axis=1)):
        machine.made.clear()
        nm.eval(join(xs))
        assert len(machine.made) <= 5
        assert all(len(kernel.buffers) <= 40 for kernel, _ in machine.made)


def test_indices_of_shared_operands_are_walked_once():
    index = ir.var("i")
    for _ in range(80):  # 2**80 paths
        index = ir.make("mul", index.dtype, (index, index))
    assert is_computable(index, (), ir.var("i"))
    assert not is_computable(index, ())


def test_values_of_stencils_are_evicted_first(machine):
    """They are read once, and other vectors stay in L2."""
    n = 5000
    a = nm.sparse.diags([4.0, 1.0, 1.0], [0, 1, -1], (n, n), format="csr").to("ptx")
    nm.eval(a @ nm.asarray(np.ones(n, "float32"), device="ptx"))
    ((kernel, text),) = [made for made in machine.made if made[0].name == "csr_matmul"]
    assert "templates of rows" in kernel.notes
    assert "ld.global.L1::no_allocate.L2::cache_hint.b32" in text
    older = Assembler(75).ptx(renderer.render(kernel, renderer.NvptxTarget(75)))
    assert "L2::cache_hint" not in older
