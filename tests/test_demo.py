"""The demo learns the spirals and draws what it learnt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent


def test_spirals(tmp_path: Path) -> None:
    picture = tmp_path / "spirals.png"
    command = [sys.executable, "examples/spirals.py", "--steps", "300", "--out", picture]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        command, cwd=ROOT, env=surroundings, check=True, capture_output=True, text=True
    )

    accuracy = next(line for line in answer.stdout.splitlines() if line.startswith("accuracy"))
    assert float(accuracy.split()[1].rstrip("%")) > 98
    with Image.open(picture) as image:
        assert image.mode == "RGB"
        assert len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) > 100
