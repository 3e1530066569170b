"""`jax.tree`: the functions of `jax.tree_util` under short names."""

from numus.jax.tree_util import tree_all as all
from numus.jax.tree_util import tree_flatten as flatten
from numus.jax.tree_util import tree_flatten_with_path as flatten_with_path
from numus.jax.tree_util import tree_leaves as leaves
from numus.jax.tree_util import tree_leaves_with_path as leaves_with_path
from numus.jax.tree_util import tree_map as map
from numus.jax.tree_util import tree_map_with_path as map_with_path
from numus.jax.tree_util import tree_reduce as reduce
from numus.jax.tree_util import tree_structure as structure
from numus.jax.tree_util import tree_transpose as transpose
from numus.jax.tree_util import tree_unflatten as unflatten

__all__ = [
    "all", "flatten", "flatten_with_path", "leaves", "leaves_with_path", "map", "map_with_path",
    "reduce", "structure", "transpose", "unflatten",
]  # fmt: skip
