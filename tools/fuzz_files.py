"""Fuzzing of file readers: corrupt and malicious files are read correctly or rejected.

    python -m tools.fuzz_files                   10,000 cases
    python -m tools.fuzz_files --cases 500 --seed 3

Files (safetensors, .rrec, checkpoints) are truncated, bits flipped, parts moved; and headers are
forged with valid checksums. Reading may raise `RecordError`; another error, a crash, excessive
memory, or a record read from a corrupt file that differs from what was written is a failure. So is
a safetensors file that the package `safetensors` refuses and numus reads, or reads otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numus import data, nn
from numus.data.encoding import encode
from numus.errors import RecordError, ShapeError

_MAX_MEMORY_BYTES = 8 << 20  # the files have some kilobytes

# -- whole files ----------------------------------------------------------------------------------


def whole_files(folder: Path) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    tensors = {"a": rng.normal(size=(3, 4)).astype("f4"), "b": np.arange(7, dtype="i8")}
    nn.save_safetensors(tensors, folder / "w.safetensors", {"note": "x"})
    nn.save_checkpoint(folder / "w.ckpt", model=tensors, step=3, more=[1, (2.5, None), "text"])
    with data.RecordWriter.create(folder / "w.rrec") as writer:
        writer.write_record(b"raw bytes")
        for i in range(4):
            writer.write_record({"x": np.arange(6, dtype="i4").reshape(2, 3), "y": i, "s": "name"})
        writer.write_record([np.zeros((0, 2)), {"b": b"bytes", "n": None}])
    return {p.suffix[1:]: p.read_bytes() for p in folder.iterdir()}


# -- mutations ------------------------------------------------------------------------------------


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def flip(content: bytes, draw: random.Random) -> bytes:
    out = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def flip_early(content: bytes, draw: random.Random) -> bytes:
    """Overwrite a byte of the header."""
    out = bytearray(content)
    out[draw.randrange(min(len(out), 96))] = draw.randrange(256)
    return bytes(out)


def overwrite(content: bytes, draw: random.Random) -> bytes:
    at, size = draw.randrange(len(content)), draw.choice((1, 4, 8, 64))
    filling = draw.choice((b"\0", b"\xff", b"\x7f", b"[", b"9", b"-")) * size
    return content[:at] + filling + content[at + size :]


def splice(content: bytes, draw: random.Random) -> bytes:
    a, b, c = sorted(draw.randrange(len(content)) for _ in range(3))
    return draw.choice(
        (content[:a] + content[b:], content[:b] + content[a:], content[:a] + content[b:c])
    )


NUMBERS = (0, 1, -1, 7, 255, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1, 10**30, 0.5)
VALUES = (*NUMBERS, None, True, "", "x", [], {}, [[1]], float("nan"), "F32", "F64", "object", "O")


def mangle(tree: Any, draw: random.Random) -> Any:
    """Replace random entries of a tree."""
    entries: list[tuple[Any, Any]] = []

    def walk(x: Any) -> None:
        items = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
        for key, value in items:
            entries.append((x, key))
            walk(value)

    walk(tree)
    for _ in range(draw.choice((1, 1, 2, 4))):
        holder, key = draw.choice(entries)
        if draw.random() < 0.15 and isinstance(holder, dict):
            holder.pop(key, None)
        elif draw.random() < 0.1:
            deep: Any = 1
            for _ in range(draw.choice((3, 200, 5000))):
                deep = [deep]
            holder[key] = deep
        else:
            holder[key] = draw.choice(VALUES)
    return tree


def text_of(tree: Any) -> bytes:
    """JSON; a fixed text for trees too deep for the module."""
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return b"[" * 50_000


def forged_safetensors(content: bytes, draw: random.Random) -> bytes:
    (length,) = struct.unpack_from("<Q", content)
    head = json.loads(content[8 : 8 + length])
    if "tree" in head.get("__metadata__", {}) and draw.random() < 0.6:  # a checkpoint
        tree = mangle(json.loads(head["__metadata__"]["tree"]), draw)
        head["__metadata__"]["tree"] = text_of(tree).decode()
    else:
        head = mangle(head, draw)
    text = text_of(head)
    said = len(text) if draw.random() < 0.9 else draw.choice((0, 1, 2**40, 2**63, 2**64 - 1))
    return struct.pack("<Q", said) + text + content[8 + length :]


def forged_records(content: bytes, draw: random.Random) -> bytes:
    """Forge a record, the index or the header, with valid checksums."""
    magic, version, count, index_at, _ = struct.unpack_from("<4sIQQI", content)
    body, index = (
        bytearray(content[:index_at]),
        list(np.frombuffer(content, "<u8", count, index_at)),
    )
    index = [int(n) for n in index]
    what = draw.choice(("record", "record", "frame", "index", "header"))
    if what == "record":
        at = draw.choice(index[1:])
        length, _ = struct.unpack_from("<QI", body, at)
        (text_length,) = struct.unpack_from("<4xI", body, at + 16)
        text = json.loads(bytes(body[at + 24 : at + 24 + text_length]))
        new = text_of(mangle(text, draw))
        new += b" " * (-(len(new) + 8) % 8)
        tail = bytes(body[at + 24 + text_length : at + 16 + length])
        inner = struct.pack("<B3xI", draw.choice((1, 1, 1, 0, 9)), len(new)) + new + tail
        inner += b"\0" * (-len(inner) % 8)
        index = [*index, len(body)]
        frame = struct.pack("<QI", len(inner), zlib.crc32(inner))
        body += frame + struct.pack("<I", zlib.crc32(frame)) + inner
        count, index_at = len(index), len(body)
    elif what == "frame":
        at = draw.choice(index)
        check = struct.unpack_from("<QI", body, at)[1]
        frame = struct.pack("<QI", draw.choice((0, 1, 2**20, 2**40, 2**63, 2**64 - 1)), check)
        body[at : at + 16] = frame + struct.pack("<I", zlib.crc32(frame))
    elif what == "index":
        index[draw.randrange(count)] = draw.choice(
            (0, 8, 63, 64, 65, 2**20, 2**40, 2**63, 2**64 - 8)
        )
    packed = struct.pack(f"<{len(index)}Q", *index)
    if what == "header":
        count = draw.choice((0, 1, count + 1, 2**32, 2**60, 2**61, 2**64 - 1))
        index_at = draw.choice((index_at, 0, 8, 64, index_at - 8, 2**40, 2**64 - 8))
    head = struct.pack("<4sIQQI", magic, version, count, index_at, zlib.crc32(packed))
    head += struct.pack("<I", zlib.crc32(head))
    return head.ljust(64, b"\0") + bytes(body[64:]) + packed


# -- reading --------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> None:
    for x in nn.load_safetensors(path).values():
        x.numpy().tobytes()


def read_checkpoint(path: Path) -> None:
    nn.load_checkpoint(path)


def read_records(path: Path) -> list[bytes]:
    """The contents of the records whose checksums are verified."""
    found: list[bytes] = []
    for verify in (False, True):
        single, batched = (data.RecordDataset.open(path, verify) for _ in range(2))
        found = []
        for i in range(len(single)):
            read = single[i]
            if verify:
                found.append(encode(read))
            try:
                batched.get_batch([i, i])
            except (TypeError, ShapeError) as error:  # records that cannot be collated are valid
                if "default_collate" not in str(error):
                    raise
    return found


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[bytes, random.Random], bytes]]] = {
    "safetensors": (read_safetensors, forged_safetensors),
    "ckpt": (read_checkpoint, forged_safetensors),
    "rrec": (read_records, forged_records),
}
MUTATIONS = (cut, flip, flip_early, overwrite, splice)


def fuzz(cases: int, seed: int = 0) -> Counter[str]:
    """Read mutated files; counts of files rejected and read."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = whole_files(folder)
        (folder / "whole.rrec").write_bytes(whole["rrec"])
        written = read_records(folder / "whole.rrec")
        for case in range(cases):
            kind = draw.choice(list(KINDS))
            read, forge = KINDS[kind]
            damage = forge if draw.random() < 0.5 else draw.choice(MUTATIONS)
            path = folder / f"case.{kind}"
            path.write_bytes(damage(whole[kind], draw))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                got = read(path)
                found["read"] += 1
                if kind == "rrec" and damage is not forge:
                    assert got == written, "the contents differ from what was written"
            except RecordError:
                found["rejected"] += 1
            except BaseException as error:
                saved = Path(f"fuzz-{seed}-{case}.{kind}")
                saved.write_bytes(path.read_bytes())
                raise AssertionError(
                    f"case {case} of seed {seed}, saved as {saved}: {damage.__name__} of a {kind} "
                    f"file gave {type(error).__name__}: {error}"
                ) from error
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < _MAX_MEMORY_BYTES, (
                f"case {case} of seed {seed}: {used} bytes for a {kind} file"
            )
    tracemalloc.stop()
    return found


# -- against the package --------------------------------------------------------------------------


def forbidden(content: bytes, draw: random.Random) -> bytes:
    """Duplicate keys, holes, trailing bytes, other orders, padding, numbers of other kinds."""
    (length,) = struct.unpack_from("<Q", content)
    entries = list(json.loads(content[8 : 8 + length]).items())
    body = content[8 + length :]
    for _ in range(draw.choice((1, 1, 2))):
        what = draw.randrange(7)
        if what == 0:
            entries.append(draw.choice(entries))
        elif what == 1:
            body += draw.randbytes(draw.choice((1, 8, 64)))
        elif what == 2 and len(entries) > 1:
            entries.pop(draw.randrange(len(entries)))
        elif what == 3:
            draw.shuffle(entries)
        elif what == 4:
            name, entry = draw.choice(entries)
            entries.append((name + "x", entry))
        elif what == 5:
            shift = draw.choice((-4, 1, 4, 64))
            moved = {k: dict(v) for k, v in entries if "data_offsets" in v}
            for entry in moved.values():
                entry["data_offsets"] = [n + shift for n in entry["data_offsets"]]
            entries = [(k, moved.get(k, v)) for k, v in entries]
            body = bytes(max(shift, 0)) + body
        else:
            at = draw.randrange(len(entries) + 1)
            empty = draw.choice((0, 0, 4, 104, len(body)))
            new = {"dtype": "F32", "shape": [0, 3], "data_offsets": [empty, empty]}
            entries.insert(at, ("empty", new))
    text = ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in entries)
    head = ("{" + text + "}" + " " * draw.choice((0, 1, 7))).encode()
    return struct.pack("<Q", len(head)) + head + body


_STRICTER = ("appears", "which numus lacks", "has the shape")  # than the package


def compare(cases: int, seed: int = 0) -> Counter[str]:
    """Read mutated safetensors files here and with the package; counts of what they did."""
    import safetensors

    draw = random.Random(seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "case.safetensors"
        whole = whole_files(Path(name))["safetensors"]
        for case in range(cases):
            damage = draw.choice((forbidden, forbidden, forged_safetensors, *MUTATIONS))
            content = damage(whole, draw)
            path.write_bytes(content)
            where = f"case {case} of seed {seed}: {damage.__name__}"
            try:
                theirs = {n: bytes(x["data"]) for n, x in safetensors.deserialize(content)}
            except (safetensors.SafetensorError, ValueError):
                theirs = None
            why = ""
            try:
                ours = {n: x.numpy().tobytes() for n, x in nn.load_safetensors(path).items()}
            except RecordError as error:
                why = str(error)
            if why:
                stricter = theirs is not None
                found["numus refuses" if stricter else "both refuse"] += 1
                assert not stricter or any(w in why for w in _STRICTER), f"{where}: {why}"
                continue
            assert theirs is not None, f"{where}: the package refuses what numus reads"
            assert ours == theirs, f"{where}: other values than the package's"
            found["both read"] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    found = fuzz(options.cases, options.seed)
    print(f"{options.cases} bad files: {dict(found)}; {time.perf_counter() - began:.0f} s")
    compared = compare(options.cases, options.seed)
    print(f"{options.cases} safetensors files, here and with the package: {dict(compared)}")


if __name__ == "__main__":
    main()
