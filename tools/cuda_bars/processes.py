"""Measurements in a process of their own: peaks of memory, first steps, caches that are cold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def output(module: str, *arguments: str, **environment: str) -> str:
    """What a module prints as a program; an error tells its last line."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise RuntimeError(f"{module} {' '.join(arguments)}: {told[-1]}")
    return done.stdout


def answer(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON in a module's last line."""
    return dict(json.loads(output(module, *arguments).strip().splitlines()[-1]))
