"""Writes tools/peer_names.json: the public names of NumPy, torch and torch.Tensor.

Run with an interpreter that has both: `python tools/peer_names.py`. `tools/names.py` reads it.
"""

import json
import types
from pathlib import Path

import numpy
import torch

PATH = Path(__file__).with_suffix(".json")


def public(owner: object) -> list[str]:
    """The names of an owner that are neither private nor modules."""
    return sorted(
        name
        for name in dir(owner)
        if not name.startswith("_") and not isinstance(getattr(owner, name, None), types.ModuleType)
    )


def main() -> None:
    """Write the file."""
    names = {
        "numpy": {"version": numpy.__version__, "names": public(numpy)},
        "torch": {"version": torch.__version__.split("+")[0], "names": public(torch)},
        "torch.Tensor": {
            "version": torch.__version__.split("+")[0],
            "names": public(torch.Tensor),
        },
    }
    PATH.write_text(json.dumps(names, indent=0) + "\n")


if __name__ == "__main__":
    main()
