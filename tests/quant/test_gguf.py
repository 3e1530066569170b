"""GGUF files: what is written is read, and nothing in a damaged file is trusted."""

import random
import struct

import numpy as np
import pytest

import numus as nm

METADATA = {"general.architecture": "llama", "n": 5, "neg": -3, "big": 1 << 40, "x": 0.5}
METADATA |= {"flag": True, "list": [1, 2, 3], "names": ["a", "bé"], "none": []}


@pytest.fixture
def file(tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    tensors = {kind: nm.quant.quantize(nm.asarray(x), kind) for kind in ("q4_0", "q8_0", "q6_k")}
    tensors["plain"] = nm.asarray(x)
    tensors["half"] = nm.asarray(x).astype(nm.float16)
    tensors["brain"] = nm.asarray(x).astype(nm.bfloat16)
    tensors["empty"] = nm.zeros((0, 3))
    path = tmp_path / "model.gguf"
    nm.quant.save_gguf(path, tensors, METADATA)
    return path, tensors


def test_round_trip(file):
    path, tensors = file
    found, metadata = nm.quant.load_gguf(path)
    assert metadata == METADATA
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape
        np.testing.assert_array_equal(
            found[name].numpy().astype(np.float32), tensor.numpy().astype(np.float32)
        )


def test_read_by_the_gguf_package(file):
    gguf = pytest.importorskip("gguf")
    path, tensors = file
    reader = gguf.GGUFReader(path)
    for entry in reader.tensors:
        wanted = tensors[entry.name]
        assert tuple(int(n) for n in entry.shape)[::-1] == wanted.shape
    assert reader.fields["names"].contents() == METADATA["names"]


@pytest.mark.parametrize("count", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files(file, tmp_path, count):
    whole = file[0].read_bytes()
    rng, refused = random.Random(count), 0
    path = tmp_path / "damaged.gguf"
    for _ in range(count):
        raw = bytearray(whole)
        if rng.random() < 0.4:
            del raw[rng.randrange(len(raw)) :]
        for _ in range(rng.randrange(1, 6)):
            if raw:
                raw[rng.randrange(min(len(raw), 900))] = rng.randrange(256)
        path.write_bytes(raw)
        try:
            nm.quant.load_gguf(path)
        except nm.errors.RecordError:
            refused += 1
    assert refused > count // 2


def test_errors(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(nm.errors.RecordError, match="does not begin with GGUF"):
        nm.quant.load_gguf(path)
    with pytest.raises(TypeError, match="whole blocks of its own"):
        nm.quant.save_gguf(path, {"w": nm.quant.quantize(nm.ones((2, 64)), "int4-g32")})
    with pytest.raises(TypeError, match="complex64, which GGUF does not have"):
        nm.quant.save_gguf(path, {"w": nm.ones(2, dtype=nm.complex64)})
    with pytest.raises(TypeError, match="one plain type"):
        nm.quant.save_gguf(path, {}, {"k": [1, "a"]})
    with pytest.raises(FileNotFoundError):
        nm.quant.load_gguf(tmp_path / "missing.gguf")


@pytest.mark.parametrize("shape", [(0, 1 << 63), (256, 0, 1 << 62)])
@pytest.mark.parametrize("kind", [0, 12])  # float32 and Q4_K
def test_empty_tensors_of_endless_extents(tmp_path, shape, kind):
    """Nothing is stored for them, and yet NumPy has no such shapes."""
    path = tmp_path / "a.gguf"
    head = struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    path.write_bytes(b"GGUF" + head + axes + struct.pack("<IQ", kind, 0) + bytes(64))
    with pytest.raises(nm.errors.RecordError, match="'w' is of shape"):
        nm.quant.load_gguf(path)
