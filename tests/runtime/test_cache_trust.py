"""The kernel cache executes only what this user has compiled for the same kernel."""

from __future__ import annotations

import os
import socket
import stat
import tempfile

import kernels_by_hand as kernels
import pytest
from in_threads import in_threads

from numus.runtime import cache
from numus.runtime.cpu.compiler import Compiler

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path / "cache"))
    cache._warn_of_others.cache_clear()
    return tmp_path / "cache"


def compiled(value=2.0):
    """How the kernel was found: compiled, or on disk."""
    compiler = Compiler()
    compiler.compile(kernels.affine(value))
    return compiler.log[0].cause


def stored(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_a_file_under_another_name(folder):
    compiled(2.0)
    (first,) = stored(folder)
    compiled(3.0)
    (second,) = (p for p in stored(folder) if p != first)
    second.write_bytes(first.read_bytes())
    assert compiled(3.0) == "compiled"
    assert compiled(2.0) == "disk"
    assert compiled(3.0) == "disk"  # replaced by its own


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write(folder, mode):
    compiled()
    (file,) = stored(folder)
    file.chmod(mode)
    with pytest.warns(RuntimeWarning, match="chmod go-w"):
        assert compiled() == "compiled"
    assert compiled() == "disk"  # replaced


@pytest.mark.parametrize("which", ["kernels", "kernels/??"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write(folder, which, mode):
    compiled()
    (found,) = folder.glob(which)
    found.chmod(mode)
    with pytest.warns(RuntimeWarning, match="another user owns it or may write to it"):
        assert compiled() == "compiled"
    assert compiled() == "compiled"
    found.chmod(0o700)
    assert compiled() == "disk"


def test_files_of_another_user(folder, monkeypatch):
    compiled()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(RuntimeWarning, match="another user"):
        assert compiled() == "compiled"


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o077, 0o777])
def test_folders_are_the_users_alone_whatever_the_umask(folder, mask):
    before = os.umask(mask)
    try:
        compiled()
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert compiled() == "disk"


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "link", "device"])
def test_something_that_is_no_file(folder, kind, tmp_path):
    compiled()
    (file,) = stored(folder)
    content = file.read_bytes()
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as found, tempfile.TemporaryDirectory() as short:
            found.bind(f"{short}/s")  # names of sockets are short
            os.rename(f"{short}/s", file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.symlink_to("/dev/zero")
    assert compiled() == "compiled"


@pytest.mark.parametrize("code", [b"", b"\x7fELF", b"\x7fELF\2\1\1" + bytes(500), b"x" * 5000])
def test_an_object_that_does_not_load_is_compiled_again(folder, code):
    compiled()
    (file,) = stored(folder)
    cache.put(file.name, code)  # with a valid digest
    assert compiled() == "compiled"
    assert compiled() == "disk"


def test_objects_damaged_behind_a_valid_digest(folder):
    compiled()
    (file,) = stored(folder)
    good = cache.get(file.name)
    for at in range(64):  # the header
        code = bytearray(good)
        code[at] ^= 0x55
        cache.put(file.name, bytes(code))
        assert compiled() in ("compiled", "disk")  # some bytes mean nothing


def test_a_giant_file(folder):
    compiled()
    (file,) = stored(folder)
    with file.open("r+b") as f:
        f.truncate(1 << 40)  # sparse
    assert compiled() == "compiled"


def test_threads_that_write_the_same_entry(folder):
    in_threads(lambda i: [compiled() for _ in range(3)], 4)
    assert len(stored(folder)) == 1
    assert compiled() == "disk"


def test_an_interrupted_write_leaves_no_file(folder, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.put("ab" * 32, b"code")
    assert stored(folder) == []
