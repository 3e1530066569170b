"""A hostile hour: crashes, hangs and wrong results under threads, interrupts, forks and damage.

    python -m tools.hostile                          an hour, all parts
    python -m tools.hostile --minutes 5 --only caches limits
    python -m tools.hostile --bar                    200 starts, 300 interrupts, 1,000 kills, …

Every case is a process of its own. A part fails if one of them crashes, hangs, computes something
wrong or loses data.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools import crash_files

_SECONDS = 300  # after which a process hangs
_SEEDS = ("1", "77", "4000")  # structures that `compute` evaluates


def run(name: str, *args: object, seconds: float = _SECONDS, **environment: str) -> str:
    """What a program of `hostile_programs` printed; AssertionError if it crashed or hung."""
    command = [sys.executable, "-m", "tools.hostile_programs", name, *map(str, args)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
            cwd=Path(__file__).parent.parent,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{name} {args}: hangs") from None
    assert done.returncode == 0, f"{name} {args}: exit {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout.strip()


# -- parts: one case each, in an empty folder -----------------------------------------------------


def threads(draw: random.Random, folder: Path) -> str:
    run("first_use", draw.choice((2, 4, 8, 16)))
    return ""


def interrupts(draw: random.Random, folder: Path) -> str:
    run("interrupts", draw.randrange(1 << 30), 30)
    return "30 interrupts each"


def forks(draw: random.Random, folder: Path) -> str:
    run("forks", draw.randrange(1 << 30), 5)
    return "5 forks each"


def disks(draw: random.Random, folder: Path) -> str:
    """Full and unwritable disks, of saves and of the kernel cache."""
    (folder / "saves").mkdir()
    run("full_disk", folder / "saves", draw.choice((100, 4096, 50_000, 200_000)))
    blocked = folder / "file"
    blocked.write_text("")
    (folder / "read-only").mkdir(mode=0o500)
    places = (blocked, blocked / "below", folder / "read-only", "/proc/numus", "/dev/full")
    expected = run("compute", *_SEEDS, NUMUS_CACHE_DIR=str(folder / "good"))
    found = run("compute", *_SEEDS, NUMUS_CACHE_DIR=str(draw.choice(places)))
    assert found == expected, f"{found}, not {expected}"
    return ""


def caches(draw: random.Random, folder: Path) -> str:
    """Swapped, planted and damaged files of the kernel cache."""
    cache = {"NUMUS_CACHE_DIR": str(folder)}
    expected = run("compute", *_SEEDS, **cache)
    for _ in range(3):
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
        for path in files:
            if draw.random() < 0.5:
                draw.choice(_DAMAGES)(path, files, draw)
        found = run("compute", *_SEEDS, **cache)
        assert found == expected, f"{found}, not {expected}"
    return "3 damages each"


def _swap(path: Path, files: list[Path], draw: random.Random) -> None:
    other = draw.choice(files)
    if path.is_file() and other.is_file():
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)


def _plant(path: Path, files: list[Path], draw: random.Random) -> None:
    path.write_bytes(draw.choice((b"", b"\x7fELF", draw.randbytes(5000))))


def _flip(path: Path, files: list[Path], draw: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, files: list[Path], draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size + 1))


def _fifo(path: Path, files: list[Path], draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, files: list[Path], draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _expose(path: Path, files: list[Path], draw: random.Random) -> None:
    draw.choice((path, path.parent)).chmod(0o777)


def _link(path: Path, files: list[Path], draw: random.Random) -> None:
    path.unlink()
    path.symlink_to(draw.choice(("/dev/zero", "/dev/null", "/nowhere", str(path))))


_DAMAGES = (_swap, _swap, _plant, _flip, _cut, _fifo, _folder, _expose, _link)


def kills(draw: random.Random, folder: Path) -> str:
    """kill -9 during every kind of save."""
    for kind in crash_files.KINDS:
        crash_files.crash(kind, 4, draw.randrange(1 << 30))
    return f"4 of each of {len(crash_files.KINDS)} kinds"


def limits(draw: random.Random, folder: Path) -> str:
    cache = {"NUMUS_CACHE_DIR": str(folder)}
    run("limited", draw.choice((5, 20, 60, 150, 260, 300, 350, 500)), draw.randrange(99), **cache)
    return ""


def inputs(draw: random.Random, folder: Path) -> str:
    run("inputs")
    return ""


class Part(NamedTuple):
    case: Callable[[random.Random, Path], str]
    weight: int = 1  # share of the time
    bar: int = 1  # cases of `--bar`


PARTS = {
    "threads": Part(threads, 2, bar=200),
    "interrupts": Part(interrupts, bar=10),
    "forks": Part(forks, bar=40),
    "disks": Part(disks, bar=20),
    "caches": Part(caches, 2, bar=20),
    "kills": Part(kills, 2, bar=50),
    "limits": Part(limits, bar=24),
    "inputs": Part(inputs, bar=3),
}
_GROWING = {"structures": (50_000, 8), "sizes": (20_000, 4)}  # steps, and share of the time


class Row(NamedTuple):
    """What became of a part."""

    part: str
    cases: int
    faults: list[str]
    seconds: float
    note: str


def repeated(name: str, seconds: float, draw: random.Random, bar: bool = False) -> Row:
    """Cases of a part until the time is over, or as many as its bar."""
    began, cases, faults, note = time.monotonic(), 0, list[str](), ""
    while cases < PARTS[name].bar if bar else not cases or time.monotonic() - began < seconds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                note = PARTS[name].case(draw, Path(folder))
            except AssertionError as error:
                faults.append(str(error))
        cases += 1
    return Row(name, cases, faults, time.monotonic() - began, note)


def growing(name: str, seconds: float) -> Row:
    """One process that does more and more, for so long."""
    began, faults, cases, note = time.monotonic(), list[str](), 0, ""
    try:
        count, growth = run(
            name, _GROWING[name][0], seconds, seconds=2 * seconds + _SECONDS
        ).split()
        cases, note = int(count), f"{growth} MB of growth"
    except AssertionError as error:
        faults.append(str(error))
    return Row(name, cases, faults, time.monotonic() - began, note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--bar", action="store_true", help="fixed volumes, however long they take")
    parser.add_argument("--only", nargs="*", choices=[*PARTS, *_GROWING], metavar="PART")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    weights = {name: part.weight for name, part in PARTS.items()}
    weights |= {name: weight for name, (_, weight) in _GROWING.items()}
    chosen = options.only or list(weights)
    unit = 60 * options.minutes / sum(weights[name] for name in chosen)
    draw = random.Random(options.seed)
    faults: list[str] = []
    print(f"{'part':<12}{'cases':>8}{'faults':>8}{'seconds':>9}  note")
    for name in chosen:
        seconds = 24 * 3600 if options.bar else unit * weights[name]
        if name in _GROWING:
            row = growing(name, seconds)
        else:
            row = repeated(name, seconds, draw, options.bar)
        print(
            f"{row.part:<12}{row.cases:>8}{len(row.faults):>8}{row.seconds:>9.0f}  {row.note}",
            flush=True,
        )
        faults += row.faults
    for fault in faults:
        print(f"\n{fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
