"""`torch.nn.parameter`: parameters under their other name."""

from numus.torch._modules import Parameter

__all__ = ["Parameter"]
