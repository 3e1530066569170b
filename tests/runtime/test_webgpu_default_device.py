"""A sample of the engine's own tests with webgpu as the default device; all of them with

NUMUS_DEVICE=webgpu pytest tests
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from numus.runtime.devices import count

pytestmark = pytest.mark.skipif(not count("webgpu"), reason="there is no adapter for WebGPU here")


@pytest.mark.parametrize("name", ["host_access", pytest.param("operators", marks=pytest.mark.slow)])
def test_a_sample_with_webgpu_as_the_default_device(name):
    sample = f"tests/functions/test_{name}.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", sample],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NUMUS_DEVICE": "webgpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
