"""Kernels as rendered for NVIDIA GPUs, run without one: the LLVM IR is compiled for the host, and
every thread of a block is a thread of this process.

What threads ask the device for (who they are, what a neighbour has, a barrier) are calls to here.
Kernels with scratch memory, scans and tiles are left to the machine of `group_machine`.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import group_machine
import llvmlite.binding as llvm
import numpy as np

from numus.compiler.render import ptx

PATIENCE = 120  # seconds that threads wait for each other
_me = threading.local()
_INT, _FLOAT = ctypes.c_int32, ctypes.c_float


class _Block:
    """What the threads of a block have in common."""

    def __init__(self, threads: int) -> None:
        self.barrier = threading.Barrier(threads)
        self.warps = [threading.Barrier(32) for _ in range(threads // 32)]
        self.told = [0] * threads


def _exchanged(mask: int, value: int, lane: int, clamp: int) -> int:
    block, warp = _me.block, _me.block.warps[_me.thread // 32]
    block.told[_me.thread] = value
    warp.wait(PATIENCE)
    found = block.told[_me.thread ^ lane]
    warp.wait(PATIENCE)
    return found


def _reciprocal(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(1) / np.float32(x))


_DEVICE: dict[str, Any] = {
    "llvm.nvvm.read.ptx.sreg.tid.x": (_INT, (), lambda: _me.thread),
    "llvm.nvvm.read.ptx.sreg.ctaid.x": (_INT, (), lambda: _me.number),
    "llvm.nvvm.barrier.cta.sync.aligned.all": (
        *(None, (_INT,)),
        lambda which: _me.block.barrier.wait(PATIENCE) and None,
    ),
    "llvm.nvvm.shfl.sync.bfly.i32": (_INT, (_INT,) * 4, _exchanged),
    "llvm.nvvm.rcp.approx.ftz.f": (_FLOAT, (_FLOAT,), _reciprocal),
}
_NAMES = {name: f"device_{i}" for i, name in enumerate(_DEVICE)}
_calls = {
    _NAMES[name]: ctypes.CFUNCTYPE(result, *taken)(call)
    for name, (result, taken, call) in _DEVICE.items()
}


class Machine(group_machine.Machine):
    """A runtime whose kernels run so, where they can."""

    def __init__(self) -> None:
        super().__init__(group_machine.HOPPER)
        self.compiled: dict[str, Any] = {}
        self.rendered: list[Any] = []  # the kernels that ran as they were rendered
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for name, call in _calls.items():
            llvm.add_symbol(name, ctypes.cast(call, ctypes.c_void_p).value)

    def run_kernel(self, kernel: Any, places: list[Any], scalars: Any, grid: int) -> None:
        if any(b.access == "scratch" for b in kernel.buffers):
            group_machine.run(kernel, places, scalars, grid)
            return
        self.rendered.append(kernel)
        values: list[Any] = [raw.ctypes.data + offset for raw, offset in places]
        kinds: list[Any] = [ctypes.c_void_p] * len(values)
        for (_, dtype), value in zip(kernel.scalars, scalars, strict=True):
            real = dtype.kind == "float"
            values.append(float(value) if real else int(value))
            kinds.append(ctypes.c_double if real else ctypes.c_int64)
        function = ctypes.CFUNCTYPE(None, *kinds)(self._address(kernel))
        for number in range(grid):
            _run_block(function, values, ptx.threads(kernel), number)

    def _address(self, kernel: Any) -> int:
        text = kernel.text()
        if text not in self.compiled:
            source = ptx.render(kernel, ptx.Target(90)).replace("ptx_kernel ", "")
            lines = source.splitlines()
            unknown = ("griddepcontrol", "target triple")
            source = "\n".join(x for x in lines if not any(word in x for word in unknown))
            for name, ours in _NAMES.items():
                source = source.replace(name, ours)
            module = llvm.parse_assembly(source)
            module.verify()
            machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
            self.compiled[text] = llvm.create_mcjit_compiler(module, machine)
            self.compiled[text].finalize_object()
        return int(self.compiled[text].get_function_address("kernel"))


def _run_block(function: Any, values: list[Any], threads: int, number: int) -> None:
    block = _Block(threads)

    def go(thread: int) -> None:
        _me.thread, _me.number, _me.block = thread, number, block
        function(*values)

    running = [threading.Thread(target=go, args=(t,)) for t in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join()
