"""closure_convert: a function and the tensors that it closes over, apart (as in JAX)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.dtypes import uint32
from numus.graph import grad_mode
from numus.primitives.source import constant
from numus.tensor import Tensor
from numus.transforms.control import body as bodies
from numus.transforms.control.body import Body
from numus.transforms.effects import BranchEffects
from numus.transforms.trace import nodes_of, require_function, tensors

__all__ = ["closure_convert"]


def closure_convert(
    op: str, f: Callable[..., Any], *examples: Any
) -> tuple[Callable[..., Any], list[Tensor]]:
    """`g, constants` such that `g(constants, *args)` is f(*args), for args like the examples.

    f is traced once, `op` being the name that errors give. The constants are the tensors that it
    closes over, as operands: a rule of differentiation can reach them.
    """
    require_function(f, op)
    nodes, structures = [], []
    for i, example in enumerate(examples):
        found, structure = nodes_of(example, op, f"argument {i}")
        nodes += found
        structures.append(structure)
    arguments = bodies.placeholders(bodies.types_of(nodes), bodies.device_of(nodes), op, True)
    effects = BranchEffects(op)
    with grad_mode(True):
        answer = bodies.call_on(f, structures, arguments, effects)
    outputs, out_structure = nodes_of(answer, op, "the result")
    count, first = len(outputs), []
    if effects.iteration is not None:
        outputs += effects.numbers(outputs)
        arguments.append(effects.iteration)
        first.append(constant(0, uint32))
    constants = bodies.constants_of(arguments, outputs)
    body = Body([*arguments, *constants], outputs)

    def converted(held: Any, *args: Any) -> Any:
        given = [x for i, arg in enumerate(args) for x in nodes_of(arg, op, f"argument {i}")[0]]
        found = body([*given, *first, *(x._node for x in held)])
        return tensors(out_structure, found[:count])

    return converted, [Tensor(x) for x in constants]
