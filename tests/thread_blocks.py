"""Kernels as rendered for NVIDIA GPUs, run without one: the LLVM IR is compiled for the host, and
every thread of a block is a thread of this process.

What threads ask the device for (who they are, what a neighbour has, a barrier) are calls to here.
Blocks run one after the other; those of a group that is spread over several run together, each by a
copy of the code that has shared memory of its own.
Kernels with tiles are left to the machine of `group_machine`, and so are those with scratch memory
(which take many barriers) unless a test asks for them.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from typing import Any

import group_machine
import llvmlite.binding as llvm
import numpy as np

from numus.codegen.nvptx import renderer
from numus.ir import kernel_text

PATIENCE = 120  # seconds that threads wait for each other
_me = threading.local()
_INT, _FLOAT = ctypes.c_int32, ctypes.c_float
_SHARED = re.compile(r"^@shared\d+ = internal", re.MULTILINE)


class _Cluster:
    """What the blocks of a group have in common. A barrier is arrived at, and waited for later: an
    arrival that nobody waits for yet must not be mistaken for the next one."""

    def __init__(self, threads: int) -> None:
        self.blocks: list[_Block] = []
        self.threads, self.arrived, self.turn = threads, 0, threading.Condition()

    def arrive(self) -> None:
        with self.turn:
            _me.arrivals += 1
            assert self.arrived < _me.arrivals * self.threads
            self.arrived += 1
            self.turn.notify_all()

    def wait(self) -> None:
        with self.turn:
            wanted = _me.arrivals * self.threads
            assert self.turn.wait_for(lambda: self.arrived >= wanted, PATIENCE)

    def place(self, address: int, rank: int) -> int:
        """Where in another block's shared memory the same thing lies."""
        own = max(x for x in _me.block.shared if x <= address)
        there = self.blocks[rank].shared[_me.block.shared.index(own)]
        return there + address - own


class _Block:
    """What the threads of a block have in common."""

    def __init__(self, threads: int, number: int, shared: list[int], cluster: _Cluster) -> None:
        self.number, self.shared, self.cluster = number, shared, cluster
        self.barrier = threading.Barrier(threads)
        self.warps = [threading.Barrier(32) for _ in range(threads // 32)]
        self.told = [0] * threads


def _told(value: int, lane: int) -> int:
    """What a lane of the same warp has."""
    block, warp = _me.block, _me.block.warps[_me.thread // 32]
    block.told[_me.thread] = value
    warp.wait(PATIENCE)
    found = block.told[_me.thread // 32 * 32 + lane]
    warp.wait(PATIENCE)
    return found


def _exchanged(mask: int, value: int, lane: int, clamp: int) -> int:
    return _told(value, _me.thread % 32 ^ lane)


def _from_below(mask: int, value: int, distance: int, clamp: int) -> int:
    own = _me.thread % 32
    return _told(value, own - distance if own >= distance else own)


def _from(mask: int, value: int, lane: int, clamp: int) -> int:
    return _told(value, lane)


def _awaited(address: int) -> int:
    """A word of a board, once it is there: nobody spins."""
    word = ctypes.c_int64.from_address(address)
    for _ in range(1000 * PATIENCE):
        if word.value:
            break
        time.sleep(0.001)
    assert word.value
    return word.value


def _inverse_root(x: float) -> float:
    with np.errstate(all="ignore"):
        # as far off as the unit may be
        return float(np.float32(1 / np.sqrt(np.float64(x)) * (1 - 2.0**-22)))


def _reciprocal(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(1) / np.float32(x))


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
        lambda address, rank: _me.block.cluster.place(address, rank),
    ),
    "llvm.nvvm.barrier.cta.sync.aligned.all": (
        *(None, (_INT,)),
        lambda which: _me.block.barrier.wait(PATIENCE) and None,
    ),
    "llvm.nvvm.shfl.sync.bfly.i32": (_INT, (_INT,) * 4, _exchanged),
    "llvm.nvvm.shfl.sync.up.i32": (_INT, (_INT,) * 4, _from_below),
    "llvm.nvvm.shfl.sync.idx.i32": (_INT, (_INT,) * 4, _from),
    "llvm.nvvm.rcp.approx.ftz.f": (_FLOAT, (_FLOAT,), _reciprocal),
    "llvm.nvvm.rsqrt.approx.f": (_FLOAT, (_FLOAT,), _inverse_root),
}
_AWAITED = re.compile(r"load atomic i64, ptr addrspace\(1\) (\S+) .*")
_WORD = "device_word"
_NAMES = {name: f"device_{i}" for i, name in enumerate(_DEVICE)}
_calls = {
    _NAMES[name]: ctypes.CFUNCTYPE(result, *taken)(call)
    for name, (result, taken, call) in _DEVICE.items()
}
_calls[_WORD] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(_awaited)


class Machine(group_machine.Machine):
    """A runtime whose kernels run so, where they can."""

    def __init__(self) -> None:
        super().__init__(group_machine.HOPPER)
        self.compiled: dict[str, Any] = {}
        self.rendered: list[Any] = []  # the kernels that ran as they were rendered
        self.with_scratch = False  # whether those with scratch memory do
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for name, call in _calls.items():
            llvm.add_symbol(name, ctypes.cast(call, ctypes.c_void_p).value)

    def run_kernel(self, kernel: Any, places: list[Any], scalars: Any, grid: int) -> None:
        scratch = [b for b in kernel.buffers if b.access == "scratch"]
        nbytes, shared = renderer.static_scratch(kernel)
        in_shared = scratch == shared and nbytes <= renderer.STATIC_SHARED
        if scratch and not (in_shared and self.with_scratch):
            group_machine.run(kernel, places, scalars, grid)
            return
        self.rendered.append(kernel)
        given = [p for p, b in zip(places, kernel.buffers, strict=True) if b not in shared]
        values: list[Any] = [raw.ctypes.data + offset for raw, offset in given]
        kinds: list[Any] = [ctypes.c_void_p] * len(values)
        for (_, dtype), value in zip(kernel.scalars, scalars, strict=True):
            real = dtype.kind == "float"
            values.append(float(value) if real else int(value))
            kinds.append(ctypes.c_double if real else ctypes.c_int64)
        codes = self._codes(kernel)
        functions = [ctypes.CFUNCTYPE(None, *kinds)(address) for address, _ in codes]
        for first in range(0, grid, kernel.cluster_size):
            cluster = _Cluster(renderer.cta_threads(kernel) * kernel.cluster_size)
            for rank, (_, shared) in enumerate(codes):
                number = first + rank
                cluster.blocks.append(_Block(renderer.cta_threads(kernel), number, shared, cluster))
            _run(functions, values, renderer.cta_threads(kernel), cluster.blocks)

    def _codes(self, kernel: Any) -> list[tuple[int, list[int]]]:
        """For each block of a group the address of the code, and those of its shared memory."""
        text = kernel_text(kernel)
        if text not in self.compiled:
            source = renderer.render(kernel, renderer.NvptxTarget(90)).replace("ptx_kernel ", "")
            source = source.replace("= internal addrspace(3)", "= addrspace(3)")
            lines = source.splitlines()
            unknown = ("griddepcontrol", "target triple")
            source = "\n".join(x for x in lines if not any(word in x for word in unknown))
            source = _AWAITED.sub(rf"call i64 @{_WORD}(ptr addrspace(1) \1)", source)
            source += f"declare i64 @{_WORD}(ptr addrspace(1))\n"
            for name, ours in _NAMES.items():
                source = source.replace(name, ours)
            self.compiled[text] = [_compiled(source) for _ in range(kernel.cluster_size)]
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


def _run(functions: list[Any], values: list[Any], threads: int, blocks: list[_Block]) -> None:
    def go(rank: int, thread: int) -> None:
        _me.thread, _me.block, _me.arrivals = thread, blocks[rank], 0
        functions[rank](*values)

    places = [(rank, t) for rank in range(len(blocks)) for t in range(threads)]
    running = [threading.Thread(target=go, args=place) for place in places]
    for t in running:
        t.start()
    for t in running:
        t.join()
