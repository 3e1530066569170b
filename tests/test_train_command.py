"""`numus train`: configurations that are followed, and what is said of those that cannot be."""

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


def train(folder, text, *arguments):
    (folder / "config.toml").write_text(text)
    cli.main(["train", str(folder / "config.toml"), "--device", "cpu", *arguments])


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
def test_what_is_wrong_is_said(folder, change, said):
    parts = {**BASE, **change}
    text = "".join(parts[k] for k in sorted(parts, key=lambda k: k != "run"))
    with pytest.raises(SystemExit, match=said):
        train(folder, text, "--epochs", "1")


def test_no_such_file(tmp_path):
    with pytest.raises(SystemExit, match="cannot be read"):
        cli.main(["train", str(tmp_path / "none.toml")])


def test_bench_measures(capsys):
    cli.main(["bench", "softmax", "--seconds", "0.01"])
    out = capsys.readouterr().out
    assert "softmax" in out
    assert "matmul" not in out
    with pytest.raises(SystemExit, match="none of"):
        cli.main(["bench", "nothing"])
