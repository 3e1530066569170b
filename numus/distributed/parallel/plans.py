"""Plans of tensor parallelism: which layers of a model are divided how, by patterns of names.

`parallelize` puts parallel layers in the places of those that the patterns name. Each rank keeps
its parts of the values they had, so a model is loaded, or drawn from one seed, on all ranks first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol

from numus.distributed.groups import Group
from numus.distributed.mesh import Mesh
from numus.distributed.parallel.experts import ExpertParallelMoE
from numus.distributed.parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    divided,
    sum_gradients,
)
from numus.distributed.parallel.regions import cut
from numus.distributed.parallel.ring import ring_attention
from numus.distributed.parallel.vocabulary import VocabParallelEmbedding
from numus.nn.layers.embedding import Embedding
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter

__all__ = [
    "Column",
    "Experts",
    "Heads",
    "Ring",
    "Row",
    "SequenceParallel",
    "Style",
    "Vocabulary",
    "parallelize",
    "plan_of",
]


class Style(Protocol):
    """How a module is divided."""

    @property
    def axis(self) -> str:
        """Of the mesh, along which the ranks lie."""

    def apply(self, module: Module, name: str, group: Group) -> Module:
        """The module for this rank."""


@dataclass(frozen=True)
class Column:
    """A `ColumnParallelLinear` in place of a linear layer."""

    gather_output: bool = False
    sequence: bool = False
    parts: int = 1
    axis: str = "tensor"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        layer = _linear(module, name)
        return ColumnParallelLinear(
            *(layer.in_features, layer.out_features),
            group=group,
            gather_output=self.gather_output,
            sequence=self.sequence,
            parts=self.parts,
            layer=layer,
        )


@dataclass(frozen=True)
class Row:
    """A `RowParallelLinear` in place of a linear layer."""

    sequence: bool = False
    axis: str = "tensor"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        layer = _linear(module, name)
        sizes = (layer.in_features, layer.out_features)
        return RowParallelLinear(*sizes, group=group, sequence=self.sequence, layer=layer)


@dataclass(frozen=True)
class Vocabulary:
    """A `VocabParallelEmbedding` in place of an embedding."""

    sequence: bool = False
    axis: str = "tensor"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        if not isinstance(module, Embedding):
            raise TypeError(f"parallelize: {name} is a {type(module).__name__}, not an Embedding")
        sizes = (module.num_embeddings, module.embedding_dim)
        return VocabParallelEmbedding(*sizes, group=group, sequence=self.sequence, layer=module)


@dataclass(frozen=True)
class Heads:
    """An attention layer that computes its share of the heads: attributes that count them are
    divided."""

    attributes: tuple[str, ...] = ("heads", "kv_heads")
    axis: str = "tensor"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        for attribute in self.attributes:
            if hasattr(module, attribute):
                share = divided(getattr(module, attribute), group, f"{name}.{attribute}")
                setattr(module, attribute, share)
        return module


@dataclass(frozen=True)
class SequenceParallel:
    """A norm, or another layer that treats tokens one by one, of which each rank computes a part of
    the sequence: its gradients are summed over the ranks.

    Args:
        cuts: what comes in is the whole sequence, and what comes out is cut along axis -2.
    """

    cuts: bool = False
    axis: str = "tensor"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        if self.cuts:  # its gradient comes from all ranks by itself
            module.register_forward_hook(lambda _, args, y: cut(y, -2, group=group))
            return module
        for parameter in module.parameters():
            sum_gradients(parameter, group)
        return module


@dataclass(frozen=True)
class Ring:
    """An attention layer of which each rank has a part of the sequence: see `ring_attention`."""

    zigzag: bool = True
    axis: str = "context"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        if not callable(getattr(module, "attend", None)):
            raise TypeError(
                f"parallelize: {name}, a {type(module).__name__}, has no function `attend` of "
                "queries, keys and values for ring attention to take the place of"
            )
        setattr(module, "attend", partial(_ring, group=group, zigzag=self.zigzag))  # noqa: B010
        return module


def _ring(query: Any, key: Any, value: Any, mask: Any = None, **options: Any) -> Any:
    from numus.models.language.attention import merge_heads

    if mask is not None or options.pop("softcap", None) is not None:
        raise ValueError("ring attention: takes neither masks, windows nor a softcap")
    return merge_heads(ring_attention(query, key, value, **options))


@dataclass(frozen=True)
class Experts:
    """An `ExpertParallelMoE` in place of the mixture of experts of a Mixtral."""

    capacity_factor: float | None = None
    axis: str = "expert"

    def apply(self, module: Module, name: str, group: Group) -> Module:
        return ExpertParallelMoE.of(module, group=group, capacity_factor=self.capacity_factor)


def _linear(module: Module, name: str) -> Linear:
    """A linear layer, or one that can be written as such."""
    if isinstance(module, Linear):
        return module
    as_linear = getattr(module, "as_linear", None)
    if as_linear is None:
        raise TypeError(f"parallelize: {name} is a {type(module).__name__}, no linear layer")
    made: Linear = as_linear()
    return made


def parallelize(model: Module, mesh: Mesh, plan: Mapping[str, Style] | None = None) -> Module:
    """The model with parallel layers, as a plan says: patterns of names, such as "*.mlp.down_proj",
    and what becomes of the modules that they match. Changes the model itself.

    The first pattern that matches counts, once for each axis of the mesh. Parameters that layers
    share stay shared. All ranks call it, with the same model.

    Args:
        plan: `plan_of(model)` by default.

    >>> from numus import nn
    >>> from numus.distributed import parallel
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    >>> mesh = nm.Mesh(tensor=1)
    >>> parallelize(model, mesh, {"0": parallel.Column(), "2": parallel.Row()})[0].out_features
    8
    """
    plan = plan_of(model) if plan is None else plan
    used: set[str] = set()
    made: dict[tuple[int, str], tuple[Parameter, Parameter]] = {}  # the old ones are kept alive
    for name, module in list(model.named_modules()):
        seen: set[str] = set()
        for pattern, style in plan.items():
            if style.axis in seen or not fnmatchcase(name, pattern):
                continue
            used.add(pattern)
            seen.add(style.axis)
            group = mesh.group(style.axis)
            parallel = style.apply(module, name, group)
            if parallel is not module:
                _tie(module, parallel, made)
                model.set_submodule(name, parallel)
                module = parallel
    unused = [pattern for pattern in plan if pattern not in used]
    if unused:
        raise ValueError(
            f"parallelize: no module of {type(model).__name__} is named like {', '.join(unused)}; "
            f"names are {', '.join([n for n, _ in model.named_modules() if n][:12])} …"
        )
    return model


def _tie(
    before: Module, after: Module, made: dict[tuple[int, str], tuple[Parameter, Parameter]]
) -> None:
    """Let layers that shared a parameter share the part of it."""
    for name in ("weight", "bias"):
        whole, part = getattr(before, name, None), getattr(after, name, None)
        if whole is None or part is None or whole is part:
            continue
        shard = getattr(after, "shards", {}).get(name)
        key = (id(whole), str(shard and [(s.dim, s.parts, s.group.ranks) for s in shard]))
        if key in made:
            setattr(after, name, made[key][1])
        else:
            made[key] = (whole, part)


def plan_of(
    model: Module, *, sequence: bool = False, loss_parallel: bool = False
) -> dict[str, Style]:
    """The plan of a language model of `nm.models` (GPT-2, Llama and its kin).

    Args:
        sequence: cut activations between blocks along the sequence.
        loss_parallel: leave scores divided by tokens, for `vocab_parallel_cross_entropy`.

    >>> from numus import models
    >>> config = models.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    >>> plan = nm.distributed.parallel.plan_of(models.GPT2LMHeadModel(config))
    >>> plan["transformer.h.*.mlp.c_proj"]
    Row(sequence=False, axis='tensor')
    """
    from numus.models.language.gpt2 import GPT2LMHeadModel
    from numus.models.language.llama import LlamaForCausalLM

    column, row = Column(sequence=sequence), Row(sequence=sequence)
    head = Column(gather_output=not loss_parallel, sequence=sequence)
    norm = SequenceParallel()
    found: dict[str, Style]
    if isinstance(model, GPT2LMHeadModel):
        found = {
            "transformer.wte": Vocabulary(sequence=sequence),
            "transformer.h.*.attn": Heads(),
            "transformer.h.*.attn.c_attn": Column(sequence=sequence, parts=3),
            "transformer.h.*.mlp.c_fc": column,
            "transformer.h.*.attn.c_proj": row,
            "transformer.h.*.mlp.c_proj": row,
            "lm_head": head,
        }
        norms: dict[str, Style] = {"transformer.h.*.ln_*": norm, "transformer.ln_f": norm}
        norms["transformer.wpe"] = SequenceParallel(cuts=True)
    elif isinstance(model, LlamaForCausalLM):
        found = {"model.embed_tokens": Vocabulary(sequence=sequence)}
        found |= {"model.layers.*.self_attn": Heads(), "model.layers.*.self_attn.o_proj": row}
        found |= {f"model.layers.*.self_attn.{x}_proj": column for x in "qkv"}
        if any(name.endswith("mlp.down_proj") for name, _ in model.named_modules()):
            found |= {f"model.layers.*.mlp.{x}_proj": column for x in ("gate", "up")}
            found["model.layers.*.mlp.down_proj"] = row
        found["lm_head"] = head
        norms = {"model.layers.*layernorm": norm, "model.norm": norm}
    else:
        raise TypeError(
            f"plan_of: {type(model).__name__} has no plan of its own; give parallelize one, as in "
            '{"*.up": Column(), "*.down": Row()}'
        )
    return found | norms if sequence else found
