"""`torch.cuda.amp`: mixed precision under its older name."""

from __future__ import annotations

from typing import Any

from numus.torch import amp as _amp

__all__ = ["GradScaler", "autocast"]


class autocast(_amp.autocast):  # noqa: N801
    """Products in float16, or another low-precision float."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: Any = None) -> None:
        super().__init__("cuda", dtype, enabled)


class GradScaler(_amp.GradScaler):
    """Scales losses so that float16 gradients keep their digits."""

    def __init__(self, init_scale: float = 2.0**16, *args: Any, **options: Any) -> None:
        names = ("growth_factor", "backoff_factor", "growth_interval", "enabled")
        super().__init__("cuda", init_scale, **dict(zip(names, args, strict=False)), **options)
