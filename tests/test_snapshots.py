"""Kernels of a fixed set of graphs, kept as text in tests/snapshots.

A change to the compiler that alters them shows it here. Where it was meant, write them anew with
`pytest tests/test_snapshots.py --update-snapshots` and look at the difference. They are the null
device's kernels: the same on every machine.
"""

import pathlib

import numpy as np
import pytest

import numus as nm

FOLDER = pathlib.Path(__file__).parent / "snapshots"
NULL = nm.device("null")


def given(*shape, dtype="float32"):
    return nm.asarray(np.zeros(shape, dtype), device=NULL)


def gradients(function, *tensors):
    xs = [x.detach() for x in tensors]
    for x in xs:
        x.requires_grad = True
    y = function(*xs)
    y.backward(given(*y.shape))
    return [x.grad for x in xs]


def adam(p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (nm.sqrt(v) + 1e-8), m, v


def convolution(x, w):
    """One channel in the last axis, windows of three, as one contraction."""
    return nm.einsum("blk,ok->bol", x.unfold(1, 3, 1), w)


GRAPHS = {
    "map": lambda: nm.relu(given(1000) * 2 + 1).sqrt(),
    "map_broadcast": lambda: given(5, 7) * given(7) + given(5, 1),
    "map_transposed": lambda: given(64, 48) + given(48, 64).T,
    "map_float16": lambda: nm.tanh(given(1000, dtype="float16")),
    "adam": lambda: adam(*(given(1000) for _ in range(4))),
    "sum_long": lambda: nm.relu(given(1_000_000) * 2 + 1).sum(),
    "sum_of_columns": lambda: given(500, 33).sum(0),
    "softmax": lambda: nm.softmax(given(64, 128)),
    "mean_and_variance": lambda: given(64, 128).var_mean(-1),
    "layer_norm": lambda: nm.layer_norm(given(64, 128), given(128), given(128)),
    "layer_norm_backward": lambda: gradients(nm.layer_norm, given(64, 128), given(128), given(128)),
    "attention": lambda: nm.scaled_dot_product_attention(
        *(given(2, 64, 32) for _ in range(3)), is_causal=True
    ),
    "linear_gelu": lambda: nm.gelu(given(64, 128) @ given(128, 96) + given(96)),
    "convolution": lambda: convolution(given(4, 100), given(8, 3)),
    "embedding_backward": lambda: gradients(
        lambda w: w[nm.asarray(np.arange(6).reshape(2, 3), device=NULL)], given(10, 8)
    ),
    "pad_reflect": lambda: nm.pad(given(20, 30), 3, "reflect") * 2,
    "cumsum": lambda: nm.cumsum(given(30, 40), 1),
    "sort": lambda: nm.sort(given(30, 40)),
    "dropout": lambda: nm.random.dropout(given(64, 128), 0.5, key=nm.random.key(0, device=NULL)),
}


def kernels(name):
    """The text of the kernels that a graph launches."""
    null = NULL.runtime
    null.reset()
    nm.eval(GRAPHS[name]())
    return "\n".join(f"# {p.name}\n{p.source}" for p in null.launched)


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_as_before(name, request):
    path = FOLDER / f"{name}.txt"
    found = kernels(name)
    if request.config.getoption("--update-snapshots"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found)
    assert path.exists(), "no snapshot yet: write it with --update-snapshots"
    assert found == path.read_text()


def test_no_snapshot_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(GRAPHS)
