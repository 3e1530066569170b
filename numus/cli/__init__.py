"""The command line.

numus info              devices, their memory, and what they were measured to do
numus train CONFIG      a training that is written down in a TOML file
numus demo              train a small transformer to add numbers
numus bench             what kernels reach on this machine
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
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    info = commands.add_parser("info", help="devices, their memory, and what they reach")
    info.add_argument("--quick", action="store_true", help="measure nothing")

    train = commands.add_parser("train", help="a training that is written down in a TOML file")
    train.add_argument("config", type=Path, help="docs/training.md tells what can be in it")
    train.add_argument("--epochs", type=int, help="in all, instead of the file's")
    train.add_argument("--device", help="where to train, instead of the file's")

    bench = commands.add_parser("bench", help="what kernels reach on this machine")
    bench.add_argument("names", nargs="*", help="parts of the names of what to measure")
    bench.add_argument("--device", help="where to measure (default: cpu)")
    bench.add_argument("--seconds", type=float, default=0.5, help="for each (default 0.5)")

    demo = commands.add_parser("demo", help="train a small transformer to add numbers")
    demo.add_argument(
        "--device", help="where to train (default: an NVIDIA GPU if there is one, else the CPU)"
    )
    demo.add_argument("--digits", type=int, default=3, help="of the numbers to add (default 3)")
    demo.add_argument("--steps", type=int, default=1200, help="of training (default 1200)")
    demo.add_argument("--out", type=Path, default=Path("out"), help="where the files go")

    explain = commands.add_parser("explain", help="run a Python file and show its kernels")
    explain.add_argument("--source", action="store_true", help="show what the kernels consist of")
    explain.add_argument("file", type=Path)
    explain.add_argument("arguments", nargs=argparse.REMAINDER, help="of the file's program")

    options = parser.parse_args(arguments)
    # each command is imported when it is asked for: they bring the whole of numus with them
    if options.command == "info":
        from numus.cli.info import show

        show(measured=not options.quick)
    elif options.command == "train":
        from numus.cli.train import run as train_from

        train_from(options.config, epochs=options.epochs, device=options.device)
    elif options.command == "bench":
        from numus.cli.bench import run as measure

        measure(options.names, options.device, options.seconds)
    elif options.command == "demo":
        from numus.cli.demo import run

        run(options.device, options.digits, options.steps, options.out)
    elif options.command == "explain":
        from numus.cli.explaining import run_file

        run_file(options.file, options.arguments, source=options.source)
    else:
        parser.print_help()
