"""`torch.utils.checkpoint`: values computed anew in the backward pass."""

from numus.torch._tools import checkpoint

__all__ = ["checkpoint"]
