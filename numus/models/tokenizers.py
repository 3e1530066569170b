"""Tokenizers from a model's folder, through the optional package `tokenizers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numus.errors import RecordError
from numus.files import PathLike

__all__ = ["Tokenizer", "load_tokenizer"]


class Tokenizer:
    """Texts to token ids and back.

    Args:
        inner: a `tokenizers.Tokenizer`.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        """Tokens that there are."""
        return int(self.inner.get_vocab_size())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with those that the tokenizer adds at its ends."""
        return list(self.inner.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; special tokens are left out unless asked for."""
        return str(self.inner.decode(list(ids), skip_special_tokens=not special))


def load_tokenizer(path: PathLike) -> Tokenizer:
    """The tokenizer of a folder's `tokenizer.json`, or of such a file."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "load_tokenizer: reads tokenizer.json through the package tokenizers: "
            "pip install 'numus[text]'"
        ) from error
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise FileNotFoundError(f"load_tokenizer: there is no {file}")
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(file)))
    except Exception as error:  # the package raises a plain Exception
        raise RecordError(f"{file} is not a tokenizer: {error}") from None
