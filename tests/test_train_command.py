"""`numus train`: configurations that are followed, and what is said of those that cannot be."""

import json
import re

import numpy as np
import pytest

from numus import cli, data

CONFIG = """
[run]
epochs = 3
folder = "out"
[model]
layers = [
    {type = "Linear", in_features = 2, out_features = 16},
    {type = "Tanh"},
    {type = "Linear", in_features = 16, out_features = 2},
]
[data]
train = "train.rrec"
validation_share = 0.25
inputs = ["x"]
target = "y"
batch_size = 16
[loss]
name = "cross_entropy"
label_smoothing = 0.01
[metrics]
names = ["accuracy", "own.py:error_rate"]
[optimizer]
name = "AdamW"
lr = 0.05
[scheduler]
name = "CosineAnnealingLR"
[trainer]
max_grad_norm = 1
early_stopping = {patience = 5}
"""

OWN = """
import numus as nm
from numus import data, nn

def error_rate(out, y):
    return (nm.argmax(out, axis=-1) != y).mean(dtype=nm.float32)

def dataset():
    x = nm.random.normal((64, 2))
    return data.TensorDataset(x, (x[:, 0] > 0).astype(nm.int64))

class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

def not_a_model():
    return 3
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    with data.RecordWriter.create(tmp_path / "train.rrec") as writer:
        for x in rng.standard_normal((200, 2), dtype=np.float32):
            writer.write_record({"x": x, "y": int(x[0] > 0)})
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def train(folder, text, *arguments, allow=("own.py",)):
    (folder / "config.toml").write_text(text)
    allowed = [x for name in allow for x in ("--allow", name)]
    cli.main(["train", str(folder / "config.toml"), "--device", "cpu", *allowed, *arguments])


def refused(capsys, folder, text, *arguments, **options):
    """What is said about options that are wrong."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        train(folder, text, *arguments, **options)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("numus train: ")
    assert said.count("\n") == 1 or "load_state_dict" in said
    return said


def test_a_training(folder, capsys):
    train(folder, CONFIG)
    out = capsys.readouterr().out
    assert "val_accuracy" in out
    assert "epoch 3" in out
    rows = (folder / "out" / "epochs.csv").read_text().splitlines()
    names, last = rows[0].split(","), rows[-1].split(",")
    record = dict(zip(names, map(float, last), strict=True))
    assert record["val_accuracy"] > 0.9
    assert record["val_accuracy"] + record["val_error_rate"] == pytest.approx(1)
    assert (folder / "out" / "model.safetensors").exists()
    train(folder, CONFIG, "--epochs", "4")  # goes on
    assert len((folder / "out" / "epochs.csv").read_text().splitlines()) == 5


def test_code_beside_the_file(folder, capsys):
    train(
        folder,
        '[model]\nfactory = "own.py:Net"\nwidth = 8\n'
        '[data]\ntrain = "own.py:dataset"\n'
        '[loss]\nname = "cross_entropy"\n[run]\nepochs = 1\n[trainer]\nema = 0.9\n',
    )
    assert "epoch 1" in capsys.readouterr().out


BASE = {
    "model": "[model]\nfactory = 'own.py:Net'\nwidth = 4\n",
    "data": "[data]\ntrain = 'own.py:dataset'\n",
    "loss": "[loss]\nname = 'cross_entropy'\n",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "[model]\nfactory = 'own.py:Net'\nwidht = 4\n"}, "did you mean 'width'"),
        ({"model": "[model]\nfactory = 'own.py:Net'\n"}, "width is missing"),
        ({"model": "[model]\nfactory = 'own.py:Nett'\n"}, "own.py has no Nett"),
        ({"model": "[model]\nfactory = 'other.py:Net'\n"}, "there is no file"),
        ({"model": "[model]\nfactory = 'own.py:not_a_model'\n"}, "gives a int, not a module"),
        ({"model": "[model]\nlayers = [{type = 'Linaer'}]\n"}, "did you mean 'Linear'"),
        ({"model": "[model]\nlayers = ['ReLU']\n"}, "are tables such as"),
        ({"model": ""}, r"there is no table \[model\]"),
        ({"data": "[data]\ntrain = 'none.rrec'\n"}, "there is no .*none.rrec"),
        ({"data": "[data]\nbatch_size = 3\n"}, "train is missing"),
        ({"data": BASE["data"] + "batch_size = '3'\n"}, "is of type int, not '3'"),
        ({"data": BASE["data"] + "batchsize = 3\n"}, "did you mean 'batch_size'"),
        ({"data": BASE["data"] + "inputs = ['x']\n"}, "go together"),
        ({"data": BASE["data"] + "validation_share = 2\n"}, "between 0 and 1"),
        ({"loss": "[loss]\nname = 'crossentropy'\n"}, "did you mean 'cross_entropy'"),
        ({"optimizer": "[optimizer]\nname = 'Adamw'\n"}, "did you mean 'AdamW'"),
        ({"optimizer": "[optimizer]\nlearning_rate = 1\n"}, "not an option of AdamW"),
        ({"optimizer": "[optimizer]\nlr = -1\n"}, "AdamW: lr cannot be -1"),
        ({"scheduler": "[scheduler]\nname = 'OneCycleLR'\n"}, "max_lr is missing"),
        ({"trainer": "[trainer]\nearly_stopping = {patients = 2}\n"}, "did you mean 'patience'"),
        ({"metrics": "[metrics]\nnames = ['acuracy']\n"}, "did you mean 'accuracy'"),
        ({"optimiser": "[optimiser]\nlr = 1\n"}, "did you mean 'optimizer'"),
        ({"run": "run = 3\n"}, "run is a table"),
        ({"run": "[run\n"}, "is not TOML"),
    ],
)
def test_what_is_wrong_is_said(folder, capsys, change, said):
    parts = {**BASE, **change}
    text = "".join(parts[k] for k in sorted(parts, key=lambda k: k != "run"))
    assert re.search(said, refused(capsys, folder, text, "--epochs", "1"))


def test_no_such_file(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", str(tmp_path / "none.toml")])
    assert caught.value.code == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--epochs", "0"), "--epochs is at least 1, not 0"),
        (("--epochs", "-3"), "--epochs is at least 1, not -3"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_wrong_options_of_the_command(folder, capsys, arguments, said):
    assert said in refused(capsys, folder, "".join(BASE.values()), *arguments)


# -- code -----------------------------------------------------------------------------------------


MARK = "import pathlib\npathlib.Path({!r}).touch()\n"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("model", "[model]\nfactory = 'os:system'\ncommand = 'touch {mark}'\n"),
        ("model", "[model]\nfactory = 'subprocess:getoutput'\ncmd = 'touch {mark}'\n"),
        ("model", "[model]\nfactory = 'evil.py:f'\n"),
        ("model", "[model]\nfactory = '{mark}.py:f'\n"),
        ("model", "[model]\nfactory = 'numus.cli.explain:run'\nfile = 'evil.py'\n"),
        ("model", "[model]\nfactory = 'numus.cli.config:runpy'\n"),
        ("model", "[model]\nfactory = 'numus.png:write_png'\n"),
        ("model", "[model]\nlayers = [{{type = 'evil.py:f'}}]\n"),
        ("data", "[data]\ntrain = 'evil.py:f'\n"),
        ("data", "[data]\ntrain = 'evil:f'\n"),
        ("loss", "[loss]\nname = 'evil:f'\n"),
        ("metrics", "[metrics]\nnames = ['evil:f']\n"),
        ("optimizer", "[optimizer]\nname = 'evil:f'\n"),
        ("scheduler", "[scheduler]\nname = 'evil.py:f'\n"),
        ("model", "[model]\nfactory = ':f'\n"),
        ("model", "[model]\nfactory = '.evil:f'\n"),
    ],
)
def test_a_file_runs_no_code_that_was_not_allowed(folder, capsys, monkeypatch, key, text):
    mark = folder / "mark"
    for path in (folder / "evil.py", folder / "mark.py"):
        path.write_text(MARK.format(str(mark)) + "def f(**options):\n    pass\n")
    monkeypatch.chdir(folder)
    parts = {**BASE, key: text.format(mark=mark)}
    said = refused(capsys, folder, "".join(parts.values()), "--epochs", "1")
    assert any(words in said for words in ("--allow", "is no layer", "neither a module"))
    assert not mark.exists()


def test_modules_that_are_allowed(folder, capsys, monkeypatch):
    (folder / "my_models").mkdir()
    (folder / "my_models" / "__init__.py").write_text(OWN)
    (folder / "my_models" / "nets.py").write_text("from my_models import Net\n")
    monkeypatch.chdir(folder)
    text = "".join(BASE.values()).replace("own.py:Net", "my_models.nets:Net")
    train(folder, text.replace("own.py", "my_models"), "--epochs", "1", allow=("my_models",))
    assert "epoch 1" in capsys.readouterr().out
    other = text.replace("my_models.nets", "my_models_of_others")
    assert "--allow my_models_of_others" in refused(
        capsys, folder, other, allow=("own.py", "my_models")
    )
    train(folder, "".join(BASE.values()), "--epochs", "1", allow=(str(folder / "own.py"),))


def test_names_of_numus_need_no_permission(folder, capsys):
    text = (
        "[model]\nfactory = 'numus.nn:Linear'\nin_features = 2\nout_features = 2\n"
        "[data]\ntrain = 'train.rrec'\ninputs = ['x']\ntarget = 'y'\n"
        "[loss]\nname = 'numus.nn.functional:cross_entropy'\n"
        "[optimizer]\nname = 'numus.optim:SGD'\nlr = 0.1\n"
    )
    train(folder, text, "--epochs", "1", allow=())
    assert "epoch 1" in capsys.readouterr().out


# -- values ---------------------------------------------------------------------------------------

PLAIN = {
    "run": {"epochs": 1},
    "model": {"layers": [{"type": "Linear", "in_features": 2, "out_features": 2}]},
    "data": {"train": "train.rrec", "inputs": ["x"], "target": "y"},
    "loss": {"name": "cross_entropy"},
}


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("run", {"seed": 1 << 70}),
        ("run", {"device": "abacus"}),
        ("data", {"batch_size": 0}),
        ("data", {"batch_size": -4}),
        ("data", {"batch_size": 300, "drop_last": True}),
        ("data", {"num_workers": -1}),
        ("data", {"inputs": ["z"]}),
        ("data", {"inputs": [3]}),
        ("data", {"target": "why"}),
        ("data", {"train": "."}),
        ("data", {"train": "bad.rrec"}),
        ("data", {"validation_share": 1e-9}),
        ("model", {"layers": []}),
        ("model", {"layers": [{"type": "Linear", "in_features": -1, "out_features": 2}]}),
        ("model", {"layers": [{"type": "Linear", "in_features": "a", "out_features": 2}]}),
        ("model", {"layers": [{"type": "Linear", "in_features": 3, "out_features": 2}]}),
        ("model", {"layers": [{"type": "Linear", "in_features": 1 << 60, "out_features": 2}]}),
        ("loss", {"label_smoothing": "x"}),
        ("loss", {"label_smoothin": 0.1}),
        ("loss", {"reduction": "middle"}),
        ("optimizer", {"betas": 3}),
        ("optimizer", {"lr": "fast"}),
        ("scheduler", {"name": "StepLR", "step_size": 0}),
        ("scheduler", {"name": "StepLR", "step_size": 1, "every": "day"}),
        ("metrics", {"names": [3]}),
        ("trainer", {"precision": "f7"}),
        ("trainer", {"accumulate": 0}),
        ("trainer", {"ema": 2.0}),
        ("trainer", {"max_grad_norm": "x"}),
        ("trainer", {"checkpoint_every": 0}),
        ("trainer", {"early_stopping": {"patience": 0}}),
        ("trainer", {"early_stopping": {"monitor": "nothing"}}),
    ],
)
def test_wrong_values_are_messages(folder, capsys, table, values):
    (folder / "bad.rrec").write_bytes(b"RREC" + b"x" * 100)
    tables = {**PLAIN, table: {**PLAIN.get(table, {}), **values}}
    text = "".join(
        f"[{name}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in entries.items())
        for name, entries in tables.items()
    )
    (folder / "config.toml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", str(folder / "config.toml")])
    assert caught.value.code == 2
    assert "config.toml" in capsys.readouterr().err


def test_folders_that_cannot_be_written_are_messages(folder, capsys):
    (folder / "out").write_text("a file")
    with pytest.raises(SystemExit, match=r"out/steps\.jsonl was not written"):
        train(folder, CONFIG)


def test_bench_measures(capsys):
    cli.main(["bench", "softmax", "--seconds", "0.01"])
    out = capsys.readouterr().out
    assert "softmax" in out
    assert "matmul" not in out
    with pytest.raises(SystemExit, match="none of"):
        cli.main(["bench", "nothing"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bench softmax --device abacus", "abacus"),
        ("bench softmax --seconds -1", "-1 is not a number of seconds"),
        ("bench softmax --seconds nan", "nan is not a number of seconds"),
        ("demo --device abacus", "abacus"),
        ("demo --steps 0", "0 is not a number of at least 1"),
    ],
)
def test_wrong_options_of_other_commands(capsys, arguments, said):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_demo_without_a_folder_does_not_begin(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SystemExit, match="numus demo: --out"):
        cli.main(["demo", "--out", str(tmp_path / "out" / "inside")])
