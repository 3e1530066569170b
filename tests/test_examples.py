"""Each example runs in a small setting, and learns what it is there for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, f"examples/{name}.py", *map(str, arguments)]
    answer = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def number(text: str, before: str) -> float:
    found = re.search(rf"^{before}\s*([-\d.]+(?:e-?\d+)?)", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


@pytest.mark.slow
def test_tiny_transformer(tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    small = ("--epochs", 4, "--examples", 1024, "--vocabulary", 16)
    said = run("tiny_transformer", *small, "--out", out)
    assert number(said, "accuracy") > 80
    assert out.exists()


@pytest.mark.slow
def test_images(tmp_path: Path) -> None:
    said = run("images", "--epochs", 4, "--examples", 1280, "--out", tmp_path)
    assert number(said, "accuracy") > 50
    assert (tmp_path / "last.ckpt").exists()
    with Image.open(tmp_path / "shapes.png") as image:
        assert image.width == 3 * (10 * 25 + 1)


@pytest.mark.slow
def test_characters() -> None:
    said = run("characters", "--steps", 120, "--length", 40, "--write", 20)
    assert number(said, "loss") < 1.0
    assert "The wind was" in said


@pytest.mark.slow
def test_autoencoder(tmp_path: Path) -> None:
    said = run("autoencoder", "--epochs", 2, "--examples", 1280, "--out", tmp_path / "rings.png")
    assert number(said, "loss .* ->") < 200
    assert (tmp_path / "rings.png").exists()


def test_regression() -> None:
    said = run("regression", "--points", 300)
    for name, wanted in zip("abc", (2.5, 1.3, 0.5), strict=True):
        assert number(said, f"{name} =") == pytest.approx(wanted, abs=0.05)


@pytest.mark.slow
def test_signals(tmp_path: Path) -> None:
    said = run("chirp", "--seconds", 0.5, "--out", tmp_path / "chirp.png")
    assert number(said, "pitch error") < 30
    said = run("deconvolution", "--size", 48, "--steps", 60, "--out", tmp_path / "sharp.png")
    assert number(said, "ratio") > 1.3
    small = ("--points", 64, "--steps", 200, "--length", 50)
    said = run("kuramoto_sivashinsky", *small, "--out", tmp_path / "waves.png")
    assert 0.3 < number(said, "energy") < 5
    assert abs(number(said, "mean")) < 1e-3
    assert all((tmp_path / f"{name}.png").exists() for name in ("chirp", "sharp", "waves"))


@pytest.mark.slow
def test_quantization(tmp_path: Path) -> None:
    out = tmp_path / "loss.png"
    small = ("--steps", 40, "--width", 32, "--layers", 1, "--bits", 4)
    said = run("quantization", *small, "--out", out)
    full = number(said, "full")
    for way in ("rounding", "gptq", "awq", "hqq", "training"):
        assert number(said, f"{way} +4 bits") < 1.1 * full
    with Image.open(out) as image:
        assert image.size == (900, 420)


def test_communities(tmp_path: Path) -> None:
    said = run("communities", "--nodes", 600, "--steps", 40, "--out", tmp_path / "blocks.png")
    assert number(said, "accuracy") > number(said, "without edges") + 15
    assert (tmp_path / "blocks.png").exists()


@pytest.mark.slow
def test_poisson(tmp_path: Path) -> None:
    said = run("poisson", "--size", 30, "--out", tmp_path / "poisson.png")
    counts = [number(said, name) for name in ("none", "cholesky", "aggregation", "classical")]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < 9
    with Image.open(tmp_path / "poisson.png") as image:
        assert image.width == 900


@pytest.mark.slow
def test_sparse_solvers(tmp_path: Path) -> None:
    said = run("drum", "--size", 40, "--modes", 4, "--out", tmp_path / "drum.png")
    assert number(said, "largest error") < 5
    said = run("optimal_control", "--size", 16, "--out", tmp_path / "control.png")
    assert number(said, "gradient") < 1e-6
    assert number(said, "objective .* ->") < 0.2 * number(said, "objective")
    for name, wide in (("drum", 200), ("control", 2 * (3 * 17 + 1))):
        with Image.open(tmp_path / f"{name}.png") as image:
            assert image.width == wide


@pytest.mark.slow
def test_two_moons(tmp_path: Path) -> None:
    out = tmp_path / "moons.png"
    small = ("--steps", 250, "--batch", 256, "--width", 64, "--points", 500)
    said = run("two_moons", *small, "--out", out)
    assert number(said, "Diffusion loss .* ->") < 1.45  # of a model that gives zeros: 1.7
    assert number(said, "FlowMatching loss .* ->") < 2.4  # 3.2
    assert number(said, "diffusion distance") < 0.7
    assert number(said, "flow distance") < 0.7
    with Image.open(out) as image:
        assert image.size == (3 * 240, 240)


@pytest.mark.slow
def test_finetune_vit(tmp_path: Path) -> None:
    small = ("--epochs", 3, "--examples", 640, "--few", 96, "--width", 32, "--layers", 1)
    said = run("finetune_vit", *small, "--out", tmp_path)
    assert number(said, "coarse") > 55
    assert number(said, "fine-tuned") > 30
    assert "new: heads.head.weight heads.head.bias" in said
    assert (tmp_path / "shapes.png").exists()


@pytest.mark.slow
def test_clip_search(tmp_path: Path) -> None:
    out = tmp_path / "found.png"
    small = ("--steps", 120, "--examples", 1500, "--gallery", 200, "--width", 32)
    said = run("clip_search", *small, "--out", out)
    assert number(said, "seen") > 2.5 * number(said, "chance")
    with Image.open(out) as image:
        assert image.size == (8 * 28 * 3, 20 * 28 * 3)


@pytest.mark.slow
def test_segmentation(tmp_path: Path) -> None:
    small = ("--epochs", 2, "--examples", 320, "--size", 16, "--width", 8, "--levels", 2)
    said = run("segmentation", *small, "--out", tmp_path / "shapes.png")
    assert number(said, "overlap") > 0.3
    assert (tmp_path / "shapes.png").exists()


@pytest.mark.slow
def test_augmentations(tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    said = run("augmentations", "--size", 24, "--columns", 3, "--out", out)
    for name in ("crop", "affine", "jitter", "randaugment", "erasing"):
        assert number(said, name) > 1
    with Image.open(out) as image:
        assert image.size == (3 * 26 + 2, 7 * 26 + 2)


def test_distributed_poisson() -> None:
    said = run("distributed_poisson", "--points", 24, "--check")
    assert "at most 0.0e+00 from the solution of one process" in said


@pytest.mark.slow
def test_data_parallel() -> None:
    # from 0.38; PyTorch comes to 0.20 … 0.21 in as many steps
    assert number(run("data_parallel", "--steps", 100), "1 ranks: loss .* ->") < 0.25
