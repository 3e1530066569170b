"""The command line."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from numus import cli
from numus.cli.demo import Sums, run
from numus.pictures import curves, write_png


def test_info_lists_the_devices(capsys):
    cli.main(["info", "--quick"])
    assert "cpu" in capsys.readouterr().out


def test_the_demo_learns_and_answers(tmp_path, capsys):
    right = run("cpu", digits=2, steps=600, out=tmp_path)
    assert right >= 0.9
    assert "after saving and loading" in capsys.readouterr().out
    with Image.open(tmp_path / "addition.png") as image:
        assert image.size == (1800, 420)


def test_sums_are_what_they_say():
    sums = Sums(3)
    rng = np.random.default_rng(0)
    for unseen in (False, True):
        a, b = sums.draw(rng, 50, unseen=unseen)
        assert len(a) == 50
        rows = sums.encode(a, b)
        assert rows.shape == (50, sums.length)
        assert (sums.decode(rows) == a + b).all()
    shown = set(zip(*(x.tolist() for x in sums.draw(rng, 5000, unseen=False)), strict=True))
    kept = set(zip(*(x.tolist() for x in sums.draw(rng, 500, unseen=True)), strict=True))
    assert not shown & kept


def test_explain_shows_the_kernels_of_a_file(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("import numus as nm\nprint(float(nm.softmax(nm.ones((4, 4))).sum()))\n")
    command = [sys.executable, "-m", "numus", "explain", str(file), "--source"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4.0" in done.stdout
    assert "reduce_max" in done.stdout
    assert "for v0 in" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["explain", "no/such/file.py"]])
def test_wrong_calls_end_with_a_message(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code != 0


def test_curves_of_nothing_are_a_picture(tmp_path):
    points = [(0.0, 1.0), (1.0, np.nan), (2.0, 3.0)]
    picture = curves({"nothing": {"at all": []}, "some": {"a": points, "b": points[:1]}})
    write_png(tmp_path / "a.png", picture)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (1800, 420)
