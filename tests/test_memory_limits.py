"""A limit on the process's memory (`ulimit -v`) raises MemoryError: no crash, no hang."""

from __future__ import annotations

import sys

import processes
import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc of Linux"),
    pytest.mark.on_cpu("the memory of the host"),
]

PROGRAM = """
import faulthandler, resource, sys
faulthandler.enable()
import numus as nm

mebibytes, state = int(sys.argv[1]), sys.argv[2]
if state == "used":
    assert (nm.ones(10) + 1).sum().item() == 20
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (size + (mebibytes << 20), before[1]))
functions = [nm.sin, nm.cos, nm.exp, nm.tanh, nm.square, nm.abs, nm.negative, nm.expm1]
held, errors = [], []
for i in range(25):
    try:
        x, k = nm.ones(1 << 16) * (i % 3), i * 977
        for _ in range(4):
            x = functions[k % 8](x)
            k //= 8
        held.append(nm.sum(x).item())
        held.append(nm.ones(1 << 20) + i)
        nm.eval(held[-1])
    except MemoryError as error:
        errors.append(error)
        held.clear()
resource.setrlimit(resource.RLIMIT_AS, before)
assert (nm.ones(10) + 1).sum().item() == 20  # as if nothing had happened
print(len(errors))
"""

CASES = [(20, "fresh"), (30, "used"), (90, "used")]
MORE = [(m, s) for m in (3, 8, 50, 70, 110, 150, 250, 300, 400) for s in ("fresh", "used")]


@pytest.mark.parametrize(
    ("mebibytes", "state"), [*CASES, *(pytest.param(*c, marks=pytest.mark.slow) for c in MORE)]
)
def test_limits(mebibytes, state, tmp_path):
    errors = int(processes.run(PROGRAM, mebibytes, state, NUMUS_CACHE_DIR=str(tmp_path)))
    if mebibytes <= 90:
        assert errors > 0
