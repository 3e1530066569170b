"""Report on an NVIDIA GPU: conformance, gradients, speed and endurance.

python -m tools.cuda_report [--out docs/results/cuda.md] [--only tests,bench,...] [--gpt2]

Tests run in several processes (`tools/device_tests.py`). The measurements are described in
`tools/cuda_bench.py`, `tools/cuda_small.py` and `tools/cuda_state.py`. A full run takes about eight
minutes.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tools.device_tests import OPS, run_tests

# Tests that run on the device named in NUMUS_TEST_DEVICES, and those of its runtime.
TESTS = (
    *OPS,
    "tests/array_api/test_fft_extension.py",
    "tests/array_api/test_linalg_extension.py",
    "tests/kernels/test_gpu_gemm.py",
    "tests/kernels/test_padded_gemm_conv.py",
    "tests/runtime/test_cuda.py",
)
_WHAT = (
    "of the op table (values, gradients), the array API's extensions, all GEMM and convolution "
    "schedules and the runtime"
)
PARTS = (
    *("tests", "engine", "programs", "sanitizer"),
    *("rows", "long", "gemm", "small", "attention", "families", "state"),
)
# All tests can run with another default device, except those that name theirs (an emulated GPU or
# WebGPU), which are slow; the op table and the array API's extensions have run on the device.
_NAMED = (
    *("webgpu", "test_ops", "_extension", "test_gpu_gemm", "test_implicit_gemm_conv"),
    *("test_vendor_matmul", "test_wgmma_attention", "test_attention_heads", "test_scan_columns"),
    "test_topk_radix_select",
)
ENGINE = ("tests", *(f"--ignore-glob=*{name}*" for name in _NAMED))


def driver_version() -> str:
    """The versions of the driver and of CUDA."""
    from numus.runtime.cuda import driver

    known = int(driver.call("cuDriverGetVersion"))
    told = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d+\.\d+[.\d]*", told.read_text()) if told.exists() else None
    return f"driver {found[0] if found else '?'} (CUDA {known // 1000}.{known % 1000 // 10})"


def run_gpt2(say: Callable[[str], None]) -> None:
    """The output of the GPT-2 training benchmark."""
    command = [sys.executable, "-m", "bench.gpt2", "--device", "cuda", "--size", "124M"]
    command += ["--batch", "16", "--length", "1024", "--precision", "bf16"]
    command += ["--warmup", "700", "--clip", "1", "--compile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    say("```text")
    for line in (done.stdout or done.stderr).strip().splitlines()[-12:]:
        say(line)
    say("```")


def run_programs(say: Callable[[str], None], workers: int, seconds: float) -> str:
    """Random programs against the CPU; the output, with those that differ."""
    command = [sys.executable, "-m", "tools.fuzz_programs", "--device", "cuda"]
    command += ["--seconds", str(seconds), "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stdout or done.stderr).strip().splitlines()[-1]
    say(f"- random programs, on the device and on the CPU: {last}")
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/results/cuda.md")
    parser.add_argument("--log", default="", help="file for the output of failing tests")
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the report")
    parser.add_argument("--rows", default="", help="regular expression of workload names")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=0.04, help="for each measurement")
    parser.add_argument("--limit", type=float, default=150, help="seconds for the tests")
    parser.add_argument("--gpt2", action="store_true", help="a training step of GPT-2 as well")
    given = parser.parse_args()
    parts = given.only.split(",")
    import numus as nm
    from tools import cuda_bench, cuda_families, cuda_small, cuda_state, cuda_timing

    target = nm.device("cuda").runtime.target
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        Path(given.out).write_text("\n".join([*lines, ""]))

    say("# numus on an NVIDIA GPU\n")
    say(f"Written by `python -m tools.cuda_report` on {date.today()}, on one {target.description}")
    python, torch = platform.python_version(), version("torch")
    say(f"with {driver_version()}, Python {python} and PyTorch {torch}.")
    sanitizer = cuda_state.Sanitizer() if "sanitizer" in parts else None
    if any(part in parts for part in ("tests", "engine", "programs", "sanitizer")):
        say("\n## Conformance\n")
    if "tests" in parts:
        also = " or test_gpu_gemm or runtime"
        report, text = run_tests(given.workers, given.limit, "cuda", TESTS, also, _WHAT)
        for line in report:
            say(line)
        if given.log:
            Path(given.log).write_text(text)
    if "engine" in parts:
        what = "of the engine, with `cuda` as the default device,"
        report, text = run_tests(given.workers, given.limit, "cuda", ENGINE, "", what, True)
        for line in report:
            say(line)
        if given.log:
            Path(given.log + ".engine").write_text(text)
    if "programs" in parts:
        text = run_programs(say, given.workers, 40)
        if given.log:
            Path(given.log + ".programs").write_text(text)
    if sanitizer is not None:
        text = sanitizer.report(say, 40)
        if given.log:
            Path(given.log + ".sanitizer").write_text(text)
    if any(part in parts for part in ("rows", "long", "gemm", "small", "attention", "families")):
        bench = cuda_timing.Bench(given.seconds, say, given.rows)
        tables = {
            "rows": ("Speed against PyTorch", bench.table, cuda_bench.rows),
            "long": ("Long rows", bench.table, cuda_bench.long_rows),
            "gemm": ("GEMM", bench.gemm_table, cuda_bench.gemms),
            "small": ("Small computations", partial(cuda_small.table, bench), cuda_small.rows),
            "attention": ("Attention and convolutions", bench.table, cuda_bench.attention),
            "families": ("Families", partial(cuda_families.table, bench), cuda_families.cases),
        }
        about = {**cuda_bench.ABOUT, "small": cuda_small.ABOUT, "families": cuda_families.ABOUT}
        for part, (title, write, rows) in tables.items():
            if part in parts:
                say(f"\n## {title}\n\n{about[part]}\n")
                write(rows(bench.torch, nm))
    if "state" in parts:
        say("\n## Endurance\n")
        cuda_state.leaks(say)
        say("")
        cuda_state.small_kernels(say)
        cuda_state.out_of_memory(say)
    if given.gpt2:
        say("\n## Training GPT-2\n")
        run_gpt2(say)


if __name__ == "__main__":
    main()
