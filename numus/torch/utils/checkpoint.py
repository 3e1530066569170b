"""`torch.utils.checkpoint`: values computed anew in the backward pass."""

from numus.torch._tools import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
