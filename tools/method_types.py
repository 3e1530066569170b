"""Writes numus/_methods.pyi: the methods that Tensor is given by others, for type checkers.

Functions become methods when they are defined, which no type checker and no editor can follow. Run
`python -m tools.method_types` after a method came, went, or changed its arguments.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path
from typing import Any

import numus
from numus.tensor import Tensor

PATH = Path(numus.__file__).with_name("_methods.pyi")

_HEAD = '''"""What other modules add to Tensor. Written by tools.method_types."""

{imports}

class Methods:
{body}
'''

# Methods named like builtin types would shadow them in later lines.
_BUILTIN_TYPES = [n for n, t in vars(builtins).items() if isinstance(t, type)]
_BARE_BUILTIN = re.compile(rf"(?<![\w.])({'|'.join(_BUILTIN_TYPES)})\b(?![=:])")


def stub() -> str:
    """The contents of the file."""
    body = "\n".join(_declared(name, what) for name, what in sorted(_added().items()))
    body = body.replace("numus.tensor.Tensor", "Tensor")
    # functions of linalg have the names of the modules that their results are defined in
    body = re.sub(r"numus\.linalg(?:\.\w+)+", "Any", body)
    modules = sorted(set(re.findall(r"\b((?:\w+\.)+)[A-Za-z]\w*", body)))
    imports = "\n".join(f"import {m.rstrip('.')}" for m in modules)
    imports += "\nfrom typing import Any\n\nfrom numus.tensor import Tensor\n"
    return _HEAD.format(imports=imports, body=body)


def _added() -> dict[str, Any]:
    """Methods of Tensor that other modules install."""
    (own,) = ast.parse(inspect.getsource(Tensor)).body
    assert isinstance(own, ast.ClassDef)
    names = {n.name for n in own.body if isinstance(n, ast.FunctionDef)}
    for name in list(vars(Tensor)):
        getattr(Tensor, name)  # methods that are loaded late
    return {
        name: what
        for name, what in vars(Tensor).items()
        if name not in names and (inspect.isfunction(what) or isinstance(what, property))
    }


def _declared(name: str, what: Any) -> str:
    if isinstance(what, property):
        return f"    @property\n    def {name}(self) -> {_type(_signature(what.fget)[1])}: ..."
    parameters, result = _signature(what)
    declared = f"    def {name}({parameters}) -> {_type(result)}: ..."
    # object's comparisons return bool, a tensor's a tensor
    return declared + ("  # type: ignore[override]" if name in ("__eq__", "__ne__") else "")


def _signature(function: Any) -> tuple[str, Any]:
    """The parameters of a method as text, and the type of its result."""
    signature = inspect.signature(function, eval_str=True)
    first, *rest = signature.parameters.values()
    parameters = [first.replace(name="self", annotation=first.empty)]
    parameters += [p.replace(default=_default(p.default)) for p in rest]
    text = str(inspect.Signature(parameters))
    return _BARE_BUILTIN.sub(r"builtins.\1", text[1:-1]), signature.return_annotation


class _Dots:
    def __repr__(self) -> str:
        return "..."


def _default(value: Any) -> Any:
    plain = value is inspect.Parameter.empty or isinstance(value, (int, float, str, type(None)))
    return value if plain else _Dots()


def _type(annotation: Any) -> str:
    return _BARE_BUILTIN.sub(r"builtins.\1", inspect.formatannotation(annotation))


if __name__ == "__main__":
    PATH.write_text(stub())
