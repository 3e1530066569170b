"""`torch.utils`: data, and recomputation."""

from numus.torch.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
