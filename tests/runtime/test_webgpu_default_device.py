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

SAMPLE = ["tests/functions/test_operators.py", "tests/functions/test_host_access.py"]


def test_a_sample_with_webgpu_as_the_default_device():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SAMPLE],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NUMUS_DEVICE": "webgpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
