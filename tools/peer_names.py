"""Writes tools/peer_names.json: the public names of NumPy, PyTorch and JAX, with parameters.

Run with an interpreter that has all three: `python tools/peer_names.py`. `tools/names.py` reads it.
Functions of PyTorch that are written in C++ have no signatures; those are read from its stubs.
"""

import ast
import inspect
import json
import types
from pathlib import Path

import jax
import jax.numpy
import numpy
import torch
import torch.nn.functional

PATH = Path(__file__).with_suffix(".json")
STUBS = Path(torch.__file__).parent / "_C"


def public(owner: object) -> list[str]:
    """The names of an owner that are neither private nor modules."""
    return sorted(
        name
        for name in dir(owner)
        if not name.startswith("_") and not isinstance(getattr(owner, name, None), types.ModuleType)
    )


def from_stub(path: Path, owner: str | None = None) -> dict[str, list[str]]:
    """The parameters of the functions of a stub, or of a class in it: the longest overload's."""
    body = ast.parse(path.read_text()).body
    if owner is not None:
        body = next(n.body for n in body if isinstance(n, ast.ClassDef) and n.name == owner)
    found: dict[str, list[str]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            a = node.args
            names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
            if len(names) > len(found.get(node.name, ())):
                found[node.name] = names
    return found


def parameters(owner: object, names: list[str], stub: dict[str, list[str]]) -> dict[str, list[str]]:
    """The parameters of the functions and classes among the names."""
    found = {}
    for name in names:
        thing = getattr(owner, name, None)
        if name in stub:
            found[name] = stub[name]
        elif callable(thing):
            try:
                listed = inspect.signature(thing).parameters.values()
            except (TypeError, ValueError):
                continue
            found[name] = [
                p.name for p in listed if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            ]
    return found


def main() -> None:
    """Write the file."""
    version = torch.__version__.split("+")[0]
    functions = from_stub(STUBS / "_VariableFunctions.pyi")
    methods = from_stub(STUBS / "__init__.pyi", "TensorBase")
    owners = {
        "torch": (torch, functions),
        "torch.Tensor": (torch.Tensor, methods),
        "torch.nn": (torch.nn, {}),
        "torch.nn.functional": (torch.nn.functional, functions),
        "torch.optim": (torch.optim, {}),
    }
    names: dict[str, object] = {"numpy": {"version": numpy.__version__, "names": public(numpy)}}
    for peer, (owner, stub) in owners.items():
        listed = public(owner)
        names[peer] = {
            "version": version,
            "names": listed,
            "parameters": parameters(owner, listed, stub),
        }
    for owner in (jax, jax.numpy, jax.lax):
        names[owner.__name__] = {"version": jax.__version__, "names": public(owner)}
    PATH.write_text(json.dumps(names, indent=0) + "\n")


if __name__ == "__main__":
    main()
