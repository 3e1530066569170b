"""The command line.

numus info              devices, their memory, and what they were measured to do
numus train CONFIG      a training that is written down in a TOML file
numus demo              train a small transformer to add numbers
numus bench             what kernels reach on this machine
numus explain FILE      run a Python file and show the kernels behind it
numus quantize MODEL    round the weights in a file of safetensors or GGUF to few bits
numus launch FILE       run a Python file as several ranks of one job
numus plan MODEL        memory and time of a training step on any number of GPUs
numus generate MODEL    continue a text with a language model
numus finetune MODEL    train a language model on a text
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["main"]


def _device(name: str) -> str:
    """The name of a device that is there."""
    from numus import errors, zeros

    try:
        zeros(1, device=name)
    except (errors.NumusError, ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return _positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds") from None


def _positive(text: str) -> float:
    try:
        if 0 < float(text) < 1e6:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} is not a number above 0")


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="memory and time of a step on any number of GPUs")
    plan.add_argument("config", type=Path, help="sizes of a model: see docs/distributed.md")
    plan.add_argument("--gpus", type=_count, help="ranks (default: those of the mesh)")
    plan.add_argument("--mesh", help="as data=64,shard=2,tensor=8,pipe=2 (default: all data)")
    plan.add_argument("--microbatch", type=_count, default=1, help="sequences at once (default 1)")
    plan.add_argument("--machine", default="h100", help="h100, h200, a100 or cpu (default h100)")
    plan.add_argument("--memory", type=_positive, help="of a device, GiB")
    plan.add_argument("--node-link", type=_positive, help="of a device within a node, GB/s")
    plan.add_argument("--network-link", type=_positive, help="of a device to other nodes, GB/s")
    plan.add_argument("--per-node", type=_count, help="devices of a node")
    plan.add_argument("--search", action="store_true", help="find the quickest mesh that fits")


def _add_language_commands(commands: Any) -> None:
    generate = commands.add_parser("generate", help="continue a text with a language model")
    generate.add_argument("model", type=Path, help="a folder (config.json …) or a GGUF file")
    generate.add_argument("prompt", help="the text to continue")
    generate.add_argument("--tokenizer", type=Path, help="(default: tokenizer.json of the folder)")
    generate.add_argument("--tokens", type=_count, default=64, help="at most (default 64)")
    generate.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    generate.add_argument("--top-k", type=int, default=0, help="of the k likeliest; 0: of all")
    generate.add_argument("--top-p", type=float, default=1.0, help="of the likeliest that sum to p")
    generate.add_argument("--min-p", type=float, default=0.0, help="of those likely enough")
    generate.add_argument("--repetition-penalty", type=float, default=1.0, help="1: none")
    generate.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    generate.add_argument("--stop", action="append", default=[], help="a text that ends it")
    generate.add_argument("--draft", help='a folder of a smaller model that guesses, or "ngrams"')
    generate.add_argument("--cache", help="a format of keys and values, as int8-row")

    finetune = commands.add_parser("finetune", help="train a language model on a text")
    finetune.add_argument("model", type=Path, help="a folder (config.json …) or a GGUF file")
    finetune.add_argument("text", type=Path, help="a file of text")
    finetune.add_argument("--out", type=Path, required=True, help="a folder for the result")
    finetune.add_argument("--tokenizer", type=Path, help="(default: tokenizer.json of the folder)")
    finetune.add_argument("--rank", type=int, default=8, help="of LoRA's adapters; 0: train all")
    finetune.add_argument("--steps", type=_count, default=100, help="of training (default 100)")
    finetune.add_argument("--batch", type=_count, default=4, help="texts of a step (default 4)")
    finetune.add_argument("--length", type=_count, default=128, help="of a text (default 128)")
    finetune.add_argument("--rate", type=float, default=1e-4, help="of learning (default 1e-4)")
    finetune.add_argument(
        "--layer-decay", type=float, default=1.0, help="rate of a block over the next one's"
    )
    finetune.add_argument("--ema", type=float, help="decay of an average that is written instead")
    finetune.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    finetune.add_argument(
        "--recompute", action="store_true", help="compute blocks again backwards: less memory"
    )
    for command in (generate, finetune):
        command.add_argument("--device", type=_device, help="where to (default: cpu)")
        command.add_argument("--dtype", help="of the weights (default: the file's)")
        command.add_argument("--quantize", help="a scheme for linear layers, as int4-g128 or nf4")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; without one, list them."""
    parser = argparse.ArgumentParser("numus", description="Arrays, gradients and networks.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    info = commands.add_parser("info", help="devices, their memory, and what they reach")
    info.add_argument("--quick", action="store_true", help="measure nothing")

    train = commands.add_parser("train", help="a training that is written down in a TOML file")
    train.add_argument("config", type=Path, help="docs/training.md tells what can be in it")
    train.add_argument("--epochs", type=int, help="in all, instead of the file's")
    train.add_argument("--device", help="where to train, instead of the file's")
    train.add_argument(
        *("--allow", "-a"),
        action="append",
        default=[],
        metavar="MODULE",
        help="a module or a file.py whose code the file may name; may be given several times",
    )

    bench = commands.add_parser("bench", help="what kernels reach on this machine")
    bench.add_argument("names", nargs="*", help="parts of the names of what to measure")
    bench.add_argument("--device", type=_device, help="where to measure (default: cpu)")
    bench.add_argument("--seconds", type=_seconds, default=0.5, help="for each (default 0.5)")

    demo = commands.add_parser("demo", help="train a small transformer to add numbers")
    demo.add_argument(
        "--device",
        type=_device,
        help="where to train (default: an NVIDIA GPU if there is one, else the CPU)",
    )
    demo.add_argument("--digits", type=int, default=3, help="of the numbers to add (default 3)")
    demo.add_argument("--steps", type=_count, default=1200, help="of training (default 1200)")
    demo.add_argument("--out", type=Path, default=Path("out"), help="where the files go")

    explain = commands.add_parser("explain", help="run a Python file and show its kernels")
    explain.add_argument("--source", action="store_true", help="show what the kernels consist of")
    explain.add_argument("file", type=Path)
    explain.add_argument("arguments", nargs=argparse.REMAINDER, help="of the file's program")

    quantize = commands.add_parser("quantize", help="round the weights of a model to few bits")
    quantize.add_argument("model", type=Path, help="a file of safetensors or GGUF")
    quantize.add_argument("--scheme", default="int4", help="as int8, int4-g64-gptq (default int4)")
    quantize.add_argument("--data", type=Path, help="inputs of layers, as NAME.input, to calibrate")
    quantize.add_argument("--only", help="a regular expression that names of layers match")
    quantize.add_argument("--out", type=Path, help="(default: MODEL with the scheme in its name)")

    launch = commands.add_parser("launch", help="run a Python file as several ranks of one job")
    launch.add_argument("-n", "--ranks", type=_count, default=1, help="processes (default 1)")
    launch.add_argument("--log-dir", type=Path, help="a folder for a log of each rank")
    launch.add_argument(
        *("--grace", "-g"),
        type=_seconds,
        default=10.0,
        help="seconds that ranks have to end by themselves after one has failed (default 10)",
    )
    launch.add_argument(
        *("--max-restarts", "--restarts"),
        type=int,
        default=0,
        dest="restarts",
        help="how often a job that fails is started again (default 0)",
    )
    launch.add_argument(
        "--min-ranks",
        type=_count,
        help="let a restart go on without the rank that failed, down to this number of ranks",
    )
    launch.add_argument("script", type=Path)
    launch.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")

    _add_plan(commands)
    _add_language_commands(commands)
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    if command is None:
        parser.print_help()
        return
    # imported when it is asked for: a command brings the whole of numus with it
    importlib.import_module(f"numus.cli.{command}").run(**options)
