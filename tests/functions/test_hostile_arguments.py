"""Arguments that nobody means: endless sequences, indices beyond 64 bits, a million threads."""

import numpy as np
import pytest

import numus as nm
from numus.config import default_threads
from numus.errors import IndexRangeError, ShapeError

HUGE = np.array([2**63 + 3], np.uint64)


def of_itself(times, *others):
    made = list(others)
    made.extend([made] * times)
    return made


def nested(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


ENDLESS = {
    "itself": lambda: of_itself(1, 1.0),
    "itself many times": lambda: of_itself(1000),
    "with a tensor": lambda: of_itself(2, nm.ones(1)),
    "in a tuple": lambda: (of_itself(1, 1),),
    "65 deep": lambda: nested(65, 1.0),
    "100,000 deep": lambda: nested(100_000, 1.0),
    "a tensor 3,000 deep": lambda: nested(3_000, nm.ones(1)),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_sequences(name):
    made = ENDLESS[name]()
    x = nm.arange(4.0)
    with pytest.raises(ShapeError, match="hold themselves"):
        nm.asarray(made)
    with pytest.raises(ShapeError, match="hold themselves"):
        x[made if isinstance(made, list) else [made]]
    with pytest.raises(ShapeError, match="hold themselves"):
        x[0] = made
    with pytest.raises(ShapeError, match="zeros"):
        nm.zeros(made)
    if not name.startswith("65"):
        with pytest.raises(ValueError, match="hold themselves"):
            nm.tree.leaves(made)
        with pytest.raises(ValueError, match="hold themselves"):
            nm.jit(lambda a: x)(made)


def test_deep_sequences_of_numbers():
    assert nm.asarray(nested(64, 1.0)).ndim == 64
    rows = [[1, 2]] * 3  # the same row, three times
    assert nm.asarray([rows, rows]).shape == (2, 3, 2)


READS = {
    "x[i]": lambda x, i: x[i],
    "take": nm.take,
    "gather": lambda x, i: nm.gather(x, 0, i),
    "take_along_axis": lambda x, i: nm.take_along_axis(x, i, 0),
    "embedding_lookup": lambda x, i: nm.embedding_lookup(x.reshape(-1, 1), i)[0],
}


@pytest.mark.parametrize("name", READS)
def test_indices_beyond_int64(name):
    """They are checked where their values are known; elsewhere they clamp as other indices do."""
    x = nm.arange(10.0)
    for index in (HUGE, nm.asarray(HUGE)):
        with pytest.raises(IndexRangeError, match="9223372036854775811"):
            READS[name](x, index)
    pending = nm.asarray(HUGE) + nm.zeros(1, dtype=nm.uint64)
    assert READS[name](x, pending).tolist() == [9]
    assert nm.jit(READS[name])(x, nm.asarray(HUGE)).tolist() == [9]


def test_writes_at_indices_beyond_int64():
    x, index = nm.arange(4.0), nm.asarray(HUGE)
    with pytest.raises(IndexRangeError):
        x[index] = 5.0
    written = nm.jit(lambda x, i: nm.index_put(x, (i,), nm.ones(1)))(x, index)
    assert written.tolist() == [0, 1, 2, 3]
    assert nm.segment_sum(nm.ones(1), index, 3).tolist() == [0, 0, 0]
    assert nm.bincount(index, length=3).tolist() == [0, 0, 0]
    with pytest.raises(ShapeError, match="more than any memory"):
        nm.bincount(index)


@pytest.mark.parametrize("count", [0, -1, 10**6, 2**70, nm.asarray(10**6)], ids=str)
def test_absurd_numbers_of_threads(count):
    before = nm.get_num_threads()
    with pytest.raises(ValueError, match="from 1 to 1024"):
        nm.set_num_threads(count)
    with pytest.raises(TypeError, match="integer"):
        nm.set_num_threads(1.5)
    assert nm.get_num_threads() == before
    with pytest.raises(ValueError, match="from 0 to 1024"):
        nm.data.DataLoader([1, 2], num_workers=10**6)


@pytest.mark.parametrize("given", ["1000000", "many", "0"])
def test_absurd_threads_in_the_environment(given, monkeypatch):
    monkeypatch.setenv("NUMUS_NUM_THREADS", given)
    with pytest.raises(ValueError, match="NUMUS_NUM_THREADS must be"):
        default_threads()


def test_batches_of_dicts_with_other_keys():
    batches = nm.data.DataLoader([{"x": 1, "y": 2}, {"x": 1}], batch_size=2)
    with pytest.raises(ShapeError, match=r"other keys: example 0 has .*'y'.*example 1 .*'x'"):
        next(iter(batches))
    with pytest.raises(ShapeError, match="other keys"):
        nm.data.default_collate([{"x": 1}, {"x": 1, "y": 2}])
    with pytest.raises(ShapeError, match="example 1 int"):
        nm.data.default_collate([{"x": 1}, 3])
    with pytest.raises(ShapeError, match=r"\['x'\] have other keys"):
        nm.data.default_collate([{"x": {"a": 1}}, {"x": {"b": 1}}])
    with pytest.raises(ValueError, match="hold themselves"):
        nm.data.default_collate([of_itself(1), of_itself(1)])
