"""`torch.utils.data`: datasets, samplers, loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numus import data as _engine
from numus.torch._creation import Generator
from numus.torch._modules import reflected
from numus.torch._owned import own, owning


class DataLoader(_engine.DataLoader):
    """Batches of a dataset, as this face's tensors."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        *args: Any,
        generator: Generator | None = None,
        multiprocessing_context: Any = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        prefetch_factor: int | None = None,
        **options: Any,
    ) -> None:
        if generator is not None:
            options["key"] = generator.next_key()
        if prefetch_factor is not None:
            options["prefetch_factor"] = prefetch_factor
        super().__init__(dataset, batch_size, bool(shuffle), *args, **options)

    def __iter__(self) -> Iterator[Any]:
        return map(own, super().__iter__())


def random_split(dataset: Any, lengths: Any, generator: Generator | None = None) -> Any:
    """A dataset in parts of these lengths, or shares, at random."""
    key = None if generator is None else generator.next_key()
    return _engine.random_split(dataset, lengths, key=key)


_MADE = {
    "DataLoader": DataLoader,
    "random_split": random_split,
    "default_collate": owning(_engine.default_collate),
}
__getattr__ = reflected(__name__, _engine, _MADE)


def __dir__() -> list[str]:
    return [n for n in dir(_engine) if n[0] != "_"]
