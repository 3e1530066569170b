"""Products with packed codes that come through a ring in shared memory: the kernel, interpreted."""

import dataclasses

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.codegen.nvptx import assembler, renderer
from numus.functions._base import wrap
from numus.ir.early_loads import buffers_before_wait
from numus.kernels.matmul.gpu.packed.ring_tile import TUNING, choose_tile
from numus.kernels.matmul.packed import Packing
from numus.primitives.quantized.packed import packed_gemv
from numus.quant.products import packing_of
from numus.runtime import devices

FEW = dataclasses.replace(simt_machine.HOPPER, name="simt_few", num_cores=1)
devices.BACKENDS["simt_few"] = lambda index: simt_machine.Machine(FEW)
rng = np.random.default_rng(7)


def operands(format, rows, columns, vectors, dtype):
    w = nm.asarray(rng.standard_normal((rows, columns), dtype=np.float32))
    x = nm.asarray(rng.standard_normal((vectors, columns), dtype=np.float32)).astype(dtype)
    q = nm.quant.quantize(w, format)
    wanted = x.astype(nm.float32).numpy().astype(float) @ q.dequantize().numpy().T.astype(float)
    return x.to("simt_few"), q.to("simt_few"), wanted


def check(y, wanted):
    """Returns the kernel."""
    runtime = nm.device("simt_few").runtime
    runtime.launched.clear()
    found = y.astype("float32").numpy()
    (kernel,) = (p.kernel for p in runtime.launched if p.name.startswith("packed"))
    assert kernel.name == "packed_gemv_ring"
    bound = {"float16": 1e-3, "bfloat16": 8e-3}[y.dtype.name]
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()
    return kernel


@pytest.mark.parametrize(
    ("format", "rows", "columns", "vectors", "dtype", "splits"),
    [
        ("int4-g128", 260, 2048, 2, "bfloat16", 1),
        ("uint4-g128", 250, 2176, 5, "float16", 1),  # steps and rows past the end
        ("int4-g128", 137, 4096, 16, "bfloat16", 2),
        ("uint4-g128", 137, 3968, 13, "bfloat16", 2),  # scales by two, zero points one by one
        ("int4-g128", 200, 2048, 37, "bfloat16", 1),  # blocks of 16 vectors
        ("uint4-g256", 260, 2304, 3, "float16", 1),  # a group of which a step is past the end
        ("int4-g256", 137, 4096, 11, "bfloat16", 2),
        ("int4-row", 270, 2048, 8, "float16", 1),
        ("int4-tensor", 270, 2048, 8, "bfloat16", 1),
    ],
)
def test_values(format, rows, columns, vectors, dtype, splits):
    x, q, wanted = operands(format, rows, columns, vectors, dtype)
    kernel = check(nm.relu(x @ q.T), np.maximum(wanted, 0))
    assert kernel.cluster_blocks == splits
    stores = [s for s in ir.statements(kernel.body) if isinstance(s, ir.ClusterStore)]
    assert bool(stores) == (splits > 1)


@pytest.mark.parametrize(("columns", "vectors"), [(2048, 3), (4096, 16)])
@pytest.mark.parametrize("part", [None, "codes", "scales", "zeros", "x"])
def test_misaligned_memory(part, columns, vectors):
    x, q, wanted = operands("uint4-g128", 250, columns, vectors, "bfloat16")
    p, parts = packing_of(q), dict(zip(("codes", "scales", "zeros"), q.parts, strict=True))
    parts["codes"] = parts["codes"].reshape(1, 250, -1)
    parts["x"] = x.reshape(1, *x.shape)
    if part is not None:
        whole = parts[part]
        flat = nm.concat([nm.zeros(1, dtype=whole.dtype, device="simt_few"), whole.reshape(-1)])
        nm.eval(flat)
        parts[part] = nm.from_dlpack(flat[1:]).reshape(whole.shape)
    nodes = {name: t._node for name, t in parts.items()}
    given = tuple(nodes[name] for name in ("codes", "scales", "zeros"))
    check(wrap(packed_gemv(nodes["x"], given, p)), wanted)


def test_codes_and_scales_come_ahead_of_earlier_kernels():
    """Launches must know all that may not be written meanwhile."""
    x, q, wanted = operands("int4-g128", 137, 4096, 16, "bfloat16")
    kernel = check(x @ q.T, wanted)
    early = buffers_before_wait(kernel)
    assert {b.dtype for b in early} == {nm.uint32, nm.float16}
    assert len(early) == 2


def test_ptx():
    x, q, wanted = operands("int4-g128", 137, 4096, 16, "bfloat16")
    kernel = check(x @ q.T, wanted)
    text = assembler.Assembler(90).ptx(renderer.render(kernel, renderer.NvptxTarget(90)))
    ahead, after = text.split("griddepcontrol.wait")
    assert "cp.async.cg.shared.global" in ahead
    assert "st.shared::cluster" in after
    assert "mma.sync" in after


def test_tiles():
    """Sizes whose SMs would idle, or whose vectors take too many registers, have none."""
    p = Packing(4, 16, 8)
    found = choose_tile(132, 14336, 16, 512, p, 8)
    assert (found.vectors, found.splits, found.blocks) == (2, 2, 256)
    assert choose_tile(132, 14336, 1, 512, p, 8) is None
    assert choose_tile(132, 1024, 16, 512, p, 8) is None
    assert choose_tile(132, 14336, 16, 1 << 14, p, 8) is None
    assert choose_tile(132, 14336, 16, 512, Packing(4, 4, 8), 8) is None  # groups of 32
    for rows in (5000, 11008, 14336, 32000, 128256):
        for vectors in (2, 8, 16, 37, 64):
            for chunks in (256, 512, 1376, 1792):
                own = choose_tile(132, rows, vectors, chunks, p, 8)
                if own is not None:
                    assert own.span * own.splits >= chunks
                    assert own.block_rows * own.row_blocks >= rows
                    assert own.vectors * own.vector_blocks * 8 >= vectors
                    words = own.stages * own.tile_rows * own.span
                    assert 4 * words <= TUNING.shared_bytes
