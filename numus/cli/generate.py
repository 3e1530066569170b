"""`numus generate`: a text continued by a language model, shown as it is written."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from numus import models
from numus.errors import NumusError

__all__ = ["run"]


def run(
    model: Path,
    prompt: str,
    tokenizer: Path | None,
    tokens: int,
    draft: str | None,
    device: str | None,
    dtype: str | None,
    quantize: str | None,
    **options: Any,
) -> None:
    """Continue a text."""
    try:
        words = models.load_tokenizer(tokenizer or (model if model.is_dir() else model.parent))
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        loaded = models.load(model, quantize=quantize, **where)
        guesses = draft if draft in (None, "ngrams") else models.load(draft, **where)
        pieces = loaded.generate(
            prompt, max_new_tokens=tokens, tokenizer=words, draft=guesses, stream=True, **options
        )
        _show(prompt, pieces)
    except (NumusError, ValueError, TypeError, OSError, ImportError) as error:
        raise SystemExit(f"numus generate: {error}") from None


def _show(prompt: str, pieces: Any) -> None:
    print(prompt, end="", flush=True)
    began, times = time.perf_counter(), []
    for piece in pieces:
        print(piece, end="", flush=True)
        times.append(time.perf_counter() - began)
    print()
    if sys.stderr.isatty() and len(times) > 1:
        speed = (len(times) - 1) / (times[-1] - times[0])
        print(f"first token after {times[0]:.2f} s, {speed:.1f} tokens/s", file=sys.stderr)
