"""Generators that count their draws: NumPy's interface over keys."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import numus as nm


def rng(seed=0):
    return nm.random.default_rng(seed)


def test_draws_differ_and_come_again():
    first, again = rng(), rng()
    a, b = first.normal(size=4), first.normal(size=4)
    assert a.tolist() == again.normal(size=4).tolist()
    assert a.tolist() != b.tolist()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_go_on_from_the_same_draw(copied):
    one = rng(3)
    one.random()
    assert copied(one).random(3).tolist() == one.random(3).tolist()


def test_spawned_generators_are_independent():
    a, b = rng(1).spawn(2)
    assert a.random(4).tolist() != b.random(4).tolist()


def test_integers_of_all_of_uint64():
    found = rng().integers(0, 2**64, 500, dtype=nm.uint64).numpy()
    assert found.dtype == np.uint64
    assert (found >> 63).mean() == pytest.approx(0.5, abs=0.15)


def test_integers_of_ranges_that_broadcast():
    found = rng().integers([0, 10], [10, 20], size=(100, 2)).numpy()
    assert found.dtype == np.int64
    assert (found[:, 0] < 10).all()
    assert ((found[:, 1] >= 10) & (found[:, 1] < 20)).all()
    assert set(rng().integers(1, 3, 50, endpoint=True).tolist()) == {1, 2, 3}
    with pytest.raises(ValueError, match="low >= high"):
        rng().integers(3, 3)


def test_distributions_take_the_names_of_numpy():
    for name in ("normal", "gamma", "poisson", "triangular", "binomial"):
        theirs = getattr(np.random.Generator, name).__doc__.split("(", 1)[1].split(")")[0]
        names = [p.split("=")[0].strip() for p in theirs.split(",")][:-1]
        values = {"left": 0.0, "mode": 0.5, "right": 1.0, "n": 4, "p": 0.5, "shape": 2.0}
        given = {n: values.get(n, 1.0) for n in names if n not in ("size", "dtype", "out")}
        assert getattr(rng(), name)(**given, size=3).shape == (3,)
    with pytest.raises(TypeError, match="takes loc, scale and size"):
        rng().normal(mean=1.0)
    assert "size" in inspect.signature(nm.random.Generator.random).parameters


def test_shuffle_and_permuted_keep_the_elements():
    x = nm.arange(10)
    rng().shuffle(x)
    assert sorted(x.tolist()) == list(range(10))
    items = list("abc")
    rng(5).shuffle(items)
    assert sorted(items) == ["a", "b", "c"]
    rows = rng().permuted(nm.reshape(nm.arange(6), (2, 3)), axis=1)
    assert nm.sort(rows, axis=1).tolist() == [[0, 1, 2], [3, 4, 5]]
