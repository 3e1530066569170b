"""The size of a default install: `python -m tools.install_size`.

pip puts the checkout (or a wheel that is given) and what it depends on into an empty folder; the
files are counted by the package that owns them, with the bytecode that pip compiles, as bytes and
as the blocks that a file system takes for them (`du`). Both are held to the budget.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUDGET_MB = 280


def sizes(folder: Path) -> tuple[Counter[str], int]:
    """The bytes of each package of a folder, and those of all its bytecode."""
    packages: Counter[str] = Counter()
    bytecode = 0
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        size = path.stat().st_size
        name = path.relative_to(folder).parts[0]
        packages[name.removesuffix(".libs")] += size
        bytecode += size if path.suffix == ".pyc" else 0
    return packages, bytecode


def blocks_mib(folder: Path) -> float:
    """What a file system takes for a folder, in MiB: `du -sm`."""
    paths = [folder, *folder.rglob("*")]
    return sum(path.lstat().st_blocks for path in paths) * 512 / 2**20


def install(wheel: str, folder: Path) -> None:
    """pip's install of a wheel or checkout, and its dependencies, into a folder."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), wheel]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", nargs="?", default=str(ROOT), help="a wheel; the checkout without")
    parser.add_argument("--installed", type=Path, help="count a folder that is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.installed or Path(made)
        if options.installed is None:
            install(options.wheel, folder)
        packages, bytecode = sizes(folder)
        blocks = blocks_mib(folder)
    for name, size in packages.most_common(8):
        print(f"{name:24} {size / 1e6:7.1f} MB")
    total = sum(packages.values())
    print(f"{'all':24} {total / 1e6:7.1f} MB, {bytecode / 1e6:.1f} MB of it bytecode")
    print(f"{'on disk':24} {blocks:7.1f} MiB")
    if max(total / 1e6, blocks) > BUDGET_MB:
        raise SystemExit(f"more than {BUDGET_MB} MB")


if __name__ == "__main__":
    main()
