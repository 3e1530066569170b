"""Ways of dividing a model, against one process with all of it; checks that every rank runs.

`python rank_parallel.py NAME … [--steps 20]`: see TRAINED; prints a line for each.
"""

import sys
import time
import traceback
import zlib
from functools import partial

import numpy as np

import numus as nm
from numus import models, nn, optim

dist = nm.distributed
par = dist.parallel

VOCABULARY, LENGTH, ROWS = 32, 16, 8
SIZES = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 16, "n_head": 4}


def gpt2(layers=2, **options):
    nm.random.seed(3)
    return models.GPT2LMHeadModel(models.GPT2Config(**SIZES, n_layer=layers, **options))


def llama(layers=2, model=models.LlamaForCausalLM, config=models.LlamaConfig, **options):
    nm.random.seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, **options}
    return model(config(vocab_size=VOCABULARY, **sizes, **heads))


def deep():
    return gpt2(4)


def mixtral():
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return llama(2, models.MixtralForCausalLM, models.MixtralConfig, **sizes)


def batches(steps):
    rng = np.random.default_rng(1)
    for _ in range(steps):
        ids = rng.integers(0, VOCABULARY, (ROWS, LENGTH + 1))
        yield ids[:, :-1], ids[:, 1:]


def optimizer_of(model):
    # a larger eps than usual: updates by the sign of a gradient that is all but zero would be those
    # of its rounding errors
    return optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def cross_entropy(logits, target):
    return nn.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


_alone = {}


def alone(make, steps, clip):
    """Losses, norms and the state of one process with the whole batch; kept for the next check."""
    key = (make, steps, clip)
    if key not in _alone:
        model = make()
        optimizer = optimizer_of(model)
        losses, norms = [], []

        @nm.jit
        def step(x, y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            return loss, norm

        for x, y in batches(steps):
            loss, norm = step(nm.asarray(x), nm.asarray(y))
            losses.append(loss.item())
            norms.append(norm.item())
        _alone[key] = losses, norms, {k: v.numpy() for k, v in model.state_dict().items()}
    return _alone[key]


def part(x, group, axis=0):
    return nm.asarray(np.split(np.asarray(x), group.size, axis)[group.rank])


def train(
    name, make, model, mesh, loss_of, steps, *, compiled, state=None, clip=0.7, averages=True
):
    """Train as one process does; equal to 1e-5. `loss_of(x, y)` has backward() behind it."""
    optimizer = optimizer_of(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        if averages:  # DistributedDataParallel does it by itself
            par.average_gradients(model, mesh)
        norm = par.clip_grad_norm_(model, clip, mesh=mesh)
        optimizer.step()
        return loss, norm

    run = nm.jit(step) if compiled else step
    losses, norms, whole = alone(make, steps, clip)
    worst = 0.0
    for i, (x, y) in enumerate(batches(steps)):
        loss, norm = run(nm.asarray(x), nm.asarray(y))
        worst = max(worst, abs(loss.item() - losses[i]), abs(norm.item() - norms[i]))
    found = (state or par.full_state_dict)(model)
    bits = 0
    for key, value in found.items():
        got = value.numpy()
        worst = max(worst, float(np.abs(got - whole[key]).max()))
        bits = zlib.crc32(got.tobytes(), bits)
    assert worst < 1e-5, (name, worst)
    if dist.rank() == 0:
        print(
            f"{name}: {steps} steps, compiled={compiled}: {worst:.1e}, bits {bits:08x}", flush=True
        )
    return worst


def data_loss(model, mesh, head=cross_entropy):
    """The loss of this rank's rows, and its mean over ranks."""
    group = mesh.group("data")

    def loss_of(x, y):
        each = x.shape[0] // group.size
        at = slice(group.rank * each, (group.rank + 1) * each)
        loss = head(model(x[at]), y[at])
        loss.backward()
        return dist.all_reduce(loss.detach(), "mean", group=group)

    return loss_of


# -- tensor parallelism ---------------------------------------------------------------------------


def check_tensor(steps):
    mesh = nm.Mesh(data=1, tensor=dist.world_size())
    for compiled in (False, True):
        model = gpt2()
        par.parallelize(model, mesh)
        train(
            "tensor",
            gpt2,
            model,
            mesh,
            data_loss(model, mesh),
            steps,
            compiled=compiled,
            state=gpt2_state,
        )


def gpt2_state(model):
    """The state of a whole GPT-2, whose Conv1D were written as linear layers."""
    found = par.full_state_dict(model)
    names = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {k: v.T if k.endswith(names) else v for k, v in found.items()}


def check_sequence(steps, mesh=None, compiled=True):
    mesh = mesh or nm.Mesh(data=1, tensor=dist.world_size())
    group = mesh.group("tensor")

    def head(scores, y):
        return par.vocab_parallel_cross_entropy(scores, y, group=group)

    model = gpt2()
    par.parallelize(model, mesh, par.plan_of(model, sequence=True, loss_parallel=True))
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.shape[0] == VOCABULARY // group.size
    name = "sequence" if mesh.size == group.size else "data x sequence"
    train(
        name,
        gpt2,
        model,
        mesh,
        data_loss(model, mesh, head),
        steps,
        compiled=compiled,
        state=gpt2_state,
    )


def check_data_tensor(steps):
    n = dist.world_size()
    mesh = nm.Mesh(data=n // 2, tensor=2)
    check_sequence(steps, mesh)
    model = llama()
    par.parallelize(model, mesh)
    parallel = dist.DistributedDataParallel(model, group=mesh.group("data"))
    loss_of = data_loss(parallel, mesh)
    train("data x tensor", llama, model, mesh, loss_of, steps, compiled=False, averages=False)


# -- pipelines ------------------------------------------------------------------------------------


def pipeline(mesh, schedule, chunks, microbatches=4, model=None, positions=None):
    model = model or deep()
    ranks = mesh.shape["pipe"]
    stages = par.split_language_model(model, ranks * chunks, positions=positions)
    return par.Pipeline(stages, mesh, microbatches=microbatches, schedule=schedule)


def pipe_state(pipe, turned=False):
    """The part of the model's state that is here, under the model's names."""
    found = {}
    cuts = par.shards(pipe)
    for name, value in pipe.state_dict().items():
        for shard in cuts.get(name, ()):
            value = shard.whole(value) if shard.dim >= 0 else value
        _, _, rest = name.split(".", 2)
        kind, rest = rest.split(".", 1)
        at = {"blocks": "transformer.h.", "embeddings": "transformer."}.get(kind, "")
        rest = (
            rest.replace("norm.", "transformer.ln_f.").replace("head.", "lm_head.")
            if kind == "last"
            else rest
        )
        turn = turned and rest.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        found[at + rest] = value.T if turn else value
    return found


def pipe_loss(pipe, mesh):
    group = mesh.group("data")

    def loss_of(x, y):
        each = x.shape[0] // group.size
        at = slice(group.rank * each, (group.rank + 1) * each)
        loss = pipe.step(x[at], y[at], cross_entropy)
        return dist.all_reduce(loss, "mean", group=group)

    return loss_of


def check_pipeline(steps, kind):
    n = dist.world_size()
    mesh = nm.Mesh(data=1, pipe=n)
    for compiled in (False, True):
        pipe = pipeline(mesh, kind, 2 if kind == "interleaved" and n == 2 else 1)
        loss_of = pipe_loss(pipe, mesh)
        options = {"compiled": compiled, "state": pipe_state}
        train(f"pipeline {kind}", deep, pipe, mesh, loss_of, steps, **options)


def check_pipe_meshes(steps):
    """Four ranks: data x pipe, tensor x pipe, context x pipe."""
    mesh = nm.Mesh(data=2, pipe=2)
    pipe = pipeline(mesh, "interleaved", 2)
    train(
        "data x pipe",
        deep,
        pipe,
        mesh,
        pipe_loss(pipe, mesh),
        steps,
        compiled=False,
        state=pipe_state,
    )
    mesh = nm.Mesh(data=1, pipe=2, tensor=2)
    model = deep()
    par.parallelize(model, mesh)
    pipe = pipeline(mesh, "1f1b", 1, model=model)
    train(
        "tensor x pipe",
        deep,
        pipe,
        mesh,
        pipe_loss(pipe, mesh),
        steps,
        compiled=True,
        state=lambda p: pipe_state(p, turned=True),
    )


# -- context parallelism --------------------------------------------------------------------------


def check_context(steps, mesh=None, make=gpt2, compiled=True):
    mesh = mesh or nm.Mesh(data=1, context=dist.world_size())
    group, rows = mesh.group("context"), mesh.group("data")
    model = make()
    attention = "*.self_attn" if make is llama else "*.attn"
    plan = {attention: par.Ring()}
    if "tensor" in mesh.shape:
        plan |= par.plan_of(model)
    par.parallelize(model, mesh, plan)
    both = mesh.group(("data", "context"))

    def loss_of(x, y):
        each = x.shape[0] // rows.size
        at = slice(rows.rank * each, (rows.rank + 1) * each)
        x, y = (par.shard_sequence(z[at], 1, group=group) for z in (x, y))
        positions = par.context_positions(LENGTH, group=group)
        loss = cross_entropy(model(x, position_ids=positions[None]), y)
        loss.backward()
        return dist.all_reduce(loss.detach(), "mean", group=both)

    train(
        " x ".join(a for a, e in mesh.shape.items() if e > 1) or "context",
        make,
        model,
        mesh,
        loss_of,
        steps,
        compiled=compiled,
    )


def check_context_meshes(steps):
    check_context(steps, nm.Mesh(data=2, context=2), compiled=False)
    check_context(steps, nm.Mesh(data=1, context=2, tensor=2), make=llama)


# -- experts --------------------------------------------------------------------------------------


def mixtral_state(model):
    """The names of a Mixtral's own experts."""
    found = {}
    for name, value in par.full_state_dict(model).items():
        head, _, last = name.rpartition(".")
        if last in ("w1", "w2", "w3"):
            for i in range(value.shape[0]):
                found[f"{head}.experts.{i}.{last}.weight"] = value[i]
        else:
            found[name] = value
    return found


def check_experts(steps, mesh=None, compiled=True):
    mesh = mesh or nm.Mesh(data=1, expert=dist.world_size())
    group = mesh.group(("data", "expert"))
    model = mixtral()
    par.parallelize(model, mesh, {"*.block_sparse_moe": par.Experts()})

    def loss_of(x, y):
        each = x.shape[0] // group.size
        at = slice(group.rank * each, (group.rank + 1) * each)
        loss = cross_entropy(model(x[at]), y[at])
        loss.backward()
        return dist.all_reduce(loss.detach(), "mean", group=group)

    train(
        "expert" if mesh.shape["data"] == 1 else "data x expert",
        mixtral,
        model,
        mesh,
        loss_of,
        steps,
        compiled=compiled,
        state=mixtral_state,
    )


def check_data_expert(steps):
    check_experts(steps, nm.Mesh(data=2, expert=2), compiled=False)


TRAINED = {
    "tensor": check_tensor,
    "sequence": check_sequence,
    "gpipe": partial(check_pipeline, kind="gpipe"),
    "1f1b": partial(check_pipeline, kind="1f1b"),
    "interleaved": partial(check_pipeline, kind="interleaved"),
    "context": check_context,
    "experts": check_experts,
    "data_tensor": check_data_tensor,
    "pipe_meshes": check_pipe_meshes,
    "context_meshes": check_context_meshes,
    "data_expert": check_data_expert,
}


def main():
    dist.init(timeout=250)
    args = sys.argv[1:]
    steps = int(args.pop(args.index("--steps") + 1)) if "--steps" in args else 3
    for name in args:
        if name.startswith("--"):
            continue
        begin = time.perf_counter()
        try:
            TRAINED[name](steps)
        except Exception:
            print(f"rank {dist.rank()}: {name}", traceback.format_exc(), flush=True)
            raise
        if dist.rank() == 0:
            print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(f"rank {dist.rank()} of {dist.world_size()}: all right", flush=True)


if __name__ == "__main__":
    main()
