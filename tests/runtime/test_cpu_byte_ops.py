"""Rows gathered and checksums taken natively, against NumPy and zlib."""

import ctypes
import zlib

import numpy as np
import pytest

from numus import runtime
from numus.codegen.cpu.target import LlvmTarget, host
from numus.runtime.cpu import byte_ops_source
from numus.runtime.cpu.byte_ops import Source
from numus.runtime.cpu.jit import Jit

CPU = runtime.get("cpu")
BYTES = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)


def checksums_by(target, starts, sizes):
    """What the code for another target says, run on this one."""
    address = CPU.compiler.native(byte_ops_source.source(target), byte_ops_source.SYMBOLS)[1]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_void_p)
    sums = np.zeros(len(starts), np.uint32)
    words = np.array([x.ctypes.data for x in (BYTES, starts, sizes, sums)])
    kind(address)(0, len(starts), 0, None, words.ctypes.data)
    return sums


@pytest.mark.parametrize("plain", [False, True])
def test_checksums(plain):
    sizes = np.array([*range(150), 255, 256, 1023, 4096, 100_003])
    for first in (0, 3):
        starts = np.arange(first, first + len(sizes))
        expected = [zlib.crc32(BYTES[a : a + n]) for a, n in zip(starts, sizes, strict=True)]
        if plain:
            bare = LlvmTarget(host().triple, host().cpu, "")
            found = checksums_by(bare, starts, sizes)
        else:
            found = CPU.byte_ops.checksums(BYTES, starts, sizes)
        assert found.tolist() == expected
    assert CPU.byte_ops.checksums(BYTES, starts[:0], sizes[:0]).shape == (0,)


@pytest.mark.parametrize("features", ["+crc", ""])
def test_code_for_arm_can_be_made(features):
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = LlvmTarget("aarch64-unknown-linux-gnu", "generic", features)
    assembly = Jit(target).assembly(byte_ops_source.source(target))
    assert ("crc32x" in assembly) == bool(features)


@pytest.mark.parametrize("size", [0, 1, 8, 100, 4096, 70_000, 1 << 17])
@pytest.mark.parametrize("stream", [False, True])
def test_gather(size, stream, monkeypatch):
    monkeypatch.setattr(CPU.byte_ops, "_stream_min_bytes", 0 if stream else 1 << 62)
    starts = np.array([8, 64, 800_000, 16, 123_456], np.uint64)
    labels = np.array([1.5, 2.5, 3.5, 4.5, 5.5], np.float32)
    kinds = np.array([7, 7, 7, 7, 8], np.int32)
    sources = [
        Source(BYTES.ctypes.data + 5, starts.ctypes.data, size),
        Source(labels.ctypes.data, 0, labels.itemsize),
    ]
    gather = CPU.byte_ops.gatherer(sources, kinds, 7)
    for places in ([2], [3, 0, 2, -2, 1, 1], [0] * 40):
        rows, numbers = gather(np.array(places))
        expected = [BYTES[int(starts[i]) + 5 :][:size] for i in places]
        np.testing.assert_array_equal(
            rows.view(np.uint8, len(places) * size).reshape(len(places), size), expected
        )
        assert numbers.view(np.float32, len(places)).tolist() == labels[places].tolist()
    for places in ([4], [0, 4], [5], [-6], [0, 1 << 40]):
        assert gather(np.array(places)) is None
