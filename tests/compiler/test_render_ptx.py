"""Kernels for NVIDIA GPUs, as far as they can be made without one: IR to LLVM IR to PTX."""

import re

import numpy as np
import pytest
import test_snapshots

import numus as nm
from numus import dtypes as dt
from numus.compiler.program import clear_plans
from numus.compiler.render import ptx
from numus.runtime import devices
from numus.runtime.contract import Facts
from numus.runtime.cuda.assembler import Assembler
from numus.runtime.null import NullProgram, NullRuntime

FACTS = Facts(
    name="cuda",
    description="an H100, as far as schedules care",
    dtypes=frozenset(d.name for d in dt.ALL),
    lanes_bytes=128,
    vector_registers=64,
    cache_l1=227 << 10,
    cache_l2=50 << 20,
    parallel_units=132,
    renderer="ptx",
    features=frozenset({"sm_90", "tiles", "ordered", "shuffles"}),
    group=256,
    group_memory=227 << 10,
)


class PtxRuntime(NullRuntime):
    """Runs nothing, but makes the PTX of every kernel."""

    def __init__(self, capability=90):
        super().__init__()
        self.facts = FACTS
        self.assembler = Assembler(capability)
        self.target = ptx.Target(capability)
        self.made = []

    def compile(self, kernel):
        known = kernel.text() in self._programs
        program = super().compile(kernel)
        if not known:
            self.made.append((kernel, self.assembler.ptx(ptx.render(kernel, self.target))))
        assert isinstance(program, NullProgram)
        return program


devices.STARTS.setdefault("ptx", lambda index: PtxRuntime())


@pytest.fixture
def machine():
    runtime = nm.device("ptx").runtime
    runtime.made.clear()
    runtime._programs.clear()
    clear_plans()
    return runtime


@pytest.mark.parametrize("name", test_snapshots.GRAPHS)
def test_graphs_become_ptx(name, machine, monkeypatch):
    monkeypatch.setattr(test_snapshots, "NULL", nm.device("ptx"))
    nm.eval(test_snapshots.GRAPHS[name]())
    assert machine.made
    for kernel, text in machine.made:
        assert f".reqntid {ptx.threads(kernel)}" in text
        assert re.search(r"\.entry kernel\(", text)
        assert "local" not in text, "registers are in memory"


def made(machine, function, *shape, dtype="float32"):
    nm.eval(function(nm.asarray(np.zeros(shape, dtype), device="ptx")))
    return [text for _, text in machine.made]


def test_threads_load_and_store_vectors(machine):
    (text,) = made(machine, lambda x: x * 2 + 1, 1 << 16)
    assert text.count("ld.global.nc.v4") == 5  # four at a time, and one
    assert text.count("st.global.v4") == 5
    (text,) = made(machine, lambda x: x * 2 + 1, 1 << 16, dtype="float64")[1:]
    assert "ld.global.nc.v2.b64" in text


def test_arithmetic_is_not_contracted(machine):
    (text,) = made(machine, lambda x: x * x + x, 1 << 16)
    assert "mul.rn.f32" in text
    assert "add.rn.f32" in text
    assert "fma" not in text


def test_threads_exchange_what_they_reduce(machine):
    (text,) = made(machine, lambda x: x.max(axis=-1), 4096, 4096)
    assert "shfl.sync.bfly" in text
    assert "bar.sync" in text
    (text,) = made(machine, lambda x: nm.argmax(x, axis=-1), 4096, 64)[1:]
    assert "shfl.sync.bfly" in text
    assert "bar.sync" not in text  # one warp needs none


def test_products_of_halves_use_tiles(machine):
    x = nm.asarray(np.zeros((300, 256), "float16"), device="ptx")
    nm.eval(nm.relu(x @ x.T + 1))
    (text,) = [text for kernel, text in machine.made if kernel.name == "tile_contraction"]
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16" in text
    assert "cp.async.cg.shared.global" in text
    machine.made.clear()
    x = nm.asarray(np.zeros((300, 256), "float32"), device="ptx")
    nm.eval(x @ x.T)
    (text,) = [text for kernel, text in machine.made if kernel.name == "contraction"]
    assert "wgmma" not in text
    assert "fma.rn.f32" in text


@pytest.mark.parametrize("size", [33, 64, 128, 256])
def test_attention_of_halves_uses_tiles(machine, size):
    q, k, v = (nm.asarray(np.zeros((2, 500, size), "float16"), device="ptx") for _ in range(3))
    for x in (q, k, v):
        x.requires_grad = True
    nm.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    nm.eval([x.grad for x in (q, k, v)])
    texts = [text for kernel, text in machine.made if kernel.name.startswith("tile_attention")]
    assert len(texts) == (4 if size > 128 else 3)
    for text in texts:
        assert "wgmma.mma_async.sync.aligned" in text
        assert "cvt.rn.f16x2.f32" in text  # weights go from sums to operands in registers
        assert "ex2.approx.ftz.f32" in text
        copies = text.count("cp.async.cg.shared.global")
        assert copies > 8 if size != 33 else copies <= 4  # rows of 33 are not aligned
        assert "local" not in text, "registers are in memory"


def test_old_and_new_devices():
    for capability in (70, 75, 80, 86, 89, 90, 100, 120, 199):
        assembler = Assembler(capability)
        machine = PtxRuntime(capability)
        devices.STARTS[f"ptx{capability}"] = lambda index, machine=machine: machine
        x = nm.asarray(np.zeros((300, 40), "float32"), device=f"ptx{capability}")
        nm.eval(nm.softmax(x).astype(nm.bfloat16))
        assert all(assembler.cpu in text for _, text in machine.made)
