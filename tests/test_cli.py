"""The command line."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import numus as nm
from numus import cli, nn
from numus.cli.demo import Sums, run
from numus.png import curves, write_png


def test_info_lists_the_devices(capsys):
    cli.main(["info", "--quick"])
    assert "cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("digits", "steps", "wanted"), [(1, 30, 0.0), pytest.param(2, 350, 0.9, marks=pytest.mark.slow)]
)
def test_the_demo_learns_and_answers(digits, steps, wanted, tmp_path, capsys):
    right = run("cpu", digits=digits, steps=steps, out=tmp_path)
    assert right >= wanted
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
    command = [sys.executable, "-m", "numus", "explain", "--source", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4.0" in done.stdout
    assert "reduce_max" in done.stdout
    assert "for v0 in" in done.stdout


def test_explain_evaluates_what_a_file_leaves_behind(tmp_path, capsys):
    (tmp_path / "beside.py").write_text("SIZE = 5\n")
    file = tmp_path / "lazy.py"
    file.write_text(
        "import sys\nimport numus as nm\nfrom beside import SIZE\n"
        "x = {'y': [nm.tanh(nm.ones(SIZE))]}\n"
        "for _ in range(3):\n    float(nm.ones(SIZE).sum())\n"
        "print(sys.argv[1:])\n"
    )
    before = (list(sys.argv), list(sys.path))
    cli.main(["explain", str(file), "a", "--b"])
    shown = capsys.readouterr().out
    assert "['a', '--b']" in shown
    assert "tanh" in shown
    assert ", 3 times" in shown or ", 2 times" in shown
    assert (list(sys.argv), list(sys.path)) == before
    file.write_text("print('nothing here')\nraise SystemExit(2)\n")
    cli.main(["explain", str(file)])
    shown = capsys.readouterr().out
    assert "ended with 2" in shown
    assert "computes nothing with numus" in shown


def test_without_a_command_the_commands_are_named(capsys):
    cli.main([])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("info", "train", "demo", "bench", "explain"))


@pytest.mark.parametrize("arguments", [["nothing"], ["explain", "no/such/file.py"]])
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


def test_quantize_writes_what_models_load(tmp_path, capsys):
    nm.random.seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    file, inputs = tmp_path / "m.safetensors", tmp_path / "x.safetensors"
    nn.save_model(model, file)
    x = nm.random.normal((32, 64))
    nn.save_safetensors({"0.input": x, "2.input": model[1](model[0](x))}, inputs)
    for scheme, extra in (("int8", []), ("int4-g32-awq", ["--data", str(inputs)])):
        cli.main(["quantize", str(file), "--scheme", scheme, *extra])
        assert "total" in capsys.readouterr().out
        other = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        nm.quant.load_quantized(other, tmp_path / f"m-{scheme}.safetensors")
        assert nm.linalg.norm(other(x) - model(x)) < 0.2 * nm.linalg.norm(model(x))
    with pytest.raises(SystemExit, match="give --data"):
        cli.main(["quantize", str(file), "--scheme", "int4-gptq"])
    with pytest.raises(SystemExit, match="names no format"):
        cli.main(["quantize", str(file), "--scheme", "int5"])
    with pytest.raises(SystemExit, match="no matrix"):
        cli.main(["quantize", str(file), "--only", "nothing"])


def test_quantize_reads_and_writes_gguf(tmp_path, capsys):
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    w = nm.asarray(x, device="reference")
    tensors = {"a.weight": nm.quant.quantize(w, "q8_0"), "b.weight": w[:, :40], "n.weight": w[0]}
    nm.quant.save_gguf(tmp_path / "m.gguf", tensors, {"general.name": "m"})
    cli.main(["quantize", str(tmp_path / "m.gguf"), "--scheme", "q4_k"])
    assert "q4_k" in capsys.readouterr().out
    found, metadata = nm.quant.load_gguf(tmp_path / "m-q4_k.gguf")
    assert metadata == {"general.name": "m"}
    assert found["a.weight"].format.name == "q4_k"
    assert np.abs(found["a.weight"].numpy() - x).max() < 0.3
    np.testing.assert_array_equal(found["b.weight"].numpy(), x[:, :40])  # no whole block
    cli.main(["quantize", str(tmp_path / "m.gguf"), "--scheme", "int8"])
    model = nn.ModuleDict({"a": nn.Linear(256, 4, bias=False), "b": nn.Linear(40, 4, bias=False)})
    model["n"] = nn.RMSNorm(256)
    nm.quant.load_quantized(model, tmp_path / "m-int8.safetensors")
    assert np.abs(model["a"].dense_weight().numpy() - x).max() < 0.05
    with pytest.raises(SystemExit, match="GGUF has no int8-row"):
        cli.main(["quantize", str(tmp_path / "m.gguf"), "--scheme", "int8", "--out", "x.gguf"])
