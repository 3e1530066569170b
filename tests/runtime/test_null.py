"""The backend that only counts."""

from __future__ import annotations

import kernels_by_hand as kernels
import numpy as np

from numus import dtypes as dt
from numus import runtime
from numus.runtime.contract import Launch
from numus.runtime.null import NullRuntime


def test_counts_of_kernels_bytes_and_peak():
    null = NullRuntime()
    program = null.compile(kernels.affine())
    assert null.compile(kernels.affine(name="same")) is program
    assert "for v0 in" in program.source
    a, b = null.allocate(1000), null.allocate(3000)
    null.upload(a, np.zeros(250, np.float32))
    null.run([Launch(program, [a, b], [250], 4), Launch(program, [a, b], [250], 4)])
    null.synchronize()
    counts = null.counts
    assert (counts.kernels, counts.compiled) == (2, 1)
    assert (counts.bytes_read, counts.bytes_written) == (2000, 6000)
    assert (counts.peak, counts.bytes_in_use) == (4000, 4000)
    assert counts.names == ["affine", "affine"]
    del a
    assert null.memory_stats()["in_use"] == 3000
    so_far = null.reset()
    assert so_far.kernels == 2
    assert (null.counts.kernels, null.counts.peak) == (0, 3000)
    del b
    assert null.counts.bytes_in_use == 0
    assert null.download(null.allocate(8), dt.float32, 2).tolist() == [0, 0]


def test_the_target_is_the_same_everywhere():
    assert runtime.get("null").target == NullRuntime().target
    assert runtime.get("null").target.vector_bytes == 32
