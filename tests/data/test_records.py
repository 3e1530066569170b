"""Record files: what is written is read, and damage is told."""

import pickle
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import numus as nm
from numus.data import DataLoader, RecordDataset, RecordWriter, Subset
from numus.errors import RecordError, ShapeError

EXAMPLES = [
    b"raw bytes",
    b"",
    {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": 3, "name": "six"},
    (nm.asarray([1.5, 2.5], dtype="bf16"), [None, True, 1e-300], {"nested": b"\0\1"}),
    np.zeros((0, 4), np.int8),
    np.float64(2.5),
    nm.asarray([1 + 2j]),
]


def written(path, examples):
    with RecordWriter.create(path) as writer:
        for example in examples:
            writer.write_record(example)
    return path


def same(found, wrote):
    if isinstance(wrote, (nm.Tensor, np.ndarray, np.generic)):
        wrote = np.asarray(wrote)
        assert found.dtype == wrote.dtype
        np.testing.assert_array_equal(found, wrote)
    elif isinstance(wrote, dict):
        assert list(found) == list(wrote)
        for key in wrote:
            same(found[key], wrote[key])
    elif isinstance(wrote, (tuple, list)):
        assert type(found) is type(wrote)
        for a, b in zip(found, wrote, strict=True):
            same(a, b)
    else:
        assert found == wrote
        assert type(found) is type(wrote)


def test_everything_comes_back(tmp_path):
    data = RecordDataset.open(written(tmp_path / "a.rrec", EXAMPLES))
    assert len(data) == len(EXAMPLES)
    for i in (3, 0, 6, 1, 2, 5, 4, -1):
        same(data.get(i), EXAMPLES[i])
    for found, wrote in zip(data, EXAMPLES, strict=True):
        same(found, wrote)
    with pytest.raises(IndexError, match="no record 7 among 7"):
        data[7]
    assert len(pickle.loads(pickle.dumps(data))) == len(data)


def test_layout(tmp_path):
    path = written(tmp_path / "a.rrec", [b"abc", b"defg"])
    raw = path.read_bytes()
    assert raw[:4] == b"RREC"
    version, count, index_at = struct.unpack_from("<IQQ", raw, 4)
    assert (version, count) == (1, 2)
    assert struct.unpack_from("<2Q", raw, index_at) == (64, 64 + 16 + 16)
    assert len(raw) == index_at + 16
    assert len(RecordDataset(written(tmp_path / "none.rrec", []))) == 0


def test_arrays_are_views_of_the_file(tmp_path):
    data = RecordDataset(written(tmp_path / "a.rrec", [np.arange(4.0)]))
    array = data[0]
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_threads_read_at_once(tmp_path):
    data = RecordDataset(written(tmp_path / "a.rrec", [np.full(100, i) for i in range(50)]))
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda i: int(data[i].sum()), list(range(50)) * 10))
    assert sums == [100 * i for i in range(50)] * 10


def test_an_interrupted_writer_is_recovered(tmp_path):
    path = tmp_path / "a.rrec"

    def interrupted():
        with RecordWriter.create(path) as writer:
            for i in range(5):
                writer.write_record({"i": i})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(RecordError, match="not finished by its writer"):
        RecordDataset(path)
    (part,) = tmp_path.iterdir()
    with open(part, "ab") as file:
        file.write(b"half of a record")
    assert RecordWriter.recover(path) == 5
    assert list(tmp_path.iterdir()) == [path]
    assert [r["i"] for r in RecordDataset(path)] == list(range(5))
    assert RecordWriter.recover(path) == 5  # a finished file stays as it is
    with RecordWriter.append(path) as writer:
        writer.write_record({"i": 5})
    assert [r["i"] for r in RecordDataset(path)] == list(range(6))


def test_readers_keep_what_they_opened(tmp_path):
    path = written(tmp_path / "a.rrec", [np.full(5000, i) for i in range(4)])
    before = RecordDataset(path)
    with RecordWriter.create(path) as writer:
        writer.write_record(b"other")
        assert len(RecordDataset(path)) == 4  # until it is finished
    replaced = RecordDataset(path)
    with RecordWriter.append(path) as writer:
        for i in range(300):
            writer.write_record({"i": i})
        assert list(RecordDataset(path)) == [b"other"]
    assert [int(x[-1]) for x in before] == [0, 1, 2, 3]
    assert list(replaced) == [b"other"]
    assert len(RecordDataset(path)) == 301
    assert [p.name for p in tmp_path.iterdir()] == ["a.rrec"]


def test_what_an_interrupted_append_flushed_is_recovered(tmp_path):
    path = written(tmp_path / "a.rrec", [{"i": 0}, {"i": 1}])
    for i in (2, 3):
        with RecordWriter.append(path) as writer:
            writer.write_record({"i": i})
    writer = RecordWriter.append(path)
    writer.write_record({"i": 4})
    writer.flush()
    with pytest.raises(RecordError, match="another RecordWriter"):
        RecordWriter.append(path)
    writer.write_record({"i": 5})
    writer.close()
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 3)
    assert [r["i"] for r in RecordDataset(path)] == [0, 1, 2, 3]  # the file that was finished
    whole = path.read_bytes()
    assert RecordWriter.recover(path) == 5
    assert [r["i"] for r in RecordDataset(path)] == [0, 1, 2, 3, 4]
    path.write_bytes(whole[:8] + b"\xff" + whole[9:])  # with the header lost
    assert RecordWriter.recover(path) == 5
    assert [r["i"] for r in RecordDataset(path)] == [0, 1, 2, 3, 4]


def test_appending_many_times_takes_room_for_the_records_alone(tmp_path):
    path = written(tmp_path / "a.rrec", [])
    for i in range(100):
        with RecordWriter.append(path) as writer:
            writer.write_record(bytes([i]))
    assert list(RecordDataset(path)) == [bytes([i]) for i in range(100)]
    assert path.stat().st_size < 3 * 100 * 40


def test_two_writers_of_one_file(tmp_path):
    path = tmp_path / "a.rrec"
    writers = [RecordWriter.create(path) for _ in range(2)]
    for name, writer in zip((b"one", b"two"), writers, strict=True):
        writer.write_record(name)
    writers[0].finish()
    assert list(RecordDataset(path)) == [b"one"]
    writers[1].finish()
    assert list(RecordDataset(path)) == [b"two"]


@pytest.mark.parametrize("cut", [0, 10, 63, 64, 70, 100, 150, -1])
def test_a_cut_file_is_told_and_recovered(tmp_path, cut):
    path = written(tmp_path / "a.rrec", [np.arange(3), b"x" * 20, {"y": 1}])
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with pytest.raises(RecordError, match=r"cut off|is not a record file"):
        RecordDataset(path)
    if cut >= 4 or cut < 0:
        kept = RecordWriter.recover(path)
        assert kept == {10: 0, 63: 0, 64: 0, 70: 0, 100: 0, 150: 1, -1: 3}[cut]
        assert len(RecordDataset(path)) == kept


def test_damage_is_told(tmp_path):
    path = written(tmp_path / "a.rrec", [b"abcdef", b"ghijkl", b"mnopqr"])
    whole = path.read_bytes()

    def damaged(at):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        return path

    with pytest.raises(RecordError, match="header is damaged"):
        RecordDataset(damaged(9))
    with pytest.raises(RecordError, match="index is damaged"):
        RecordDataset(damaged(len(whole) - 3))
    data = RecordDataset(damaged(whole.index(b"ghijkl")))
    assert data[0] == b"abcdef"
    with pytest.raises(RecordError, match="record 1 is damaged"):
        data[1]
    assert RecordDataset(path, verify=False)[1] == b"ghijkl".replace(b"g", b"f")
    assert RecordWriter.recover(path) == 2
    assert list(RecordDataset(path)) == [b"abcdef", b"mnopqr"]
    path.write_bytes(b"PK\3\4" + whole[4:])
    with pytest.raises(RecordError, match="begins with"):
        RecordDataset(path)


def test_what_cannot_be_written(tmp_path):
    writer = RecordWriter.create(tmp_path / "a.rrec")
    with pytest.raises(TypeError, match="not a set"):
        writer.write_record({"x": {1, 2}})
    with pytest.raises(TypeError, match="strings for keys"):
        writer.write_record({1: 2})
    writer.write_record({"x": 1})
    writer.finish()
    writer.finish()
    with pytest.raises(ValueError, match="is finished"):
        writer.write_record(b"")
    assert len(RecordDataset(tmp_path / "a.rrec")) == 1


# -- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5, 8, 700, 40_000])
def test_batches_are_what_records_are(tmp_path, size):
    rng = np.random.default_rng(0)
    examples = [
        {
            "x": rng.normal(size=(2, size)).astype("f4"),
            "y": (i % 3, [f"n{i % 2}", i * 0.5, None is i]),
        }
        for i in range(10)
    ]
    path = tmp_path / "a.rrec"
    written(path, examples)
    for records in (RecordDataset.open(path), RecordDataset.open(path, verify=False)):
        for places in ([0, 1, 2], [9, -1, 3, 3], [4]):
            batch = records.get_batch(places)
            chosen = [examples[i] for i in places]
            assert np.array_equal(batch["x"], np.stack([e["x"] for e in chosen]))
            assert batch["y"][0].tolist() == [e["y"][0] for e in chosen]
            assert batch["y"][1][0] == [e["y"][1][0] for e in chosen]
            assert batch["y"][1][1].tolist() == [e["y"][1][1] for e in chosen]


def test_batches_of_unlike_records(tmp_path):
    written(tmp_path / "a.rrec", [b"abcd", b"efgh", b"ijkl"])
    assert RecordDataset.open(tmp_path / "a.rrec").get_batch([2, 0]) == [b"ijkl", b"abcd"]
    written(tmp_path / "b.rrec", [{"n": 1, "b": b"12"}, {"n": 2, "b": b"34"}])
    assert RecordDataset.open(tmp_path / "b.rrec").get_batch([0, 1])["b"] == [b"12", b"34"]
    written(tmp_path / "c.rrec", [{"n": 1}, {"n": 2.5}])
    with pytest.raises(IndexError, match="no record 7"):
        RecordDataset.open(tmp_path / "c.rrec").get_batch([0, 7])
    written(tmp_path / "d.rrec", [np.zeros(2), np.zeros(3)])
    with pytest.raises(ShapeError, match="do not stack"):
        RecordDataset.open(tmp_path / "d.rrec").get_batch([0, 1])


def test_batches_of_parts_of_a_file(tmp_path):
    written(tmp_path / "a.rrec", [{"i": np.int32(i)} for i in range(8)])
    part = Subset(Subset(RecordDataset.open(tmp_path / "a.rrec"), range(2, 8)), [5, 0])
    (batch,) = DataLoader(part, batch_size=2)
    assert batch["i"].tolist() == [7, 2]


def test_damage_is_found_in_batches(tmp_path):
    path = tmp_path / "a.rrec"
    written(path, [np.arange(64, dtype="u1") + i for i in range(4)])
    content = bytearray(path.read_bytes())
    at = content.find(bytes(range(2, 66)))
    content[at + 5] ^= 1
    path.write_bytes(content)
    records = RecordDataset.open(path)
    records.get_batch([0, 1])
    with pytest.raises(RecordError, match="record 2 is damaged"):
        records.get_batch([1, 2])
    assert RecordDataset.open(path, verify=False).get_batch([2]).shape == (1, 64)


def test_every_flipped_bit_of_a_record_is_found(tmp_path):
    path = tmp_path / "a.rrec"
    written(path, [{"x": np.arange(5, dtype="f4") + i, "y": i} for i in range(6)])
    whole = path.read_bytes()
    at = int(np.frombuffer(whole, "<u8", 6, len(whole) - 48)[3])  # where record 3 begins
    length = int.from_bytes(whole[at : at + 8], "little")
    for place in [*range(at, at + 12), *range(at + 16, at + 16 + length)]:
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        for read in (lambda r: r[3], lambda r: r.get_batch([3, 0]), lambda r: r.__getitems__([3])):
            with pytest.raises(RecordError, match="record 3"):
                read(RecordDataset.open(path))
        assert RecordDataset.open(path).get_batch([2, 4])["y"].tolist() == [2, 4]


def test_records_of_many_forms(tmp_path):
    examples = [
        {"x": np.arange(i // 3, dtype="i8"), "n": 10**30 if i == 7 else i} for i in range(300)
    ]
    written(tmp_path / "a.rrec", examples)
    records = RecordDataset.open(tmp_path / "a.rrec")
    for i in range(0, 300, 3):
        if i == 6:
            with pytest.raises(TypeError, match="not all numbers"):
                records.get_batch(range(i, i + 3))
            continue
        batch = records.get_batch(range(i, i + 3))
        assert batch["x"].shape == (3, i // 3)
        assert batch["n"].tolist() == [i, i + 1, i + 2]
    with pytest.raises(ValueError, match="no records"):
        records.get_batch([])


class Decoded(RecordDataset):
    """What a user makes of raw bytes."""

    def __getitem__(self, index):
        return np.frombuffer(super().__getitem__(index), "<i4")


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_decoder_of_ones_own(tmp_path, kind):
    written(tmp_path / "a.rrec", [np.full(3, i, "<i4").tobytes() for i in range(7)])
    loader = DataLoader(Decoded(tmp_path / "a.rrec"), 3, num_workers=1, worker_type=kind)
    assert [b[:, 0].tolist() for b in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    plain = RecordDataset.open(tmp_path / "a.rrec")
    joined = DataLoader(plain, 4, collate_fn=lambda xs: np.frombuffer(b"".join(xs), "<i4"))
    assert [len(b) for b in joined] == [12, 9]


def test_a_damaged_neighbour_is_not_everybodys(tmp_path):
    path = written(tmp_path / "a.rrec", [{"x": np.arange(4), "y": i} for i in range(50)])
    whole = RecordDataset.open(path)
    at = int(whole._index[17]) + 40
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    damaged = RecordDataset.open(path)
    assert damaged.get_batch([16, 18])["y"].tolist() == [16, 18]
    with pytest.raises(RecordError, match="record 17 is damaged"):
        damaged.get_batch([16, 17])
    assert damaged.get_batch([0, 49])["y"].tolist() == [0, 49]
    unchecked = RecordDataset.open(path, verify=False)
    head = int(whole._index[20]) + 16
    data[head] = 9  # no kind of record
    path.write_bytes(data)
    assert unchecked.get_batch([19, 21])["y"].tolist() == [19, 21]
    with pytest.raises(RecordError, match="record 20"):
        unchecked.get_batch([20])


def test_batches_of_words_alone(tmp_path):
    data = RecordDataset.open(written(tmp_path / "a.rrec", [{"a": "x"}, {"a": "y"}, {}, {}]))
    assert data.get_batch([1, 0, 1]) == {"a": ["y", "x", "y"]}
    assert data.get_batch([2, 3]) == {}
    assert data.get_batch([0, 1])["a"] == ["x", "y"]
