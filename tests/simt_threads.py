"""Rendered GPU kernels on host threads: LLVM IR compiled for the host, one thread per GPU thread.

NVVM intrinsics (thread indices, shuffles, barriers) are calls to this module. CTAs run one after
the other; those of a cluster together, each by its own copy of the code and its shared memory.
Kernels with scratch memory are interpreted by `simt_machine`, unless a test asks for them: they
take many barriers.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import simt_machine

from numus.codegen.nvptx import renderer
from numus.ir import kernel_text

BARRIER_TIMEOUT = 120  # seconds
_me = threading.local()
_INT, _FLOAT, _DOUBLE = ctypes.c_int32, ctypes.c_float, ctypes.c_double
_SHARED = re.compile(r"^@shared\d+ = internal", re.MULTILINE)


class _Cluster:
    """Split arrive/wait barrier and distributed shared memory of a cluster's CTAs."""

    def __init__(self, threads: int) -> None:
        self.blocks: list[_Cta] = []
        self.threads, self.arrived, self.condition = threads, 0, threading.Condition()

    def arrive(self) -> None:
        with self.condition:
            _me.arrivals += 1
            assert self.arrived < _me.arrivals * self.threads
            self.arrived += 1
            self.condition.notify_all()

    def wait(self) -> None:
        with self.condition:
            wanted = _me.arrivals * self.threads
            assert self.condition.wait_for(lambda: self.arrived >= wanted, BARRIER_TIMEOUT)

    def map_shared(self, address: int, rank: int) -> int:
        """The address of the same variable in another CTA's shared memory."""
        own = max(x for x in _me.block.shared if x <= address)
        there = self.blocks[rank].shared[_me.block.shared.index(own)]
        return there + address - own


class _Cta:
    """State shared by the threads of a CTA."""

    def __init__(self, threads: int, number: int, shared: list[int], cluster: _Cluster) -> None:
        self.number, self.shared, self.cluster = number, shared, cluster
        self.barrier = threading.Barrier(threads)
        self.warps = [threading.Barrier(32) for _ in range(threads // 32)]
        self.exchanged = [0] * threads


def _warp_values(value: int) -> list[int]:
    """Those of all lanes of the same warp."""
    block, first = _me.block, _me.thread // 32 * 32
    warp = block.warps[first // 32]
    block.exchanged[_me.thread] = value
    warp.wait(BARRIER_TIMEOUT)
    found = block.exchanged[first : first + 32]
    warp.wait(BARRIER_TIMEOUT)
    return found


def _shuffle(value: int, lane: int) -> int:
    return _warp_values(value)[lane]


def _redux_max(value: int, mask: int) -> int:
    return max(_warp_values(value))


def _shuffle_bfly(mask: int, value: int, lane: int, clamp: int) -> int:
    return _shuffle(value, _me.thread % 32 ^ lane)


def _shuffle_up(mask: int, value: int, distance: int, clamp: int) -> int:
    own = _me.thread % 32
    return _shuffle(value, own - distance if own >= distance else own)


def _shuffle_idx(mask: int, value: int, lane: int, clamp: int) -> int:
    return _shuffle(value, lane)


def _wait_flag(address: int) -> int:
    """A flag word, once it is set: without spinning."""
    word = ctypes.c_int64.from_address(address)
    for _ in range(1000 * BARRIER_TIMEOUT):
        if word.value:
            break
        time.sleep(0.001)
    assert word.value
    return word.value


def _rsqrt(x: float) -> float:
    with np.errstate(all="ignore"):
        # the error bound of rsqrt.approx
        return float(np.float32(1 / np.sqrt(np.float64(x)) * (1 - 2.0**-22)))


def _rsqrt64(x: float) -> float:
    with np.errstate(all="ignore"):  # about 20 bits of it
        return float(1 / np.sqrt(np.float64(x)) * (1 - 2.0**-20))


def _reciprocal(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(1) / np.float32(x))


def _reciprocal64(x: float) -> float:
    with np.errstate(all="ignore"):  # about 20 bits of it
        return float(1 / np.float64(x) * (1 - 2.0**-20))


_DEVICE: dict[str, Any] = {
    "llvm.nvvm.read.ptx.sreg.tid.x": (_INT, (), lambda: _me.thread),
    "llvm.nvvm.read.ptx.sreg.ctaid.x": (_INT, (), lambda: _me.block.number),
    "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned": (
        *(None, ()),
        lambda: _me.block.cluster.arrive(),
    ),
    "llvm.nvvm.barrier.cluster.arrive.aligned": (None, (), lambda: _me.block.cluster.arrive()),
    "llvm.nvvm.barrier.cluster.wait.aligned": (None, (), lambda: _me.block.cluster.wait()),
    "llvm.nvvm.mapa.shared.cluster": (
        *(ctypes.c_void_p, (ctypes.c_void_p, _INT)),
        lambda address, rank: _me.block.cluster.map_shared(address, rank),
    ),
    "llvm.nvvm.barrier.cta.sync.aligned.all": (
        *(None, (_INT,)),
        lambda which: _me.block.barrier.wait(BARRIER_TIMEOUT) and None,
    ),
    "llvm.nvvm.shfl.sync.bfly.i32": (_INT, (_INT,) * 4, _shuffle_bfly),
    "llvm.nvvm.shfl.sync.up.i32": (_INT, (_INT,) * 4, _shuffle_up),
    "llvm.nvvm.shfl.sync.idx.i32": (_INT, (_INT,) * 4, _shuffle_idx),
    "llvm.nvvm.redux.sync.max": (_INT, (_INT,) * 2, _redux_max),
    "llvm.nvvm.redux.sync.umax": (ctypes.c_uint32, (ctypes.c_uint32,) * 2, _redux_max),
    "llvm.nvvm.rcp.approx.ftz.f": (_FLOAT, (_FLOAT,), _reciprocal),
    "llvm.nvvm.rcp.approx.ftz.d": (_DOUBLE, (_DOUBLE,), _reciprocal64),
    "llvm.nvvm.rsqrt.approx.ftz.d": (_DOUBLE, (_DOUBLE,), _rsqrt64),
    "llvm.nvvm.rsqrt.approx.f": (_FLOAT, (_FLOAT,), _rsqrt),
}
_FLAG_LOAD = re.compile(r"load atomic i64, ptr addrspace\(1\) (\S+) .*")
_FLAG = "device_flag"
_NAMES = {name: f"device_{i}" for i, name in enumerate(_DEVICE)}
_calls = {
    _NAMES[name]: ctypes.CFUNCTYPE(result, *taken)(call)
    for name, (result, taken, call) in _DEVICE.items()
}
_calls[_FLAG] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(_wait_flag)


class Machine(simt_machine.Machine):
    """A runtime that executes rendered kernels where it can."""

    def __init__(self) -> None:
        super().__init__(simt_machine.HOPPER)
        self.compiled: dict[str, Any] = {}
        self.rendered: list[Any] = []  # kernels executed as rendered
        self.with_scratch = False  # whether kernels with scratch are
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for name, call in _calls.items():
            llvm.add_symbol(name, ctypes.cast(call, ctypes.c_void_p).value)

    def run_kernel(self, kernel: Any, arguments: list[Any], scalars: Any, grid: int) -> None:
        scratch = [b for b in kernel.buffers if b.access == "scratch"]
        nbytes, shared = renderer.static_scratch(kernel)
        in_shared = scratch == shared and nbytes <= renderer.STATIC_SHARED
        if scratch and not (in_shared and self.with_scratch):
            simt_machine.run(kernel, arguments, scalars, grid)
            return
        self.rendered.append(kernel)
        given = [p for p, b in zip(arguments, kernel.buffers, strict=True) if b not in shared]
        values: list[Any] = [raw.ctypes.data + offset for raw, offset in given]
        kinds: list[Any] = [ctypes.c_void_p] * len(values)
        for (_, dtype), value in zip(kernel.scalars, scalars, strict=True):
            real = dtype.kind == "float"
            values.append(float(value) if real else int(value))
            kinds.append(ctypes.c_double if real else ctypes.c_int64)
        codes = self._codes(kernel)
        functions = [ctypes.CFUNCTYPE(None, *kinds)(address) for address, _ in codes]
        for first in range(0, grid, len(codes)):
            cluster = _Cluster(renderer.cta_threads(kernel) * len(codes))
            for rank, (_, shared) in enumerate(codes):
                number = first + rank
                cluster.blocks.append(_Cta(renderer.cta_threads(kernel), number, shared, cluster))
            _run(functions, values, renderer.cta_threads(kernel), cluster.blocks)

    def _codes(self, kernel: Any) -> list[tuple[int, list[int]]]:
        """(code address, addresses of shared variables) for each CTA of a cluster."""
        text = kernel_text(kernel)
        if text not in self.compiled:
            source = renderer.render(kernel, renderer.NvptxTarget(90)).replace("ptx_kernel ", "")
            source = source.replace("= internal addrspace(3)", "= addrspace(3)")
            lines = source.splitlines()
            unknown = ("griddepcontrol", "prefetch.global", "target triple")
            source = "\n".join(x for x in lines if not any(word in x for word in unknown))
            source = _FLAG_LOAD.sub(rf"call i64 @{_FLAG}(ptr addrspace(1) \1)", source)
            source += f"declare i64 @{_FLAG}(ptr addrspace(1))\n"
            for name, ours in _NAMES.items():
                source = source.replace(name, ours)
            ctas = kernel.cluster_size * kernel.cluster_blocks
            self.compiled[text] = [_compiled(source) for _ in range(ctas)]
        names = range(len(_SHARED.findall(renderer.render(kernel, renderer.NvptxTarget(90)))))
        return [
            (
                int(code.get_function_address("kernel")),
                [int(code.get_global_value_address(f"shared{i}")) for i in names],
            )
            for code in self.compiled[text]
        ]


def _compiled(source: str) -> Any:
    module = llvm.parse_assembly(source)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    code = llvm.create_mcjit_compiler(module, machine)
    code.finalize_object()
    return code


def _run(functions: list[Any], values: list[Any], threads: int, blocks: list[_Cta]) -> None:
    def go(rank: int, thread: int) -> None:
        _me.thread, _me.block, _me.arrivals = thread, blocks[rank], 0
        functions[rank](*values)

    places = [(rank, t) for rank in range(len(blocks)) for t in range(threads)]
    running = [threading.Thread(target=go, args=place) for place in places]
    for t in running:
        t.start()
    for t in running:
        t.join()
