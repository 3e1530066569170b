"""Files that were damaged, that lie, or whose writers were killed; the tools have longer runs."""

import json
import sys

import numpy as np
import pytest

from numus import nn
from numus.errors import RecordError
from tools.crash_files import KINDS, crash
from tools.fuzz_files import fuzz


def test_bad_files_are_rejected_or_read():
    found = fuzz(400, seed=1)
    assert found["rejected"] > 200
    assert sum(found.values()) == 400


@pytest.mark.skipif(sys.platform == "win32", reason="no fork server")
@pytest.mark.parametrize("kind", KINDS)
def test_what_killed_writers_leave_can_be_read(kind):
    assert crash(kind, 6, seed=2) > 0


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


def test_overlapping_tensors_are_rejected(tmp_path):
    path = tmp_path / "a.safetensors"
    entries = {"a": [0, 8], "b": [4, 12]}
    head = {n: {"dtype": "F32", "shape": [2], "data_offsets": at} for n, at in entries.items()}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(RecordError, match="a and b overlap"):
        nn.load_safetensors(path)
