"""Files that were damaged, that lie, or whose writers were killed; the tools have longer runs."""

import json
import os
import sys

import numpy as np
import pytest

from numus import data, nn
from numus.errors import RecordError
from tools.crash_files import KINDS, crash
from tools.fuzz_files import compare, fuzz


def test_bad_files_are_rejected_or_read():
    found = fuzz(400, seed=1)
    assert found["rejected"] > 200
    assert sum(found.values()) == 400


def test_what_the_package_refuses_is_refused():
    found = compare(600, seed=1)
    assert found["both refuse"] > 200
    assert found["both read"] > 40


@pytest.mark.slow
def test_what_the_package_refuses_is_refused_in_many_files():
    compare(50_000, seed=2)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork server")
@pytest.mark.parametrize("kind", KINDS)
def test_what_killed_writers_leave_can_be_read(kind):
    assert crash(kind, 2 if kind == "trainings" else 5, seed=2) > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no fork server")
@pytest.mark.parametrize("kind", KINDS)
def test_what_200_killed_writers_leave_can_be_read(kind):
    times = 50 if kind == "trainings" else 200
    assert crash(kind, times, seed=3) > times // 2


def test_forged_index_is_rejected(tmp_path):
    tensors = {f"t{i}": np.full(100, i, np.float32) for i in range(4)}
    nn.save_safetensors(tensors, tmp_path / "m.safetensors", max_shard_size=500)
    index = tmp_path / "m.safetensors.index.json"
    good = json.loads(index.read_text())
    for lie in ("../../etc/passwd", "none.safetensors", "", 3):
        index.write_text(json.dumps({**good, "weight_map": {**good["weight_map"], "t0": lie}}))
        with pytest.raises(RecordError):
            nn.load_safetensors(index)
    index.write_text("[" * 100_000)
    with pytest.raises(RecordError, match="not an index"):
        nn.load_safetensors(index)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def safetensors_file(path, entries, data, pad=0):
    """A file whose header has these entries, in pairs."""
    text = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in entries) + "}"
    head = text.encode() + b" " * pad
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return path


@pytest.mark.parametrize(
    ("entries", "size", "said"),
    [
        ([("a", ENTRY), ("a", ENTRY)], 8, "'a' appears 2 times"),
        ([("__metadata__", {}), ("__metadata__", {}), ("a", ENTRY)], 8, "appears 2 times"),
        ([("__metadata__", {"n": 1}), ("a", ENTRY)], 8, "must map names to strings"),
        ([("a", {**ENTRY, "data_offsets": [8, 16]})], 16, "the header and a have 8 bytes between"),
        ([("a", ENTRY)], 9, "has 1 bytes after its last tensor"),
        ([], 1, "has 1 bytes after"),
        ([("a", {**ENTRY, "data_offsets": [0, 8.0]})], 8, "cannot be read"),
        ([("\ud800", ENTRY)], 8, "cannot be read"),
    ],
)
def test_files_that_the_format_forbids(tmp_path, entries, size, said):
    path = safetensors_file(tmp_path / "a.safetensors", entries, bytes(size))
    with pytest.raises(RecordError, match=said):
        nn.load_safetensors(path)


def test_headers_that_are_too_large_are_not_read(tmp_path):
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:  # sparse: it takes no room
        file.write((2 << 30).to_bytes(8, "little") + b"{}")
        file.truncate(8 + (2 << 30))
    with pytest.raises(RecordError, match="2147483648 bytes is too large"):
        nn.load_safetensors(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders")
def test_pipes_and_folders_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (nn.load_safetensors, nn.load_checkpoint, data.RecordDataset.open):
        with pytest.raises((RecordError, OSError), match="not a regular file"):
            read(tmp_path / "pipe")


def test_overlapping_tensors_are_rejected(tmp_path):
    path = tmp_path / "a.safetensors"
    entries = {"a": [0, 8], "b": [4, 12]}
    head = {n: {"dtype": "F32", "shape": [2], "data_offsets": at} for n, at in entries.items()}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(RecordError, match="a and b overlap"):
        nn.load_safetensors(path)
