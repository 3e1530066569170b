"""`torch.amp`: mixed precision."""

from __future__ import annotations

from typing import Any

from numus import optim as _optim
from numus.torch._owned import own
from numus.torch._tools import autocast

__all__ = ["GradScaler", "autocast"]


class GradScaler(_optim.GradScaler):
    """Scales losses so that float16 gradients keep their digits."""

    def __init__(self, device: str = "cuda", init_scale: float = 2.0**16, **options: Any) -> None:
        super().__init__(init_scale, **options)

    def scale(self, outputs: Any) -> Any:
        """A loss times the scale."""
        return own(super().scale(outputs))
