"""Continuing texts: `generate`, whole or token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.models.generation.beams import beam_search
from numus.models.generation.prompts import Ending, Prompts
from numus.models.generation.sampling import Sampler
from numus.models.generation.session import CHUNK, Chosen, Session, session_of
from numus.models.generation.speculative import DraftModel, NGrams, speculate
from numus.models.language.base import Decoder, EncoderDecoder

__all__ = ["generate"]

Array = np.ndarray[Any, Any]


def _eos(given: Any, model: Decoder) -> frozenset[int]:
    found = model.config.eos_token_id if given is None else given
    if found is None or found is False:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else map(int, found))


def _pad(given: int | None, model: Decoder, eos: frozenset[int]) -> int:
    found = given if given is not None else model.config.pad_token_id
    return int(found) if found is not None else min(eos, default=0)


def generate(
    model: Decoder,
    prompts: Any = None,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    attention_mask: Any = None,
    eos_token_id: Any = None,
    pad_token_id: int | None = None,
    stop: str | Sequence[str] = (),
    tokenizer: Any = None,
    stream: bool = False,
    chunk: int = CHUNK,
    cache: Any = None,
    draft: Any = None,
    guesses: int = 4,
    **inputs: Any,
) -> Any:
    """Continue texts, token by token.

    >>> from numus import models
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    >>> model = models.LlamaForCausalLM(
    ...     models.LlamaConfig(vocab_size=50, num_attention_heads=2, **sizes)
    ... )
    >>> models.generate(model, [[3, 4, 5], [6]], max_new_tokens=5, temperature=0.8, seed=1).shape
    (2, 8)

    Args:
        prompts: token ids (rows, length), lists of different lengths, or texts with a tokenizer.
            An encoder–decoder takes its encoder's input here, and Whisper features.
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampler`; temperature 0 is
            greedy. The same `seed` gives the same tokens.
        num_beams: texts that are followed at once (beam search); the likeliest is the result.
        length_penalty: beams are compared by log-probability over length to this power.
        attention_mask: (rows, length) for prompts as a tensor: zero for padding, on either side.
        eos_token_id: ends a row, one or several; the configuration's if left out; False: none.
        stop: texts that end a row; they take a tokenizer.
        tokenizer: as `nm.models.load_tokenizer` gives it; texts in give texts out.
        stream: give an iterator of the tokens (rows,) or pieces of text, as they are chosen.
        chunk: tokens of a prompt that are read at once.
        cache: a format for keys and values, as "int8-row" or "int4-g32"; None: the model's dtype.
        draft: guesses tokens of a single text, which are checked in one pass (speculative
            decoding): a smaller model with the same tokens, or "ngrams". The result stays the same.
        guesses: how many at a time.

    Returns:
        Token ids (rows, prompt + new), padded after the end of a row; texts, if given texts.
    """
    if max_new_tokens < 1:
        raise ValueError(f"generate: max_new_tokens={max_new_tokens} must be at least 1")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if stops and tokenizer is None:
        raise ValueError("generate: stop takes a tokenizer, which decodes tokens to texts")
    sampler = Sampler(temperature, top_k, top_p, min_p, repetition_penalty)
    eos = _eos(eos_token_id, model)
    ending = Ending(eos, _pad(pad_token_id, model, eos), stops, getattr(tokenizer, "decode", None))
    as_text = isinstance(prompts, str) or (
        isinstance(prompts, list | tuple) and bool(prompts) and isinstance(prompts[0], str)
    )
    if as_text:
        if tokenizer is None:
            raise ValueError("generate: texts take a tokenizer; see nm.models.load_tokenizer")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        prompts = [tokenizer.encode(text) for text in texts]
    was_training = model.training
    model.eval()
    try:
        given, memory, memory_mask = _encoded(model, prompts, attention_mask, inputs, ending.pad)
    finally:
        model.train(was_training)
    _check_length(model, given, max_new_tokens)
    if num_beams > 1:
        if stream or temperature:
            raise ValueError("generate: beam search is greedy, and its result is known at the end")
        tokens = beam_search(
            *(model, given, num_beams, max_new_tokens, ending, length_penalty, sampler),
            *(memory, memory_mask, cache, chunk),
        )
        return _result(tokens, given, model, tokenizer if as_text else None)
    padded = given.padded()
    length = padded.tokens.shape[1] + max_new_tokens
    if draft is not None:
        _check_draft(model, draft, guesses, len(given.first), sampler)
        length += guesses
    session = session_of(model, len(given.first), length, sampler, cache, chunk)
    session.begin(seed, memory, memory_mask)
    if draft is None:
        chosen = _tokens(session, padded, max_new_tokens, ending)
    else:
        source: NGrams | DraftModel = NGrams(guesses)
        if draft != "ngrams":
            small = session_of(draft, 1, length, sampler, cache, chunk)
            small.begin(seed)
            source = DraftModel(small, guesses)
        chosen = _until_done(speculate(session, source, padded, max_new_tokens), ending)
    if stream:
        return _pieces(chosen, tokenizer, len(given.first)) if as_text else chosen
    new = np.stack(list(chosen), axis=1)
    return _result(new, given, model, tokenizer if as_text else None)


def _encoded(
    model: Decoder, prompts: Any, mask: Any, inputs: dict[str, Any], pad: int
) -> tuple[Prompts, Any, Any]:
    """The decoder's prompts, and what an encoder makes of its own."""
    if not isinstance(model, EncoderDecoder):
        if inputs:
            raise TypeError(
                f"generate: {', '.join(inputs)} are no options of {type(model).__name__}"
            )
        return Prompts.of(prompts, mask, pad), None, None
    with nm.no_grad():
        start, memory, memory_mask = model.encode_prompts(prompts, mask, pad, **inputs)
    return Prompts.of(start, None, pad), memory, memory_mask


def _check_length(model: Decoder, given: Prompts, new: int) -> None:
    longest = int(given.tokens.shape[1] - given.first.min())
    limit = model.max_length
    if limit is not None and longest + new > limit:
        raise ShapeError(
            f"generate: {longest} tokens and {new} new ones go beyond the {limit} positions of "
            f"{type(model).__name__}"
        )


def _check_draft(model: Decoder, draft: Any, guesses: int, rows: int, sampler: Sampler) -> None:
    """Refuse what speculative decoding cannot do."""
    problems = []
    if rows != 1:
        problems.append(f"takes a single text, not {rows}")
    if sampler.penalizes:
        problems.append("knows no repetition_penalty")
    if not 1 <= guesses < CHUNK:
        problems.append(f"guesses at least one token at a time, not {guesses}")
    if draft != "ngrams":
        if not isinstance(draft, Decoder):
            problems.append(f'takes a model or "ngrams", not {draft!r:.60}')
        elif isinstance(draft, EncoderDecoder) or isinstance(model, EncoderDecoder):
            problems.append("takes a draft model of texts alone")
        elif draft.config.vocab_size != model.config.vocab_size:
            own, other = model.config.vocab_size, draft.config.vocab_size
            problems.append(f"needs the same tokens, not {other} of them instead of {own}")
    if problems:
        raise ValueError(f"generate: speculative decoding {', '.join(problems)}")


def _until_done(chosen: Iterator[Array], ending: Ending) -> Iterator[Array]:
    ending.begin(1)
    for tokens in chosen:
        yield ending.take(tokens)
        if ending.done.all():
            return


def _tokens(session: Session, given: Prompts, count: int, ending: Ending) -> Iterator[Array]:
    """The tokens of each step, (rows,), until all rows are done."""
    ending.begin(len(given.first))
    first = session._ints(given.first)
    state = session.prefill(given.tokens, given.first)
    end = given.tokens.shape[1] + 1
    ahead = not session.device.on_host  # a device computes the next step while we read the last
    for number in range(count):
        following: Chosen | None = None
        if ahead and number + 1 < count:
            following = session.step(state, first, end)
        yield ending.take(np.asarray(state.tokens)[:, 0].astype(np.int64))
        if ending.done.all() or number + 1 == count:
            return
        state = session.step(state, first, end) if following is None else following
        end += 1


def _result(new: Array, given: Prompts, model: Decoder, tokenizer: Any) -> Any:
    if tokenizer is not None:
        return [tokenizer.decode(row.tolist()) for row in new]
    tokens = np.concatenate([given.tokens, new], axis=1)
    return nm.asarray(tokens, device=model.device)


def _pieces(chosen: Iterator[Array], tokenizer: Any, rows: int) -> Iterator[Any]:
    """Pieces of text; one of a token that is half a character waits for the other half."""
    held: list[list[int]] = [[] for _ in range(rows)]
    shown = [""] * rows
    for tokens in chosen:
        pieces = []
        for row, token in enumerate(tokens.tolist()):
            held[row].append(token)
            text = tokenizer.decode(held[row])
            whole = not text.endswith("�")
            pieces.append(text[len(shown[row]) :] if whole else "")
            shown[row] = text if whole else shown[row]
        yield pieces[0] if rows == 1 else pieces
