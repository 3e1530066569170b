"""`numus finetune`: a language model trained further on a text, by LoRA or as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from numus import models
from numus.errors import NumusError

__all__ = ["run"]


def run(model: Path, text: Path, out: Path, **options: Any) -> None:
    """Train a model, and write the result as a folder."""
    try:
        _finetune(model, text, out, **options)
    except (NumusError, ValueError, TypeError, OSError, ImportError) as error:
        raise SystemExit(f"numus finetune: {error}") from None


def _finetune(
    model: Path,
    text: Path,
    out: Path,
    tokenizer: Path | None,
    rank: int,
    recompute: bool,
    device: str | None,
    dtype: str | None,
    quantize: str | None,
    **options: Any,
) -> None:
    if quantize is not None and rank < 1:
        raise ValueError("weights of few bits are not trained: --quantize takes a --rank")
    source = tokenizer or (model if model.is_dir() else model.parent)
    words = models.load_tokenizer(source)
    tokens = words.encode(text.read_text(), special=False)
    loaded = models.load(model, device=device, dtype=dtype, quantize=quantize)
    if not isinstance(loaded, models.CausalLM):
        raise TypeError(f"{type(loaded).__name__} does not write texts by itself")
    if rank > 0:
        models.lora_(loaded, rank)
    if recompute:
        loaded.recompute_blocks_()
    count = loaded.num_parameters(trainable_only=True)
    print(f"{count:,} parameters are trained on {len(tokens):,} tokens")

    def report(number: int, loss: float) -> None:
        if number % 10 == 0:
            print(f"step {number:5}  loss {loss:.4f}", flush=True)

    losses = models.finetune(loaded, tokens, report=report, **options)
    models.save(models.merge_lora_(loaded), out)
    file = source / "tokenizer.json" if source.is_dir() else source
    if file.parent.resolve() != out.resolve():
        shutil.copyfile(file, out / "tokenizer.json")
    print(f"loss {losses[0]:.4f} … {losses[-1]:.4f}; {out}")
