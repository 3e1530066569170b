"""Type checkers see the methods that Tensor has."""

from __future__ import annotations

import ast

from tools import method_types


def parameters(text):
    """The names of each method's parameters, in order and by kind."""
    (methods,) = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef))
    found = {}
    for f in methods.body:
        a = f.args
        kinds = (a.posonlyargs, a.args, [a.vararg], a.kwonlyargs, [a.kwarg])
        found[f.name] = [[x.arg for x in kind if x is not None] for kind in kinds]
    return found


def test_the_stub_of_methods_is_up_to_date():
    written = parameters(method_types.PATH.read_text())
    assert written == parameters(method_types.stub()), "run python -m tools.method_types"
    assert written["sum"] == [["self"], ["axis"], [], ["dtype", "keepdims", "where", "initial"], []]


def test_results_of_linalg_are_not_imported():
    """Their modules are private, however deep."""
    text = method_types.stub()
    assert "import numus.linalg" not in text
    assert "Any." not in text
