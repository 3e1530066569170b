"""The command line.

numus info              devices, their memory, and what they were measured to do
numus demo              train a small transformer to add numbers
numus explain FILE      run a Python file and show the kernels behind it
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; with none, say which there are."""
    parser = argparse.ArgumentParser("numus", description="Arrays, gradients and networks.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="devices, their memory, and what they reach")
    info.add_argument("--quick", action="store_true", help="measure nothing")

    demo = commands.add_parser("demo", help="train a small transformer to add numbers")
    demo.add_argument(
        "--device", help="where to train (default: an NVIDIA GPU if there is one, else the CPU)"
    )
    demo.add_argument("--digits", type=int, default=3, help="of the numbers to add (default 3)")
    demo.add_argument("--steps", type=int, default=1200, help="of training (default 1200)")
    demo.add_argument("--out", type=Path, default=Path("out"), help="where the files go")

    explain = commands.add_parser("explain", help="run a Python file and show its kernels")
    explain.add_argument("file", type=Path)
    explain.add_argument("--source", action="store_true", help="show what the kernels consist of")

    options = parser.parse_args(arguments)
    # each command is imported when it is asked for: they bring the whole of numus with them
    if options.command == "info":
        from numus.cli.info import show

        show(measured=not options.quick)
    elif options.command == "demo":
        from numus.cli.demo import run

        run(options.device, options.digits, options.steps, options.out)
    else:
        from numus.cli.explaining import run_file

        run_file(options.file, source=options.source)
