"""Containers: taken apart and put together again."""

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple

import pytest

import numus as nm
from numus import tree

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Layer:
    weight: object
    bias: object = None
    size: int = dataclasses.field(default=3, metadata={"static": True})


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: object
    b: object


EXAMPLES = [
    1,
    None,
    (),
    [],
    {},
    [1, (2, 3), None],
    {"b": 1, "a": {"z": [2]}},
    Point(1, [2, 3]),
    Layer(1, None, 5),
    Frozen(1, (2,)),
    OrderedDict(b=1, a=2),
    defaultdict(list, {"k": 1}),
    {1: "x", "a": 2, (3,): 4},
]


@pytest.mark.parametrize("example", EXAMPLES, ids=repr)
def test_round_trip(example):
    leaves, structure = tree.flatten(example)
    again = tree.unflatten(structure, leaves)
    assert again == example
    assert type(again) is type(example)
    assert tree.structure(again) == structure
    assert hash(tree.structure(again)) == hash(structure)
    assert len(leaves) == structure.count == len(tree.paths(example))


def test_dict_order_does_not_matter_but_is_kept():
    a, b = {"x": 1, "y": 2}, {"y": 2, "x": 1}
    assert tree.flatten(a) == tree.flatten(b)
    assert list(tree.unflatten(tree.structure(b), [1, 2])) == ["y", "x"]


def test_structures_differ():
    different = [[1], (1,), {"a": 1}, Point(1, 2), [1, 2], Layer(1), Layer(1, size=4), None, 1]
    structures = [tree.structure(x) for x in different]
    assert len(set(structures)) == len(structures)


def test_paths():
    example = {"layers": [Layer(1, 2), Point(3, None)], 7: (4,)}
    assert tree.paths(example) == [
        "[7][0]",
        "['layers'][0].weight",
        "['layers'][0].bias",
        "['layers'][1].x",
    ]


def test_map_and_reduce():
    assert tree.map(lambda x: -x, {"a": (1, None)}) == {"a": (-1, None)}
    assert tree.map(lambda x, y: x + y, Point(1, 2), Point(10, 20)) == Point(11, 22)
    assert tree.reduce(lambda x, y: x + y, [1, (2, {"a": 3})]) == 6
    with pytest.raises(ValueError, match=r"container 1 differs .* \['a'\]\[1\]: a leaf and list"):
        tree.map(lambda x, y: x, {"a": (1, 2)}, {"a": (1, [2])})
    with pytest.raises(ValueError, match="entries"):
        tree.map(lambda x, y: x, {"a": 1}, {"b": 1})
    with pytest.raises(ValueError, match="static"):
        tree.map(lambda x, y: x, Layer(1), Layer(1, size=9))
    with pytest.raises(ValueError, match="3 leaves for a structure of 2"):
        tree.unflatten(tree.structure((1, 2)), [1, 2, 3])


def test_registered_classes():
    class Box:
        def __init__(self, inside, label):
            self.inside, self.label = inside, label

    tree.register(Box, lambda b: ([b.inside], b.label), lambda label, xs: Box(xs[0], label))
    out = nm.grad(lambda b: b.inside["w"] ** 2)(Box({"w": 3.0}, "x"))
    assert out.label == "x"
    assert out.inside["w"].item() == 6.0
    with pytest.raises(ValueError, match="already"):
        tree.register(Box, None, None)


def test_tensors_are_leaves():
    x = nm.ones(3)
    assert all(y is x for y in tree.leaves([x, {"a": x}]))
